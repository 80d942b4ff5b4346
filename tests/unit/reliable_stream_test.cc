// SPDX-License-Identifier: Apache-2.0
// Packets without the job token are dropped. An impossible packet of a member ends the job on both sides, with an error that
// describes it.
#include <sched.h>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "memory/shared_arena.h"
#include "transport/fabric/progress_thread.h"
#include "transport/fabric/reliable_stream.h"

extern "C" {
#include <cmocka.h>
}

using namespace odc;

namespace {

constexpr int64_t kTimeoutNs = 30'000'000'000;
constexpr Token kToken = {1, 2, 3};

// The layout in reliable_stream.cc.
struct Wire {
    Token token = kToken;
    int32_t rank = 1;
    uint32_t bytes = 0;
    uint64_t number = 0;
    uint64_t last_call[3] = {};
    char text[8000] = {};
};
constexpr size_t kHeaderBytes = offsetof(Wire, text);

FabricNic loopback() { return {"tcp;ofi_rxm", "lo", 4, {127, 0, 0, 1}}; }

void await(const std::function<bool()> &ready) {
    const int64_t end = now_ns() + kTimeoutNs;
    while (!ready()) {
        if (now_ns() > end) {
            throw Error(ODC_ERROR_TIMEOUT, "it did not come");
        }
        sched_yield();
    }
}

// Sends arbitrary bytes to another endpoint.
class Sender {
public:
    explicit Sender(const std::vector<std::byte> &to) : endpoint_(loopback(), nullptr), peer_(endpoint_.connect(to)) {}

    // `meanwhile`: called in a loop, for progress of the other side.
    void send(const Wire &wire, size_t bytes, const std::function<void()> &meanwhile) {
        Sent sent;
        await([&] {
            meanwhile();
            endpoint_.poll();
            return endpoint_.send(peer_, &wire, bytes, nullptr, sent);
        });
        await([&] {
            meanwhile();
            endpoint_.poll();
            return sent.done;
        });
    }

private:
    struct Sent final : OperationContext {
        bool done = false;
        void completed(size_t, const std::string &) override { done = true; }
    };
    FabricEndpoint endpoint_;
    fi_addr_t peer_;
};

Wire wire_of(const ControlMessage &message, uint64_t number) {
    Wire wire;
    const std::string text = encode(message);
    wire.bytes = static_cast<uint32_t>(text.size());
    wire.number = number;
    std::memcpy(wire.text, text.data(), text.size());
    return wire;
}

size_t size_of(const Wire &wire) { return kHeaderBytes + wire.bytes; }

constexpr uint64_t kUnknown = 666;  // throws

// Rank 0 of two; it receives from rank 1.
struct Listener {
    FabricEndpoint endpoint{loopback(), nullptr};
    std::shared_ptr<Arena> images{Arena::create()};
    ControlBlock mine{};
    std::vector<std::unique_ptr<RemoteRank>> remotes;
    std::vector<uint64_t> heard;
    std::unique_ptr<ReliableStream> packets;

