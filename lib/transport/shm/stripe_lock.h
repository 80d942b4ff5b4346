// SPDX-License-Identifier: Apache-2.0
// The locks of an accumulator, and additions under them. A lock whose holder died is never taken again: its stripe is
// half added to, and who waits for it learns of the death from its wait hook.
#pragma once

#include "transport/transport.h"

namespace odc {

uint64_t stripe_count(uint64_t accumulator_bytes);
// Elements in each stripe but the last.
uint64_t stripe_elements(int32_t gradient_type);

// For who may not wait. True: taken, to be unlocked.
bool try_lock(Stripe &stripe, int rank);
void unlock(Stripe &stripe);

class StripeLock {
public:
    // Waits, sounding `wait hook` at least every 20 ms; adds the time slept to *waited_ns.
    StripeLock(Stripe &stripe, int rank, WaitHook &hook, int64_t *waited_ns);
    ~StripeLock() { unlock(stripe_); }
    StripeLock(const StripeLock &) = delete;
    StripeLock &operator=(const StripeLock &) = delete;

private:
    Stripe &stripe_;
};

// Adds the gradients of stripe `index`, which begin at `from`, under its lock. `epoch`: the running minibatch plus one.
void add_to_stripe(const RemoteSlice &to, uint64_t index, const std::byte *from, uint64_t epoch);

}  // namespace odc
