// SPDX-License-Identifier: Apache-2.0
// How the silence of ranks on other hosts is counted. The test supplies the time.
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/log.h"
#include "memory/shared_arena.h"
#include "transport/fabric/heartbeat.h"
#include "transport/fabric/reliable_stream.h"

extern "C" {
#include <cmocka.h>
}

using namespace odc;

namespace {

constexpr int64_t kTimeoutNs = 30'000'000'000;
constexpr int64_t kSilenceMs = 4000;
constexpr int64_t kSilenceNs = kSilenceMs * 1'000'000;
constexpr int64_t kRoundNs = 250'000'000;
constexpr Token kToken = {1, 2, 3};
constexpr Token kOther = {4, 5, 6};

FabricNic loopback() { return {"tcp;ofi_rxm", "lo", 4, {127, 0, 0, 1}}; }

// Where peers are probed: provider tcp of libfabric 1.17 never frees the state of a connection that sends nothing.
struct ProbePort {
    Fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    std::vector<std::byte> name = std::vector<std::byte>(sizeof(sockaddr_in));

    ProbePort() {
        sockaddr_in address{};
        socklen_t bytes = sizeof(address);
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        auto *any = reinterpret_cast<sockaddr *>(&address);
        assert_int_equal(bind(socket.get(), any, bytes), 0);
        assert_int_equal(listen(socket.get(), SOMAXCONN), 0);
        assert_int_equal(getsockname(socket.get(), any, &bytes), 0);
        std::memcpy(name.data(), &address, bytes);
    }
};

// Rank 0, alone on its host, and the endpoints of its peers, which answer nothing: messages with another job's token are
// dropped. They accept nothing before their first `work`.
struct Job {
    struct Other {
        FabricEndpoint endpoint{loopback(), nullptr};
        ControlBlock block{};
        std::vector<std::unique_ptr<RemoteRank>> nobody;
        ReliableStream packets{block, kOther, nobody, [](RemoteRank &, const ControlMessage &) {}};
        Other() { packets.post_receives(endpoint); }
        void work() { endpoint.poll(); }
    };
    ProbePort port;
    FabricEndpoint endpoint{loopback(), nullptr};
    std::shared_ptr<Arena> images{Arena::create()};
    ControlBlock mine{};
    std::vector<std::unique_ptr<Other>> others;
    std::vector<std::unique_ptr<RemoteRank>> remotes;
    std::unique_ptr<ReliableStream> packets;
    std::vector<std::string> warnings;
    Log log{ODC_LOG_WARN,
            [](void *arg, int32_t, const char *line) { static_cast<std::vector<std::string> *>(arg)->push_back(line); },
            &warnings};
    std::unique_ptr<Heartbeat> heartbeat;
    int64_t now = 1'000'000'000;

    explicit Job(const std::vector<std::vector<int>> &hosts) {
        images->allocate_record(64);  // number 0 means no record
        remotes.push_back(nullptr);
        int size = 0;
        for (const auto &ranks : hosts) {
            size += static_cast<int>(ranks.size());
        }
        for (size_t host = 1; host < hosts.size(); ++host) {
            for (const int rank : hosts[host]) {
                others.push_back(std::make_unique<Other>());
                remotes.push_back(std::make_unique<RemoteRank>(RemoteRank{
                    rank, static_cast<int>(host), &endpoint, endpoint.connect(others.back()->endpoint.name()),
                    port.name, RankReplica(*images, rank, size, 77, "there"), nullptr}));
            }
        }
        packets = std::make_unique<ReliableStream>(mine, kToken, remotes, [](RemoteRank &, const ControlMessage &) {});
        heartbeat = std::make_unique<Heartbeat>(0, kSilenceMs, remotes, *packets, log);
        heartbeat->watch(hosts);
    }
    void work() {
        endpoint.poll();
        packets->pump();
    }
    void round() {
        now += kRoundNs;
        heartbeat->tick(now);
        work();
    }
};

void two_hosts_that_are_lost_at_once_are_lost_as_a_whole(void **) {
    Job job({{0}, {1, 2}, {3, 4}});
    job.round();
    const int64_t begin = job.now;
    while (!job.remotes[1]->gone) {
        job.round();
        assert_true(job.now - begin <= kSilenceNs + kRoundNs);  // though none of them has received the request
    }
    assert_true(job.now - begin > kSilenceNs);
    for (size_t rank = 2; rank < job.remotes.size(); ++rank) {
        assert_true(job.remotes[rank]->gone);
    }
    const std::string mate = job.remotes[2]->replica.block().error_text;
    assert_true(mate.find("nothing has been heard from it for ") == 0);
    assert_true(mate.find(", and from rank 1 of its host for 4.2 s") != std::string::npos);
    job.log.deliver();
    assert_int_equal(job.warnings.size(), 2);  // one a host, though each has two ranks
    for (size_t i = 0; i < 2; ++i) {
        const std::string first_words = formatted("rank {} (host there, pid 77) has not answered for ", 2 * i + 1);
        const std::string last_words = formatted(" ms; after {} ms it counts as lost", kSilenceMs);
        assert_true(job.warnings[i].find(first_words) != std::string::npos);
        assert_true(job.warnings[i].find(last_words) != std::string::npos);
    }
}

// Rank 2 does not answer; rank 1 does each second, so it is silent when rank 2 is lost, but not for long.
void a_rank_that_answers_late_is_not_lost_with_a_silent_one(void **) {
    Job job({{0}, {1, 2}});
    job.remotes[2]->replica.block().doorbell.waiters.store(1);  // rank 0 waits for it
    for (int rounds = 0; !job.remotes[2]->gone; ++rounds) {
        if (rounds % 4 == 0) {
            job.remotes[1]->silent_since_ns = 0;  // what a packet from it does
        }
        job.round();
        assert_true(rounds * kRoundNs <= 3 * kSilenceNs);
        assert_false(job.remotes[1]->gone);
    }
    assert_string_equal(job.remotes[2]->replica.block().error_text, "nothing has been heard from it for 4.2 s");
}

void silence_counts_from_a_question_that_has_left(void **) {
    Job job({{0}, {1}});
    RemoteRank &remote = *job.remotes[1];
    job.round();
    for (const int64_t begin = job.now; job.now - begin < kSilenceNs * 3 / 4;) {
        job.round();
        assert_false(job.packets->delivered(remote));
    }
    const int64_t end = now_ns() + kTimeoutNs;
    while (!job.packets->delivered(remote)) {
        assert_true(now_ns() < end);
        job.work();
        job.others[0]->work();
        sched_yield();
    }
    job.round();
    const int64_t begin = job.now;
    while (!remote.gone) {
        job.round();
        job.others[0]->work();
        assert_true(job.now - begin <= kSilenceNs + kRoundNs);
    }
    assert_true(job.now - begin > kSilenceNs);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(two_hosts_that_are_lost_at_once_are_lost_as_a_whole),
        cmocka_unit_test(a_rank_that_answers_late_is_not_lost_with_a_silent_one),
        cmocka_unit_test(silence_counts_from_a_question_that_has_left),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