    Listener() {
        images->allocate_record(64);  // number 0 means no record
        remotes.push_back(nullptr);
        remotes.push_back(std::make_unique<RemoteRank>(RemoteRank{
            1, 1, &endpoint, endpoint.connect(endpoint.name()), {}, RankReplica(*images, 1, 2, 77, "there"), nullptr}));
        packets = std::make_unique<ReliableStream>(
            mine, kToken, remotes, [this](RemoteRank &, const ControlMessage &message) {
                const uint64_t minibatch = std::get<LeftMessage>(message).minibatch;
                if (minibatch == kUnknown) {
                    throw Error(ODC_ERROR_INTERNAL, "it cannot be");
                }
                heard.push_back(minibatch);
            });
        packets->post_receives(endpoint);
    }
    void work() {
        endpoint.poll();
        packets->pump();
    }
};

void packets_without_the_job_token_are_dropped(void **) {
    Listener listener;
    Sender sender(listener.endpoint.name());
    const auto work = [&] { listener.work(); };
    const Wire right = wire_of(LeftMessage{7}, 0);
    std::vector<Wire> wrong(6, right);
    wrong[0].token[15] ^= 1;
    wrong[1].rank = 2;
    wrong[2].rank = -1;
    wrong[3].rank = 0;  // the listener's own rank
    ++wrong[4].bytes;
    --wrong[5].bytes;
    for (const Wire &one : wrong) {
        sender.send(one, size_of(right), work);
    }
    for (size_t bytes = 1; bytes < size_of(right); bytes += 5) {
        sender.send(right, bytes, work);
    }
    sender.send(right, sizeof(right), work);  // too long
    for (int i = 0; i < 200; ++i) {           // more than there are receives posted
        sender.send(wrong[0], sizeof(Wire), work);
    }
    assert_int_equal(listener.heard.size(), 0);
    sender.send(right, size_of(right), work);
    await([&] {
        listener.work();
        return !listener.heard.empty();
    });
    assert_int_equal(listener.heard[0], 7);
}

void packets_may_overtake_each_other(void **) {
    Listener listener;
    Sender sender(listener.endpoint.name());
    for (const uint64_t number : {2, 1, 3, 0}) {
        assert_int_equal(listener.heard.size(), 0);
        Wire wire = wire_of(LeftMessage{number}, number);
        wire.last_call[1] = number + 10;  // field: the minibatch
        sender.send(wire, size_of(wire), [&] { listener.work(); });
    }
    await([&] {
        listener.work();
        return listener.heard.size() == 4;
    });
    for (uint64_t number = 0; number < 4; ++number) {
        assert_int_equal(listener.heard[number], number);
    }
    assert_int_equal(listener.remotes[1]->replica.block().last_minibatch.load(), 13);  // from the last packet
}

void expect_fault(Listener &listener, const char *expected) {
    try {
        await([&] {
            listener.work();
            return false;
        });
    } catch (const Error &error) {
        assert_int_equal(error.status(), ODC_ERROR_INTERNAL);
        assert_non_null(std::strstr(error.what(), expected));
    }
}

void a_members_packet_that_is_repeated_lost_or_broken_is_a_fault(void **) {
    const auto nothing = [] {};
    {
        Listener listener;
        Sender sender(listener.endpoint.name());
        const Wire wire = wire_of(LeftMessage{7}, 0);
        sender.send(wire, size_of(wire), [&] { listener.work(); });
        await([&] {
            listener.work();
            return !listener.heard.empty();
        });
        sender.send(wire, size_of(wire), nothing);
        expect_fault(listener, "packet 0 of rank 1 came when 1 was next");
        assert_int_equal(listener.heard.size(), 1);
    }
    Wire late = wire_of(LeftMessage{7}, 300);
    Wire broken = wire_of(LeftMessage{7}, 0);
    broken.text[0] = 99;
    for (const auto &[wire, expected] : {std::pair(&late, "packet 300 of rank 1 came when 0 was next"),
                                         std::pair(&broken, "a message between hosts is broken")}) {
        Listener listener;
        Sender sender(listener.endpoint.name());
        // Connecting needs progress of both sides; the first packet is dropped.
        Wire strange = *wire;
        strange.token = {};
        sender.send(strange, size_of(strange), [&] { listener.work(); });
        sender.send(*wire, size_of(*wire), nothing);
        expect_fault(listener, expected);
    }
}

void messages_before_a_fault_are_processed_once(void **) {
    Listener listener;
    Sender sender(listener.endpoint.name());
    Wire wire = wire_of(LeftMessage{7}, 0);
    const std::string fault = encode(LeftMessage{kUnknown});
    std::memcpy(wire.text + wire.bytes, fault.data(), fault.size());
    wire.bytes += static_cast<uint32_t>(fault.size());
    int faults = 0;
    const auto work = [&] {
        try {
            listener.work();
        } catch (const Error &) {
            ++faults;
        }
    };
    sender.send(wire, size_of(wire), work);
    for (uint64_t number = 1; number < 100; ++number) {  // more than there are receives posted
        const Wire next = wire_of(LeftMessage{number + 7}, number);
        sender.send(next, size_of(next), work);
    }
    await([&] {
        work();
        return listener.heard.size() >= 100;
    });
    assert_int_equal(faults, 1);
    for (uint64_t i = 0; i < listener.heard.size(); ++i) {
        assert_int_equal(listener.heard[i], i + 7);
    }
}

void who_has_been_given_up_does_not_come_back(void **) {
    Listener listener;
    Sender sender(listener.endpoint.name());
    RemoteRank &remote = *listener.remotes[1];
    remote.mark_lost("it was silent");
    for (uint64_t number = 0; number < 200; ++number) {  // long enough for all but the last to arrive
        const Wire wire = wire_of(LeftMessage{number}, number);
        sender.send(wire, size_of(wire), [&] { listener.work(); });
    }
    assert_int_equal(listener.heard.size(), 0);
    remote.replica.apply(LeftMessage{7});
    remote.replica.apply(GoodbyeMessage{});
    assert_int_equal(remote.replica.block().state.load(), RankState::Lost);
    assert_string_equal(remote.replica.block().error_text, "it was silent");
}

// A rank with its progress thread.
struct Rank {
    ControlBlock block{};
    std::string warning;
    Log log{ODC_LOG_WARN, [](void *arg, int32_t, const char *line) { *static_cast<std::string *>(arg) = line; },
            &warning};
    std::unique_ptr<ProgressThread> thread;

