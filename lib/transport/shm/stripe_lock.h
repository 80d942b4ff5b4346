// SPDX-License-Identifier: Apache-2.0
// The locks of an accumulator, and additions under them. The lock of a dead holder is never taken over, because its stripe
// may be half added to; waiters learn of the death from their wait hook.
#pragma once

#include "transport/transport.h"

#include <string>
#include <string_view>

namespace odc {

uint64_t stripe_count(uint64_t accumulator_bytes);
uint64_t stripe_count(const RemoteSlice &slice);
// Elements in each stripe but the last.
uint64_t stripe_elements(const RemoteSlice &slice);

// Without waiting; true if the lock was taken.
bool try_lock(Stripe &stripe, int rank);
void unlock(Stripe &stripe);

class StripeLock {
public:
    // Waits, asking the hook at least every 20 ms, which counts the time slept.
    StripeLock(Stripe &stripe, int rank, WaitHook &hook);
    // Takes over the lock of a stripe that try_lock has locked.
    explicit StripeLock(Stripe &locked) : stripe_(locked) {}
    ~StripeLock() { unlock(stripe_); }
    StripeLock(const StripeLock &) = delete;
    StripeLock &operator=(const StripeLock &) = delete;

private:
    Stripe &stripe_;
};

// Adds stripe `index` of a gradient, which begins at `from`; the caller holds the stripe's lock. `generation`: the minibatch
// plus one. Exact sums that can take no more are left as they are, which Stripe::addends tells their owner.
void add_to_stripe(const RemoteSlice &to, uint64_t index, const std::byte *from, uint64_t generation);

}  // namespace odc
