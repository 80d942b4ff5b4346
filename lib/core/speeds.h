// SPDX-License-Identifier: Apache-2.0
// Ranks' times of arrival and their speeds, which every rank reads in every sync: so those of a host's ranks stand side by side
// (control_block.h).
#pragma once

#include "core/job.h"

#include <atomic>
#include <cstdint>
#include <vector>

namespace odc {

class Arrivals {
public:
    explicit Arrivals(Job &job);

    std::atomic<int64_t> &at_ns(int rank, uint64_t minibatch) {
        const Measured &measured = measured_[static_cast<size_t>(rank)];
        return measured.block->arrived_at_ns[minibatch % 2][measured.index];
    }
    // Begins to fetch the times that ranks beside this one have stored.
    void prefetch(int rank, uint64_t minibatch) { __builtin_prefetch(&at_ns(rank, minibatch)); }

    // As the rank measured its own until it arrived; 0: not yet.
    double speed(int rank, uint64_t minibatch) const {
        return speed_of(rank, minibatch).load(std::memory_order_relaxed);
    }
    // If nobody reports costs, nothing is stored, so the cache line stays in all ranks' caches.
    void set_speed(int rank, uint64_t minibatch, double speed) {
        if (this->speed(rank, minibatch) != speed) {
            speed_of(rank, minibatch).store(speed, std::memory_order_relaxed);
        }
    }

private:
    std::atomic<double> &speed_of(int rank, uint64_t minibatch) const {
        const Measured &measured = measured_[static_cast<size_t>(rank)];
        return measured.block->speeds[minibatch % 2][measured.index];
    }

    struct Measured {
        ControlBlock *block;
        size_t index;
    };
    std::vector<Measured> measured_;  // by rank
};

// This rank's speed: the cost that it reports, per second between its first publish and its arrival, less what it waited for
// others' publishes; a moving average.
class SpeedMeter {
public:
    void report(double cost) { cost_ = cost; }
    // At a minibatch's first publish.
    void begin(int64_t now_ns, uint64_t wait_ns) { began_ = {now_ns, wait_ns}; }
    // At the arrival that ends it. Returns the speed; 0: no cost has been reported yet.
    double end(int64_t now_ns, uint64_t wait_ns);

private:
    struct Time {
        int64_t now_ns;
        uint64_t wait_ns;
    };
    Time began_{};
    double cost_ = 0;
    double speed_ = 0;
};

}  // namespace odc
