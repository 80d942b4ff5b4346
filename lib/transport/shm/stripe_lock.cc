// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/stripe_lock.h"

#include <algorithm>

#include "base/deadline.h"
#include "base/element_type.h"
#include "base/error.h"
#include "base/futex.h"
#include "memory/exact_kernels.h"
#include "memory/host_kernels.h"

namespace odc {

namespace {

constexpr uint32_t kSleepers = uint32_t{1} << 31;  // a flag beside the holder's rank + 1; a free lock is 0
constexpr int kSpins = 200;                        // about as long as adding a stripe takes, at most
static_assert(kSleepers == 0x80000000);            // pinned as in bootstrap/shared_layouts.cc

}  // namespace

uint64_t stripe_count(uint64_t accumulator_bytes) { return (accumulator_bytes + kStripeBytes - 1) / kStripeBytes; }

uint64_t stripe_count(const RemoteSlice &slice) {
    return stripe_count(slice.numel * sum_size(slice.gradient_type, slice.summation));
}

uint64_t stripe_elements(const RemoteSlice &slice) {
    return kStripeBytes / sum_size(slice.gradient_type, slice.summation);
}

bool try_lock(Stripe &stripe, int rank) {
    uint32_t free = 0;
    return stripe.lock.compare_exchange_strong(free, static_cast<uint32_t>(rank) + 1, std::memory_order_acquire);
}

void unlock(Stripe &stripe) {
    if (stripe.lock.exchange(0, std::memory_order_release) & kSleepers) {
        futex_wake(stripe.lock);
    }
}

StripeLock::StripeLock(Stripe &stripe, int rank, WaitHook &hook) : stripe_(stripe) {
    const uint32_t mine = static_cast<uint32_t>(rank) + 1;
    for (int spin = 0; spin < kSpins; ++spin) {
        if (try_lock(stripe_, rank)) {
            return;
        }
        spin_pause();
    }
    // A thread that slept cannot tell whether others still sleep, so it takes the lock with kSleepers set.
    const int64_t begin = now_ns();
    for (;;) {
        uint32_t seen = stripe_.lock.load(std::memory_order_relaxed);
        if (seen == 0) {
            if (stripe_.lock.compare_exchange_weak(seen, mine | kSleepers, std::memory_order_acquire)) {
                break;
            }
            continue;
        }
        if ((seen & kSleepers) == 0 &&
            !stripe_.lock.compare_exchange_weak(seen, seen | kSleepers, std::memory_order_relaxed)) {
            continue;
        }
        futex_wait(stripe_.lock, seen | kSleepers, 20);
        hook.check(static_cast<int>(seen & ~kSleepers) - 1, begin);
    }
    hook.count_wait(now_ns() - begin);
}

namespace {

void add_exactly_to_stripe(const RemoteSlice &to, Stripe &stripe, Sum sum, uint64_t first, const std::byte *from,
                           uint64_t count) {
    if (sum == Sum::Store) {
        stripe.addends = 0;
        stripe.not_finite = 0;
    }
    const uint32_t addends = stripe.addends + std::max(to.addends, uint32_t{1});
    if (addends > kMostExactAddends) {
        stripe.addends = kMostExactAddends + 1;
        return;
    }
    stripe.addends = static_cast<uint16_t>(addends);
    auto *sums = reinterpret_cast<int64_t *>(to.accumulator) + first;
    if (to.addends > 0) {
        stripe.not_finite |= add_exact_sums(sum, sums, from, count) ? 1 : 0;
        return;
    }
    const Found found = stripe.not_finite != 0 ? Found::Any : Found::Finite;
    const Special special = add_exactly(sum, found, to.gradient_type, to.exponent, sums, from, count, to.numel);
    if (special.not_finite > 0) {
        stripe.not_finite = 1;
    }
    if (special.clamped > 0) {
        to.clamped->fetch_add(special.clamped, std::memory_order_relaxed);
    }
}

}  // namespace

void add_to_stripe(const RemoteSlice &to, uint64_t index, const std::byte *from, uint64_t generation) {
    const uint64_t first = index * stripe_elements(to);
    const uint64_t count = std::min(stripe_elements(to), to.numel - first);
    Stripe &stripe = to.stripes[index];
    const Sum sum = stripe.generation >= generation ? Sum::Add : Sum::Store;
    if (to.summation == ODC_SUM_EXACT) {
        add_exactly_to_stripe(to, stripe, sum, first, from, count);
    } else {
        std::byte *sums = to.accumulator + first * element_size(accumulator_type(to.gradient_type));
        const int32_t type = to.addends > 0 ? accumulator_type(to.gradient_type) : to.gradient_type;
        add_elements(sum, type, sums, from, count, to.numel);
    }
    stripe.generation = generation;
}

}  // namespace odc
