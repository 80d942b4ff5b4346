// SPDX-License-Identifier: Apache-2.0
// The contestants of `odc bench` and how they are measured: an operation of libodc against the bare loop that moves the
// same bytes between the same ranks, on the same buffers of the caller.
#pragma once

#include "bench_group.h"
#include "bench_limit.h"
#include "bench_statistics.h"

#include <odc/odc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace odc_tool {

// One way to do the operation. A timing is: `prepare`, one operation untimed, `repeats` timed ones, `finish`.
struct Contestant {
    std::function<void()> prepare;
    std::function<void()> operate;
    std::function<void()> finish;
};

struct RaceResult {
    uint64_t repeats;
    MedianInterval seconds;        // of one operation of libodc
    MedianInterval limit_seconds;  // of one of the bare loop
    MedianInterval ratio;          // speed of libodc / speed of the bare loop, pair by pair
    MedianInterval self_ratio;     // the bare loop / itself
};

// `pairs` rounds in random order on all ranks together.
RaceResult race(Group &group, const Contestant &odc, const Contestant &bare, int pairs, uint64_t repeats);

// What libodc and the bare loop have in common: the shard's layout and the caller's full-size buffer.
class Tensor {
public:
    Tensor(odc_context *context, uint64_t bytes, odc_type type);

    uint64_t first(int rank) const { return std::min(static_cast<uint64_t>(rank) * chunk_, numel_); }
    uint64_t count(int rank) const { return first(rank + 1) - first(rank); }
    uint64_t chunk() const { return chunk_; }
    uint64_t numel() const { return numel_; }
    uint64_t bytes() const { return numel_ * element_bytes(type_); }
    odc_type type() const { return type_; }
    std::byte *full() const { return full_.get(); }
    std::byte *full_at(int rank) const { return full() + first(rank) * element_bytes(type_); }

private:
    struct Free {
        void operator()(std::byte *memory) const { std::free(memory); }
    };

    odc_type type_;
    uint64_t numel_;
    uint64_t chunk_;
    std::unique_ptr<std::byte, Free> full_;
};

class GatherRace {
public:
    static size_t shared_bytes(const Tensor &tensor) { return tensor.bytes(); }

    GatherRace(odc_context *context, Group &group, const Tensor &tensor);
    Contestant odc();
    Contestant bare();
    // Tries the bare loops and keeps the fastest.
    std::string choose_limit();

private:
    void check_full() const;

    Group &group_;
    const Tensor &tensor_;
    odc_shard *shard_ = nullptr;
    Copy copy_ = Copy::Memcpy;
};

class AddRace {
public:
    static size_t shared_bytes(const Tensor &tensor, int ranks);

    AddRace(odc_context *context, Group &group, const Tensor &tensor);
    Contestant odc();
    Contestant bare();
    std::string choose_limit();
    // After sync: this rank's sums against what libodc was told to add.
    void check_slice() const;
    // More additions in one minibatch than this could round an f32 sum.
    uint64_t most_repeats() const;

private:
    std::byte *sums(int rank) const;
    BareLock *locks(int rank) const;
    void check_sums(const void *sums, uint64_t additions) const;

    odc_context *context_;
    Group &group_;
    const Tensor &tensor_;
    odc_shard *shard_ = nullptr;
    uint64_t stripe_bytes_;
    uint64_t additions_ = 0;  // by this rank since the sums were last zero
};

// How often to repeat an operation so that one timing lasts long against the clock and the barrier.
uint64_t choose_repeats(Group &group, const Contestant &bare, uint64_t least, uint64_t most);

}  // namespace odc_tool
