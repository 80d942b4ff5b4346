// SPDX-License-Identifier: Apache-2.0
// What odc_get_stats and odc_get_peer_stats tell. Relaxed counters: cheap enough to be always on, and read from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace odc {

class Counter {
public:
    void add(uint64_t count) { value_.fetch_add(count, std::memory_order_relaxed); }
    // For a counter that one thread at a time adds to.
    void add_alone(uint64_t count) { value_.store(value() + count, std::memory_order_relaxed); }
    void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
    void subtract(uint64_t count) { value_.fetch_sub(count, std::memory_order_relaxed); }
    uint64_t value() const { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<uint64_t> value_{0};
};

struct PeerCounters {
    Counter publish_wait_ns;
    Counter sync_late_ns;
    Counter sync_last;
};

struct Counters {
    explicit Counters(int size) : peers(static_cast<size_t>(size)) {}

    Counter gather_calls;
    Counter gather_bytes;
    Counter scatter_add_calls;
    Counter scatter_add_bytes;
    Counter syncs;
    Counter publish_wait_ns;
    Counter sent_wait_ns;  // for this host's sums to be applied; in no statistic
    Counter sync_wait_ns;
    Counter lock_wait_ns;
    Counter slice_bytes;
    Counter served_bytes;
    Counter clamped_addends;
    Counter sync_last_rank;
    std::vector<PeerCounters> peers;  // by rank

    // How long this rank has waited within minibatches, computing nothing.
    uint64_t wait_ns() const { return publish_wait_ns.value() + sent_wait_ns.value(); }
};

}  // namespace odc
