// SPDX-License-Identifier: Apache-2.0
// How bytes and sums reach a peer. A transport says whether it works on this machine and reaches a given peer, and if
// not, why not; a path to one peer reads slices and adds into accumulators. Both are started and completed: a path
// that moves the bytes on the caller's thread has nothing left to complete.
#pragma once

#include "post.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace odc {

// Wakes a path that waits: throws when the job has failed or the wait has lasted too long.
class Alarm {
public:
    virtual ~Alarm() = default;
    // `holder`: the rank that is waited for.
    virtual void check(int holder) = 0;
};

// One owner's slice, as it lies in this host's memory.
struct RemoteSlice {
    std::byte *parameters;
    std::byte *accumulator;
    Stripe *stripes;
    uint64_t numel;
    int32_t parameter_type;
    int32_t gradient_type;
};

class Path {
public:
    virtual ~Path() = default;
    // Reads the whole slice into `to`. The owner has published it.
    virtual void start_get(const RemoteSlice &from, void *to) = 0;
    // Adds the slice's part of a gradient, each element once. `filled`: the running minibatch plus one. Returns the
    // time spent waiting for others' additions, in nanoseconds.
    virtual int64_t start_add(const RemoteSlice &to, const void *from, uint64_t filled, Alarm &alarm) = 0;
    // Returns when everything started is done: bytes here, sums applied at the owner.
    virtual void complete(Alarm &alarm) = 0;
};

struct Transport {
    const char *name;
    // Empty: works on this machine. Else why not, in words.
    std::string (*why_not)();
    // Empty: reaches a rank on the host of this identity (topology.h).
    std::string (*why_not_host)(const std::string &identity);
    std::unique_ptr<Path> (*reach)(int my_rank);
};

}  // namespace odc
