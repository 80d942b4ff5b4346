// SPDX-License-Identifier: Apache-2.0
// Arrivals in syncs and reductions between hosts of any number and size: messages come late and in any order between two pairs of ranks, ranks are stopped.
// The test is the network.
#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "memory/shard_record.h"
#include "memory/shared_arena.h"
#include "transport/fabric/arrival_exchange.h"

extern "C" {
#include <cmocka.h>
}

using namespace odc;

namespace {

constexpr int64_t kHourNs = 3'600'000'000'000;

uint64_t seed() {
    const char *given = std::getenv("ODC_TEST_SEED");
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("seed: ODC_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return seed;
}

double value_of(int rank, uint64_t number) { return 1000.0 * rank + static_cast<double>(number); }

struct Job {
    struct Rank {
        Rank(int rank, size_t its_host) : number(rank), host(its_host) {}
        int number;
        size_t host;
        ControlBlock block{};
        std::shared_ptr<Arena> replicas{Arena::create()};
        std::vector<std::unique_ptr<RemoteRank>> remotes;
        std::unique_ptr<ArrivalExchange> exchange;
        uint64_t ended = 0;  // collective calls
        uint64_t told = 0;   // broadcasts, of which registrations:
        uint64_t registered = 0;
        std::vector<uint64_t> registered_before;  // its arrivals
        uint64_t sent = 0;                        // messages, in the last call
        bool stopped = false;
    };
    std::mt19937_64 random;
    std::vector<Call> calls;  // the collective calls of each rank
    std::vector<std::vector<int>> hosts;
    std::vector<std::unique_ptr<Rank>> ranks;
    std::vector<std::vector<std::deque<std::string>>> wire;  // [from][to]

    // Ranks are dealt out to the hosts in any order.
    Job(const std::vector<size_t> &sizes, uint64_t seed) : random(seed), hosts(sizes.size()) {
        for (int number = 0; number < 8; ++number) {
            calls.push_back(random() % 2 == 0 ? Call::Sync : Call::AllReduce);
        }
        std::vector<size_t> host_of;
        for (size_t host = 0; host < sizes.size(); ++host) {
            host_of.insert(host_of.end(), sizes[host], host);
        }
        std::shuffle(host_of.begin(), host_of.end(), random);
        const size_t size = host_of.size();
        for (size_t rank = 0; rank < size; ++rank) {
            hosts[host_of[rank]].push_back(static_cast<int>(rank));
            ranks.push_back(std::make_unique<Rank>(static_cast<int>(rank), host_of[rank]));
        }
        wire.assign(size, std::vector<std::deque<std::string>>(size));
        for (const auto &one : ranks) {
            one->replicas->allocate_record(64);  // number 0 means no record
            for (const auto &other : ranks) {
                one->remotes.push_back(
                    other->host == one->host
                        ? nullptr
                        : std::make_unique<RemoteRank>(
                              RemoteRank{other->number,
                                         static_cast<int>(other->host),
                                         nullptr,
                                         0,
                                         {},
                                         RankReplica(*one->replicas, other->number, static_cast<int>(size), 7, "there"),
                                         nullptr}));
            }
            std::vector<const ControlBlock *> local_blocks;
            for (const int rank : hosts[one->host]) {
                local_blocks.push_back(&ranks[static_cast<size_t>(rank)]->block);
            }
            one->exchange =
                std::make_unique<ArrivalExchange>(one->number, one->remotes, hosts, local_blocks,
                                                  [this, one = one.get()](RemoteRank &to, const std::string &bytes) {
                                                      send(*one, static_cast<size_t>(to.rank), bytes);
                                                      ++one->sent;
                                                  });
        }
    }

    size_t size() const { return ranks.size(); }
    void send(const Rank &from, size_t to, const std::string &bytes) {
        wire[static_cast<size_t>(from.number)][to].push_back(bytes);
    }
    void tell_all(const Rank &from) {  // as a rank that leaves
        for (const auto &to : ranks) {
            if (to->host != from.host) {
                send(from, static_cast<size_t>(to->number), from.exchange->own_arrivals_since(0));
            }
        }
    }
    void tell_others(Rank &from, const ControlMessage &message) {
        for (const auto &other : ranks) {
            if (other->host != from.host) {
                send(from, static_cast<size_t>(other->number), encode(message));
            }
        }
        ++from.told;
    }
    const ControlBlock &block_at(const Rank &at, const Rank &of) const {
        return at.host == of.host ? of.block : at.remotes[static_cast<size_t>(of.number)]->replica.block();
    }
    uint64_t arrived(const Rank &at, const Rank &of) const {
        const ControlBlock &block = block_at(at, of);
        return block.arrived.load() + block.reductions.load();
    }
    bool has_ended(const Rank &at) const {
        return std::all_of(ranks.begin(), ranks.end(), [&](const auto &of) { return arrived(at, *of) > at.ended; });
    }
    uint64_t calls_before(uint64_t number, Call call) const {
        return static_cast<uint64_t>(std::count(calls.begin(), calls.begin() + static_cast<ptrdiff_t>(number), call));
    }

    // What a rank does from its last collective call to its arrival in the next.
    void arrive(Rank &one) {
        const uint64_t syncs = one.block.arrived.load();
        const uint64_t reductions = one.block.reductions.load();
        for (uint64_t more = random() % 3, i = 0; i < more; ++i) {
            RegisteredMessage registered{};
            registered.record = ++one.registered;
            registered.name = "a";
            tell_others(one, registered);
        }
        if (calls[one.ended] == Call::Sync && random() % 2 == 0) {
            tell_others(one, AllPublishedMessage{syncs, reductions});
        }
        one.registered_before.push_back(one.registered);
        const bool is_sync = calls[one.ended] == Call::Sync;
        const size_t parity = (is_sync ? syncs : reductions) % 2;
        const int64_t now = now_ns();
        Contribution &brought = (is_sync ? one.block.synced : one.block.reduced)[parity];
        brought = {1, ODC_SUM, 0, 0, {value_of(one.number, one.ended)}};
        const double speed = is_sync ? 0.5 + one.number : 0;
        if (is_sync) {
            const std::vector<int> &mates = hosts[one.host];
            const auto index = static_cast<size_t>(std::find(mates.begin(), mates.end(), one.number) - mates.begin());
            ControlBlock &first = ranks[static_cast<size_t>(mates[index / kTreeFan * kTreeFan])]->block;
            first.arrived_at_ns[parity][index % kTreeFan].store(now);
            first.speeds[parity][index % kTreeFan].store(speed);
        }
        one.block.broadcasts[one.ended % 2] = one.told;
        (is_sync ? one.block.arrived : one.block.reductions).fetch_add(1);
        one.exchange->arrive(one.ended, {one.number, calls[one.ended], one.told, 0, speed, brought}, now);
    }

    void handle(Rank &at, size_t from, const ControlMessage &message) {
        if (const auto *arrived = std::get_if<ArrivedMessage>(&message)) {
            at.exchange->on_message(*arrived);
        } else if (const auto *registered = std::get_if<RegisteredMessage>(&message)) {
            at.remotes[from]->replica.apply(*registered);
        } else if (const auto *published = std::get_if<AllPublishedMessage>(&message)) {
            at.remotes[from]->replica.apply(*published);
        } else {
            at.exchange->answer(*at.remotes[from], std::get<HeartbeatMessage>(message).known);
        }
    }
    // Delivers what was sent first from `from` to `to`; false if there is nothing.
    bool deliver(size_t from, size_t to) {
        Rank &at = *ranks[to];
        std::deque<std::string> &messages = wire[from][to];
        if (messages.empty() || at.stopped) {
            return false;
        }
        std::string_view rest = messages.front();
        while (const auto message = decode(&rest, static_cast<int>(size()))) {
            handle(at, from, *message);
        }
        messages.pop_front();
        for (const auto &of : ranks) {
            check_view(at, *of);
        }
        return true;
    }
    static uint64_t registered(const Rank &at, const ControlBlock &block) {
        uint64_t count = 0;
        for (uint64_t record = block.first_record.load(); record != 0; ++count) {
            record = reinterpret_cast<const ShardRecord *>(at.replicas->record(record))->next.load();
        }
        return count;
    }
    // What `at` sees of a rank.
    void check_view(const Rank &at, const Rank &of) const {
        const uint64_t count = arrived(at, of);
        if (at.host == of.host || count == 0) {
            return;
        }
        const ControlBlock &block = block_at(at, of);
        assert_true(count <= of.registered_before.size());
        assert_true(registered(at, block) >= of.registered_before[count - 1]);
        assert_int_equal(block.arrived.load(), calls_before(count, Call::Sync));
        // In the minibatch that this sync ends, after all its reductions.
        if (const uint64_t opened = block.opened.load()) {
            const auto sync = std::find_if(calls.begin(), calls.end(), [left = opened](Call call) mutable {
                return call == Call::Sync && --left == 0;
            });
            assert_true(block.reductions.load() >=
                        static_cast<uint64_t>(std::count(calls.begin(), sync, Call::AllReduce)));
        }
        if (count <= at.ended) {
            return;  // what it brought to a call that has ended may be overwritten
        }
        const bool is_sync = calls[count - 1] == Call::Sync;
        const size_t parity = calls_before(count - 1, calls[count - 1]) % 2;
        const Contribution &brought = (is_sync ? block.synced : block.reduced)[parity];
        assert_true(brought.count == 1 && brought.op == ODC_SUM);
        assert_true(brought.values[0] == value_of(of.number, count - 1));
        if (is_sync) {
            assert_true(block.speeds[parity][0].load() == 0.5 + of.number);
            assert_true(block.arrived_at_ns[parity][0].load() <= now_ns());
        }
    }
    bool deliver_any() {
        bool any = false;
        for (size_t from = 0; from < size(); ++from) {
            for (size_t to = 0; to < size(); ++to) {
                any = deliver(from, to) || any;
            }
        }
        for (const auto &one : ranks) {
            any = (!one->stopped && one->exchange->pump()) || any;
        }
        return any;
    }

    // Independent of what is tested: a rank tells, of each host at a distance of 1, 2, 4 ..., the ranks of its own index, of
    // that plus the number of ranks here, and so on.
    uint64_t messages_of_a_call(const Rank &one) const {
        const std::vector<int> &mates = hosts[one.host];
        uint64_t messages = 0;
        for (size_t distance = 1; distance < hosts.size(); distance *= 2) {
            const std::vector<int> &there = hosts[(one.host + distance) % hosts.size()];
            for (size_t index = 0; index < there.size(); ++index) {
                messages += mates[index % mates.size()] == one.number;
            }
        }
        return messages;
    }
};

std::vector<size_t> any_sizes(std::mt19937_64 &random) {
    if (random() % 8 == 0) {
        return std::vector<size_t>(12 + random() % 30, 1);
    }
    std::vector<size_t> sizes(2 + random() % 9);
    for (size_t &one : sizes) {
        one = 1 + random() % 4;
    }
    if (random() % 4 == 0) {
        sizes[random() % sizes.size()] = 17 + random() % 4;  // more than a node of a host's tree
    }
    return sizes;
}

void all_learn_all_and_few_messages_are_sent(void **) {
    constexpr uint64_t kCalls = 8;
    std::mt19937_64 random(seed());
    for (int round = 0; round < 60; ++round) {
        Job job(any_sizes(random), random());
        size_t ended = 0;
        for (const auto &one : job.ranks) {
            job.arrive(*one);
        }
        while (ended < job.size()) {
            Job::Rank &one = *job.ranks[random() % job.size()];
            if (random() % 4 == 0) {
                one.exchange->pump();
            } else {
                job.deliver(random() % job.size(), static_cast<size_t>(one.number));
            }
            if (one.ended == kCalls || !job.has_ended(one)) {
                continue;
            }
            one.exchange->pump();
            assert_true(one.exchange->is_done(one.ended));
            assert_false(one.exchange->awaits_host());
            assert_int_equal(one.sent, job.messages_of_a_call(one));
            one.sent = 0;
            if (++one.ended == kCalls) {
                ++ended;
            } else {
                job.arrive(one);
            }
        }
    }
}

// Wherever a rank is stopped on the way, at most its own arrival stays unknown.
void a_stopped_rank_keeps_back_no_arrival_but_its_own(void **) {
    std::mt19937_64 random(seed());
    for (int round = 0; round < 100; ++round) {
        Job job(any_sizes(random), random());
        Job::Rank &stopped = *job.ranks[random() % job.size()];
        const bool comes = random() % 4 != 0;
        const int64_t begin = now_ns();
        for (const auto &one : job.ranks) {
            if (comes || one.get() != &stopped) {
                job.arrive(*one);
            }
        }
        for (uint64_t steps = random() % (4 * job.size()); steps > 0; --steps) {
            const size_t to = random() % job.size();
            job.deliver(random() % job.size(), to);
            job.ranks[to]->exchange->pump();
        }
        stopped.stopped = true;
        for (int asked = 0; asked < 2; ++asked) {
            while (job.deliver_any()) {
            }
            for (const auto &one : job.ranks) {
                assert_true(one->stopped || one->exchange->overdue(begin).empty());  // not so soon
                for (RemoteRank *missing : one->stopped ? std::vector<RemoteRank *>()
                                                        : one->exchange->overdue(now_ns() + kHourNs * (asked + 1))) {
                    job.send(*one, static_cast<size_t>(missing->rank),
                             encode(HeartbeatMessage{1, 0, missing->replica.known_arrivals()}));
                }
            }
        }
        for (const auto &at : job.ranks) {
            for (const auto &of : job.ranks) {
                assert_true(at->stopped || of->stopped || job.arrived(*at, *of) == 1);
            }
        }
    }
}

// Both for a rank that leaves.
void all_are_told_at_once_and_hearing_twice_changes_nothing(void **) {
    Job job({1, 2, 3}, seed());
    for (const auto &one : job.ranks) {
        job.arrive(*one);
    }
    for (int times = 0; times < 2; ++times) {
        for (const auto &one : job.ranks) {
            job.tell_all(*one);
        }
        while (job.deliver_any()) {
        }
        for (const auto &one : job.ranks) {
            assert_true(job.has_ended(*one));
        }
    }
}

// Rank 3 is behind: it has heard of neither of two arrivals of a rank that leaves within the second call.
void a_rank_that_leaves_tells_of_two_arrivals(void **) {
    Job job({1, 1, 1, 1}, seed());
    for (const auto &one : job.ranks) {
        job.arrive(*one);
    }
    Job::Rank &leaver = *job.ranks[0];
    leaver.ended = 1;
    job.arrive(leaver);
    std::erase_if(job.wire[0][3], [](const std::string &bytes) {
        std::string_view rest = bytes;
        return std::holds_alternative<ArrivedMessage>(*decode(&rest, 4));
    });
    job.tell_all(leaver);
    while (job.deliver(0, 3)) {
    }
    assert_int_equal(job.arrived(*job.ranks[3], leaver), 2);
}

void what_no_rank_of_a_job_sends_is_refused(void **) {
    Job job({2, 2}, 1);
    Job::Rank &one = *job.ranks[0];
    const auto refuses = [&](uint64_t number, int32_t rank, const char *why) {
        try {
            one.exchange->on_message(ArrivedMessage{number, {{rank, Call::Sync, 0, 0, 0, Contribution{}}}});
            return false;
        } catch (const Error &error) {
            return error.status() == ODC_ERROR_INTERNAL && std::string(error.what()).find(why) != std::string::npos;
        }
    };
    assert_true(refuses(0, -1, "tells of the arrival of rank -1"));
    assert_true(refuses(0, 4, "tells of the arrival of rank 4"));
    assert_true(refuses(0, 0, "tells of the arrival of rank 0"));
    const int other = job.hosts[1 - one.host][0];
    assert_true(refuses(1, other, "has arrived in its collective call 1, but not in its call 0"));
    assert_false(refuses(0, other, ""));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(all_learn_all_and_few_messages_are_sent),
        cmocka_unit_test(a_stopped_rank_keeps_back_no_arrival_but_its_own),
        cmocka_unit_test(all_are_told_at_once_and_hearing_twice_changes_nothing),
        cmocka_unit_test(a_rank_that_leaves_tells_of_two_arrivals),
        cmocka_unit_test(what_no_rank_of_a_job_sends_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
