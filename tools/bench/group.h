// SPDX-License-Identifier: Apache-2.0
// The ranks of a benchmark beside libodc: memory that all of them map, a barrier in it, and a stopwatch that starts and stops
// for all ranks together. The bare loops move their bytes through this memory.
#pragma once

#include <odc/odc.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace odc_tool {

class Group {
public:
    // Collective, between sync and publish: uses odc_all_reduce. `bytes` are the same on all ranks, which must share this host.
    Group(odc_context *context, size_t bytes);
    // If it is destroyed by an exception, the other ranks' waits end with an error.
    ~Group();
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    std::byte *memory() const { return memory_; }  // initially zero
    uint64_t seed() const;                         // random, the same on all ranks

    // Called by all ranks once each owner has touched its part: a limit should not suffer from small pages.
    void use_large_pages();
    void barrier();
    // Never sleeps: the least cost of a barrier of all ranks.
    void spin_barrier();
    // The sum over the ranks, the same on all of them.
    double sum(double mine);
    // All ranks call `work` together; returns the seconds from the first rank's start to the last one's end, the same on all
    // ranks.
    double time(const std::function<void()> &work);
    // For work of microseconds: all ranks spin until the same moment, from which time is measured.
    double time_from_one_moment(const std::function<void()> &work);

private:
    struct Control;

    void check_deadline(std::chrono::steady_clock::time_point deadline) const;
    void wait_for_all(uint32_t turn);
    double slowest(int64_t begin_ns);

    int rank_;
    int size_;
    size_t mapped_bytes_;
    std::byte *memory_;
    Control *control_;
};

}  // namespace odc_tool
