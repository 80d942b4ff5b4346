// SPDX-License-Identifier: Apache-2.0
// Barriers and timing of the benchmark's ranks.
#include "bench/group.h"

#include "bench/memory.h"
#include "cli/exit.h"
#include "rank/clock.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <exception>
#include <random>
#include <thread>

namespace odc_tool {

namespace {

using std::chrono::steady_clock;

constexpr auto kDeadline = std::chrono::seconds(600);
constexpr uint32_t kSpins = 2000;

long futex(std::atomic<uint32_t> &word, int operation, uint32_t value, const timespec *timeout) {
    return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

// With more ranks than processors, or for long, spinning keeps other ranks from working.
void give_way(int size, uint32_t spins) {
    static const int processors = static_cast<int>(std::thread::hardware_concurrency());
    if (size > processors || spins > kSpins) {
        sched_yield();
    }
}

}  // namespace

struct Group::Control {
    struct alignas(64) OfRank {
        int64_t begin_ns;
        int64_t end_ns;
        double summand;
    };

    alignas(64) std::atomic<uint32_t> arrived;
    alignas(64) std::atomic<uint32_t> turn;  // counts barriers; a futex
    alignas(64) std::atomic<uint32_t> spin_arrived;
    std::atomic<uint32_t> failed;
    uint64_t seed;
    int64_t moment_ns;
    OfRank ranks[1];  // one per rank
};

Group::Group(odc_context *context, size_t bytes) : rank_(odc_rank(context)), size_(odc_size(context)) {
    static_assert(sizeof(Control) == 256 && sizeof(Control::OfRank) == 64 && offsetof(Control::OfRank, summand) == 16);
    static_assert(offsetof(Control, turn) == 64 && offsetof(Control, spin_arrived) == 128 &&
                  offsetof(Control, failed) == 132 && offsetof(Control, seed) == 136 &&
                  offsetof(Control, moment_ns) == 144 && offsetof(Control, ranks) == 192);
    const size_t memory_lines = (bytes + 63) / 64 * 64;
    mapped_bytes_ = memory_lines + sizeof(Control) + static_cast<size_t>(size_) * sizeof(Control::OfRank);
    memory_ = share_memory(context, mapped_bytes_);
    control_ = reinterpret_cast<Control *>(memory_ + memory_lines);
    if (rank_ == 0) {
        std::random_device device;
        control_->seed = (uint64_t{device()} << 32) | device();
    }
    barrier();
}

Group::~Group() {
    if (std::uncaught_exceptions() > 0) {
        control_->failed.store(1, std::memory_order_relaxed);
        control_->turn.fetch_add(1, std::memory_order_release);
        futex(control_->turn, FUTEX_WAKE, INT_MAX, nullptr);
    }
    unshare_memory(memory_, mapped_bytes_);
}

uint64_t Group::seed() const { return control_->seed; }

void Group::use_large_pages() {
    barrier();
    if (rank_ == 0) {
        gather_into_large_pages(memory_, mapped_bytes_);
    }
    barrier();
}

void Group::barrier() {
    const uint32_t turn = control_->turn.load(std::memory_order_relaxed);
    if (control_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < static_cast<uint32_t>(size_)) {
        wait_for_all(turn);
    } else {
        control_->arrived.store(0, std::memory_order_relaxed);
        control_->turn.fetch_add(1, std::memory_order_release);
        futex(control_->turn, FUTEX_WAKE, INT_MAX, nullptr);
    }
    check_deadline(steady_clock::time_point::max());
}

// Throws when a rank failed, or did not come before the deadline.
void Group::check_deadline(steady_clock::time_point deadline) const {
    if (control_->failed.load(std::memory_order_relaxed) != 0) {
        throw Exit{1, ""};  // the rank that failed reports the reason
    }
    if (steady_clock::now() > deadline) {
        throw Exit{1, fmt::format("a rank did not come to the benchmark's barrier in {} s", kDeadline.count())};
    }
}

void Group::wait_for_all(uint32_t turn) {
    const auto deadline = steady_clock::now() + kDeadline;
    for (uint32_t spins = 0; control_->turn.load(std::memory_order_acquire) == turn; ++spins) {
        if (spins < kSpins) {
            continue;
        }
        const timespec wait = {0, 100'000'000};
        futex(control_->turn, FUTEX_WAIT, turn, &wait);
        check_deadline(deadline);
    }
}

void Group::spin_barrier() {
    const auto size = static_cast<uint32_t>(size_);
    const uint32_t mine = control_->spin_arrived.fetch_add(1, std::memory_order_acq_rel);
    const uint32_t all = (mine / size + 1) * size;
    const auto deadline = steady_clock::now() + kDeadline;
    for (uint32_t spins = 1; static_cast<int32_t>(control_->spin_arrived.load(std::memory_order_acquire) - all) < 0;
         ++spins) {
        give_way(size_, spins);
        if (spins % kSpins == 0) {
            check_deadline(deadline);
        }
    }
}

double Group::sum(double mine) {
    barrier();
    control_->ranks[rank_].summand = mine;
    barrier();
    double sum = 0;
    for (int rank = 0; rank < size_; ++rank) {
        sum += control_->ranks[rank].summand;
    }
    return sum;
}

double Group::time(const std::function<void()> &work) {
    barrier();
    const int64_t begin = now_ns();
    work();
    return slowest(begin);
}

double Group::time_from_one_moment(const std::function<void()> &work) {
    barrier();
    if (rank_ == 0) {
        control_->moment_ns = now_ns() + 50'000;
    }
    spin_barrier();
    const int64_t moment = control_->moment_ns;
    while (now_ns() < moment) {
        give_way(size_, 0);
    }
    work();
    return slowest(moment);
}

double Group::slowest(int64_t begin_ns) {
    control_->ranks[rank_].begin_ns = begin_ns;
    control_->ranks[rank_].end_ns = now_ns();
    barrier();
    int64_t first = INT64_MAX;
    int64_t last = INT64_MIN;
    for (int rank = 0; rank < size_; ++rank) {
        first = std::min(first, control_->ranks[rank].begin_ns);
        last = std::max(last, control_->ranks[rank].end_ns);
    }
    return static_cast<double>(last - first) * 1e-9;
}

}  // namespace odc_tool