    explicit Rank(int rank)
        : thread(std::make_unique<ProgressThread>(FabricConfig{rank, 2, &block, nullptr, 1 << 20, 60'000, &log},
                                                  std::vector<FabricNic>{loopback()})) {
        block.rank = rank;
    }
    const ControlBlock &image(int rank) const {
        return *reinterpret_cast<ControlBlock *>(thread->replicas()->record(thread->replica_offset(rank)));
    }
};

void both_sides_report_a_broken_packet(void **) {
    Rank zero(0);
    Rank one(1);
    const std::vector<std::vector<int>> hosts = {{0}, {1}};
    zero.thread->start(kToken, {{1, 1, 71, "b", 0, one.thread->name(0)}}, hosts, {});
    one.thread->start(kToken, {{0, 0, 70, "a", 0, zero.thread->name(0)}}, hosts, {});
    Sender sender(zero.thread->name(0));
    const Wire wrong = wire_of(LeftMessage{7}, 123456);
    sender.send(wrong, size_of(wrong), [] {});
    await([&] { return zero.image(1).state.load() != RankState::Running; });
    await([&] { return one.image(0).state.load() != RankState::Running; });
    const char *expected = "the progress thread of rank 0 ended: packet 123456 of rank 1 came when";
    assert_int_equal(zero.image(1).state.load(), RankState::Lost);
    assert_non_null(std::strstr(zero.image(1).error_text, expected));
    assert_int_equal(one.image(0).state.load(), RankState::Failed);
    assert_int_equal(one.image(0).error_status, ODC_ERROR_INTERNAL);
    assert_non_null(std::strstr(one.image(0).error_text, expected));
    await([&] {
        zero.log.deliver();
        return !zero.warning.empty();
    });
    assert_non_null(std::strstr(zero.warning.c_str(), "has lost all ranks of other hosts: "));
    assert_non_null(std::strstr(zero.warning.c_str(), expected));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(packets_without_the_job_token_are_dropped),
        cmocka_unit_test(packets_may_overtake_each_other),
        cmocka_unit_test(a_members_packet_that_is_repeated_lost_or_broken_is_a_fault),
        cmocka_unit_test(messages_before_a_fault_are_processed_once),
        cmocka_unit_test(who_has_been_given_up_does_not_come_back),
        cmocka_unit_test(both_sides_report_a_broken_packet),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
