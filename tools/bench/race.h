// SPDX-License-Identifier: Apache-2.0
// `odc bench` on one host: an operation of libodc compared with the bare loop that moves the same bytes between the same ranks,
// on the same buffers of the caller.
#pragma once

#include "bench/group.h"
#include "bench/limit.h"
#include "bench/operation.h"
#include "bench/rounds.h"
#include "rank/statistics.h"

#include <odc/odc.h>

#include <cstdint>
#include <string>
#include <vector>

namespace odc_tool {

struct RaceResult {
    struct Other {
        MedianInterval seconds;
        MedianInterval ratio;  // speed of libodc / its speed
    };

    uint64_t repeats;
    MedianInterval seconds;        // of one operation of libodc
    MedianInterval limit_seconds;  // of one of the bare loop
    MedianInterval ratio;          // speed of libodc / speed of the bare loop, pair by pair
    MedianInterval self_ratio;     // the bare loop / itself
    std::vector<Other> others;
    Disturbance disturbance;
};

struct SyncResult {
    MedianInterval usec;
    MedianInterval limit_usec;  // of a barrier of the group
    Disturbance disturbance;
};

// Runs `pairs` rounds in random order on all ranks together, and repeats disturbed ones; `others` take part, too.
RaceResult race(Group &group, const Contestant &odc, const Contestant &bare, const std::vector<Contestant> &others,
                int pairs, uint64_t repeats);

// A timing is of one `operate`, a synchronization, from the moment when all ranks are ready.
SyncResult race_sync(Group &group, const Contestant &odc, int pairs);

// The bare loops.
class BareGather {
public:
    static size_t shared_bytes(const Tensor &tensor) { return tensor.bytes(); }

    // `gather` checks the copied bytes.
    BareGather(Group &group, const Tensor &tensor, const Gather &gather);
    Contestant contestant();
    // Tries the loops and keeps the fastest.
    std::string choose();

private:
    Group &group_;
    const Tensor &tensor_;
    const Gather &gather_;
    Copy copy_ = Copy::Memcpy;
};

class BareAddition {
public:
    static size_t shared_bytes(const Tensor &tensor, int ranks, Sums sums);

    BareAddition(Group &group, const Tensor &tensor, Sums sums);
    Contestant contestant();
    std::string choose();

private:
    std::byte *sums(int rank) const;
    BareLock *locks(int rank) const;
    void add(int owner);
    void check();

    Group &group_;
    const Tensor &tensor_;
    Sums kind_;
    uint64_t stripe_bytes_;
    uint64_t additions_ = 0;  // by this rank since the sums were zeroed
};

// The number of repeats with which one timing takes `timing_seconds`, long compared with the clock and the barrier.
uint64_t choose_repeats(Group &group, const Contestant &bare, double timing_seconds, uint64_t least, uint64_t most);

}  // namespace odc_tool
