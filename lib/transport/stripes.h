// SPDX-License-Identifier: Apache-2.0
// The locks of an accumulator. A lock whose holder died is never taken again: its stripe is half added to, and who
// waits for it learns of the death from its alarm.
#pragma once

#include "transport.h"

namespace odc {

uint64_t stripe_count(uint64_t accumulator_bytes);

class StripeLock {
public:
    // Waits, sounding `alarm` at least every 20 ms; adds the time slept to *waited_ns.
    StripeLock(Stripe &stripe, int rank, Alarm &alarm, int64_t *waited_ns);
    ~StripeLock();
    StripeLock(const StripeLock &) = delete;
    StripeLock &operator=(const StripeLock &) = delete;

private:
    Stripe &stripe_;
};

}  // namespace odc
