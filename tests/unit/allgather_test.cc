// SPDX-License-Identifier: Apache-2.0
// Joining, where the C API cannot look: what the resolver returns, an address with a port in use, several rounds, and a rank
// that leaves between the exchange of peer infos and the sharing of memory.
#include "bootstrap/allgather.h"
#include "base/log.h"
#include "base/program.h"
#include "base/tcp_socket.h"
#include "bootstrap/local/rendezvous.h"
#include "bootstrap/tcp_protocol.h"

#include <atomic>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

extern "C" {
#include <cmocka.h>
}

#include "held_port.h"

using namespace odc;

namespace {

constexpr int64_t kLongMs = 60'000;  // far beyond any delay of a busy machine: a wait this long has failed
const std::string kSecret = "the secret";

std::atomic<int> questions = 0;  // queries of the resolver

int ask(const char *host, const char *port, const addrinfo *hints, addrinfo **list) {
    static const auto next = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
    return next(host, port, hints, list);
}

}  // namespace

// This test's resolver: "twice.test" has one address, returned twice (as glibc does when /etc/hosts repeats it), "half.test"
// two.
extern "C" int getaddrinfo(const char *host, const char *port, const addrinfo *hints, addrinfo **list) {
    ++questions;
    const std::string name = host;
    if (name != "twice.test" && name != "half.test") {
        return ask(host, port, hints, list);
    }
    const int error = ask(name == "half.test" ? "127.0.0.2" : "127.0.0.1", port, hints, list);
    return error != 0 ? error : ask("127.0.0.1", port, hints, &(*list)->ai_next);
}

namespace {

PeerInfo peer_info_of(int rank) {
    PeerInfo info{};
    info[0] = static_cast<std::byte>(rank + 1);
    return info;
}

// The error text a rank ended with; "": none.
std::string error_of(const std::function<void()> &what) {
    try {
        what();
    } catch (const Error &error) {
        return error.what();
    }
    return "";
}

void check_text(const std::string &error, const char *first, const char *second) {
    if (error.find(first) == std::string::npos || error.find(second) == std::string::npos) {
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", error.c_str(), first, second);
    }
}

// Runs ranks as threads and returns their error texts.
std::vector<std::string> run_ranks(int size, const std::function<void(int rank)> &rank_fn) {
    std::vector<std::string> errors(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] { errors[static_cast<size_t>(rank)] = error_of([&] { rank_fn(rank); }); });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    return errors;
}

void test_address_returned_twice(void **) {
    const HeldPort place;
    std::string why;
    assert_int_equal(resolve({"", "twice.test", place.port}, &why).size(), 1);
    const auto errors = run_ranks(2, [&](int rank) {
        const Deadline deadline(kLongMs, nullptr, nullptr);
        const auto exchange = make_allgather_tcp("twice.test:" + place.port, kSecret, "host", rank, 2, deadline);
        if (exchange->all_gather(peer_info_of(rank)) != std::vector<PeerInfo>{peer_info_of(0), peer_info_of(1)}) {
            throw Error(ODC_ERROR_INTERNAL, "these are not the peer infos");
        }
    });
    assert_string_equal((errors[0] + errors[1]).c_str(), "");
}

