// SPDX-License-Identifier: Apache-2.0
// The wait of odc_init: what happens at descriptors ends it, and so does the caller. And rendezvous messages over a Unix
// socket, whose lengths and versions are checked in one place.
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/layout_version.h"
#include "bootstrap/local/message.h"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

using namespace odc;

namespace {

const Deadline kLong(60'000, nullptr, nullptr);

struct Pair {
    Fd one;
    Fd other;
};

Pair unix_pair() {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    return {Fd(ends[0]), Fd(ends[1])};
}

void await(EventLoop &events, int fd, short what) {
    for (;;) {
        const size_t event = events.watch(fd, what);
        events.wait(now_ns() + 1'000'000'000);
        if (events.happened(event)) {
            return;
        }
        assert_true(!kLong.over());
    }
}

void test_data_hang_up_and_death(void **) {
    EventLoop events(kLong, "the test");
    Pair pair = unix_pair();
    const size_t nothing = events.watch(pair.one.get());
    const size_t nobody = events.watch(-1);
    events.wait(now_ns());
    assert_false(events.happened(nothing));
    assert_false(events.happened(nobody));

    char byte = 1;
    assert_int_equal(write(pair.other.get(), &byte, 1), 1);
    await(events, pair.one.get(), POLLIN);
    assert_int_equal(read(pair.one.get(), &byte, 1), 1);
    pair.other = Fd();
    await(events, pair.one.get(), POLLIN);

    const pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    const Fd life(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
    assert_true(life.valid());
    await(events, life.get(), POLLIN);
    assert_int_equal(waitpid(child, nullptr, 0), child);
}

int stop(void *asked) { return ++*static_cast<int *>(asked) == 3 ? 1 : 0; }

// Asked after each wait, also when nothing happens and there is nothing to wait for.
void test_interrupted(void **) {
    int asked = 0;
    const Deadline deadline(60'000, stop, &asked);
    EventLoop events(deadline, "the test");
    try {
        events.sleep(now_ns() + 600'000'000'000);
        fail_msg("it was not interrupted");
    } catch (const Error &error) {
        assert_int_equal(error.status(), ODC_ERROR_INTERRUPTED);
    }
    assert_int_equal(asked, 3);
}

// More ranks may be waited for, of whom there is no descriptor, than the process may have descriptors.
void test_more_ranks_than_descriptors(void **) {
    rlimit before{};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit few{64, before.rlim_max};
    const Pair pair = unix_pair();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    EventLoop events(kLong, "the test");
    for (int rank = 0; rank < 200; ++rank) {
        events.watch(-1);
    }
    const size_t event = events.watch(pair.one.get(), POLLOUT);
    events.wait(now_ns() + 1'000'000'000);
    const bool happened = events.happened(event);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(happened);
}

PeersToSend own_handles(const Fd &any) { return {{{1, 7, 3}}, {any.get(), any.get(), any.get()}}; }

void test_hello(void **) {
    const Pair pair = unix_pair();
    const Hello said = hello_of_rank(1, 2, 1000);
    assert_true(send_hello(pair.one.get(), said, own_handles(pair.one), kLong));
    Hello hello{};
    ReceivedPeers self;
    assert_true(receive_hello(pair.other.get(), &hello, &self) == Received::Message);
    assert_true(bytes_of(hello) == bytes_of(said));
    assert_int_equal(self.peers.size(), 1);
    assert_int_equal(self.fds.size(), 3);
    assert_true(receive_hello(pair.other.get(), &hello, &self) == Received::Nothing);
}

// What is too short, too long, or names descriptors that do not come.
void test_malformed(void **) {
    const Hello good = hello_of_rank(1, 2, 1000);
    const std::string whole(bytes_of(good));
    const SentPeer self{1, 7, 3};
    for (const std::string &bytes :
         {whole, whole.substr(1), whole + std::string(bytes_of(self)), std::string(5000, 'o'), std::string("odc")}) {
        const Pair pair = unix_pair();
        assert_int_equal(send(pair.one.get(), bytes.data(), bytes.size(), 0), bytes.size());
        Hello hello{};
        ReceivedPeers peers;
        assert_true(receive_hello(pair.other.get(), &hello, &peers) == Received::Closed);
    }
    for (const uint32_t bytes : {0U, 5U, 4096U, UINT32_MAX}) {
        const Pair pair = unix_pair();
        const Reply reply{kRendezvousMagic, ReplyKind::kFailed, bytes, {}};
        const std::string message = std::string(bytes_of(reply)) + "four";
        assert_int_equal(send(pair.one.get(), message.data(), message.size(), 0), message.size());
        ReplyKind kind{};
        std::string why;
        ReceivedPeers peers;
        assert_true(receive_reply(pair.other.get(), &kind, &why, &peers) == Received::Closed);
    }
}

// A rank of another version is known by its Hello, whatever follows it there.
void test_hello_of_another_version(void **) {
    const Pair pair = unix_pair();
    const Hello mine = hello_of_rank(0, 2, 1000);
    Hello theirs = hello_of_rank(1, 2, 1000);
    theirs.version = layout_version() + 1;
    const std::string message = std::string(bytes_of(theirs)) + "what comes later";
    assert_int_equal(send(pair.one.get(), message.data(), message.size(), 0), message.size());
    Hello hello{};
    ReceivedPeers self;
    assert_true(receive_hello(pair.other.get(), &hello, &self) == Received::Message);
    try {
        check_hello(hello, mine);
        fail_msg("it was let in");
    } catch (const Error &error) {
        assert_non_null(std::strstr(error.what(), "give all ranks the same libodc"));
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_data_hang_up_and_death),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_more_ranks_than_descriptors),
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_hello_of_another_version),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