// Rank 0 comes when rank 1's log has said that it tries again.
void test_retries_are_logged(void **) {
    const HeldPort place;
    std::atomic<bool> told = false;
    const auto hear = [](void *arg, int32_t level, const char *line) {
        if (level == ODC_LOG_DEBUG && std::strstr(line, "yet (127.0.0.1:") != nullptr &&
            std::strstr(line, "Connection refused); tries again") != nullptr) {
            *static_cast<std::atomic<bool> *>(arg) = true;
        }
    };
    const auto errors = run_ranks(2, [&](int rank) {
        Log log(ODC_LOG_DEBUG, hear, &told);
        const Deadline deadline(kLongMs, nullptr, nullptr, &log);
        while (rank == 0 && !told) {
            deadline.check(ODC_ERROR_INTERNAL,
                           [] { return std::string("the log does not say that rank 1 tries again"); });
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        make_allgather_tcp("127.0.0.1:" + place.port, kSecret, "host", rank, 2, deadline)
            ->all_gather(peer_info_of(rank));
    });
    assert_string_equal((errors[0] + errors[1]).c_str(), "");
}

// Another program listens at one of two addresses: rank 0 must connect to that one, not to itself at the other.
void test_address_half_taken(void **) {
    const HeldPort place;
    std::string why;
    const Fd taken = listen_at(resolve({"", "127.0.0.1", place.port}, &why).at(0));
    assert_true(taken.valid());
    std::atomic<bool> over = false;
    std::thread program([&] {
        std::vector<Fd> clients;
        while (!over) {
            pollfd entry{taken.get(), POLLIN, 0};
            poll(&entry, 1, 10);
            Address from;
            Fd client = accept_from(taken.get(), &from);
            if (client.valid()) {
                const std::string talk(64, 'x');
                send(client.get(), talk.data(), talk.size(), MSG_NOSIGNAL);
                clients.push_back(std::move(client));
            }
        }
    });
    const std::string error = error_of([&] {
        const Deadline deadline(kLongMs, nullptr, nullptr);
        make_allgather_tcp("half.test:" + place.port, kSecret, "host", 0, 2, deadline)->all_gather(peer_info_of(0));
    });
    over = true;
    program.join();
    check_text(error, "127.0.0.1:", "is not rank 0 of a libodc job");
}

// On a slow machine this takes more seconds, hence more queries, but never more than one a second.
void test_resolver_is_asked_seldom(void **) {
    const HeldPort place;
    const int before = questions;
    const int64_t begin_ns = now_ns();
    const std::string error = error_of([&] {
        const Deadline deadline(1500, nullptr, nullptr);
        make_allgather_tcp("twice.test:" + place.port, kSecret, "host", 1, 2, deadline)->all_gather(peer_info_of(1));
    });
    const int64_t seconds = (now_ns() - begin_ns) / 1'000'000'000;
    check_text(error, "missing: rank 0", "refused");
    assert_in_range(questions - before, 1, 1 + seconds);
}

// A rank that leaves after the exchange of peer infos is noticed at once, not at the deadline.
void test_gone_after_the_peer_infos(void **) {
    for (int gone = 0; gone < 3; ++gone) {
        const HeldPort place;
        const std::string name = "exchange-test-" + std::to_string(getpid()) + "-" + std::to_string(gone);
        const auto errors = run_ranks(3, [&](int rank) {
            const Deadline deadline(kLongMs, nullptr, nullptr);
            const auto exchange = make_allgather_tcp("127.0.0.1:" + place.port, kSecret, "host", rank, 3, deadline);
            exchange->all_gather(peer_info_of(rank));
            if (rank != gone) {
                const Fd memory(memfd_create("test", MFD_CLOEXEC));
                const Program program;
                join_local_group({name, {0, 1, 2}, rank, 3, exchange->liveness_fds(), {}},
                                 {memory.get(), program.fd(), -1}, deadline);
            }
        });
        for (size_t rank = 0; rank < errors.size(); ++rank) {
            if (rank == static_cast<size_t>(gone)) {
                assert_string_equal(errors[rank].c_str(), "");
            } else if (rank == 0) {
                check_text(errors[rank], ("rank " + std::to_string(gone)).c_str(), "died, gave up or replaced");
            } else {
                check_text(errors[rank], "rank ",
                           "died, gave up or replaced");  // rank 0's error, or that rank 0 has gone
            }
        }
    }
}

PeerInfo info_of_round(int rank, int round) {
    PeerInfo info = peer_info_of(rank);
    info.back() = static_cast<std::byte>(round);
    return info;
}

void test_rounds(void **) {
    constexpr int kSize = 5;
    constexpr int kRounds = 4;
    const HeldPort place;
    const auto errors = run_ranks(kSize, [&](int rank) {
        const Deadline deadline(kLongMs, nullptr, nullptr);
        const auto exchange = make_allgather_tcp("127.0.0.1:" + place.port, kSecret, "host", rank, kSize, deadline);
        for (int round = 1; round <= kRounds; ++round) {
            std::vector<PeerInfo> expected;
            for (int of = 0; of < kSize; ++of) {
                expected.push_back(info_of_round(of, round));
            }
            if (exchange->all_gather(info_of_round(rank, round)) != expected) {
                throw Error(ODC_ERROR_INTERNAL, formatted("these are not the peer infos of round {}", round));
            }
        }
    });
    for (const std::string &one : errors) {
        assert_string_equal(one.c_str(), "");
    }
}

// One rank skips the second round: it leaves, reports an error and leaves, or reports an error and stays. Ranks that wait
// beside the allgather see it by the liveness descriptor and read the same error in the round.
void test_no_second_round(void **) {
    constexpr int kSize = 4;
    const PeerInfo join_error = join_error_of(Error(ODC_ERROR_SYSTEM, "no more files"));
    for (int variant = 0; variant < 3 * kSize; ++variant) {
        const int gone = variant % kSize;
        const bool says_why = variant >= kSize;
        const bool stays = variant >= 2 * kSize;
        const HeldPort place;
        const auto errors = run_ranks(kSize, [&](int rank) {
            const Deadline deadline(kLongMs, nullptr, nullptr);
            const auto exchange = make_allgather_tcp("127.0.0.1:" + place.port, kSecret, "host", rank, kSize, deadline);
            exchange->all_gather(peer_info_of(rank));
            if (rank == gone && stays) {
                exchange->all_gather(join_error);
            }
            if (rank == gone) {
                return says_why ? exchange->leave(join_error) : void();
            }
            if (rank == 3) {
                pollfd entry{exchange->liveness_fds()[0], POLLIN, 0};
                if (poll(&entry, 1, 30'000) != 1) {
                    throw Error(ODC_ERROR_INTERNAL, "the liveness descriptor was not signalled");
                }
            }
            exchange->all_gather(peer_info_of(rank));
        });
        for (int rank = 0; rank < kSize; ++rank) {
            if (rank != gone) {
                check_text(errors[static_cast<size_t>(rank)], ("rank " + std::to_string(gone)).c_str(),
                           says_why ? "cannot join: no more files" : "died, gave up or replaced");
            }
        }
    }
}

// When one rank fails by itself and another only sees that, all ranks read the error of the former.
void test_reporting_a_join_error(void **) {
    const PeerInfo met = join_error_of(Error(ODC_ERROR_RENDEZVOUS, "rank 2 gave up"));
    const PeerInfo failed = join_error_of(Error(ODC_ERROR_INTERRUPTED, "interrupted"));
    check_text(error_of([&] {
                   check_join_errors({peer_info_of(0), met, failed});
               }),
               "rank 2 cannot join", "interrupted");
    check_text(error_of([&] {
                   check_join_errors({peer_info_of(0), met, peer_info_of(2)});
               }),
               "rank 1 cannot join", "rank 2 gave up");
    assert_string_equal(error_of([&] { check_join_errors({peer_info_of(0), PeerInfo{}}); }).c_str(), "");
}

}  // namespace

int main() {
    if (sodium_init() < 0) {
        return 1;
    }
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_address_returned_twice),    cmocka_unit_test(test_retries_are_logged),
        cmocka_unit_test(test_address_half_taken),        cmocka_unit_test(test_resolver_is_asked_seldom),
        cmocka_unit_test(test_gone_after_the_peer_infos), cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_no_second_round),           cmocka_unit_test(test_reporting_a_join_error),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
