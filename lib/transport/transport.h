// SPDX-License-Identifier: Apache-2.0
// How bytes and sums reach a peer: a path to one peer reads slices and adds into accumulators. Both are started and
// completed: what a path does on the caller's thread is complete at once, what it leaves to the progress thread is a
// transfer.
#pragma once

#include "base/element_type.h"
#include "memory/shard_record.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace odc {

// Wakes a path that waits: throws when the job has failed or the wait has lasted too long.
class WaitHook {
public:
    virtual ~WaitHook() = default;
    // `holder`: the rank that is waited for, `since_ns`: since when.
    virtual void check(int holder, int64_t since_ns) = 0;
};

enum class MemoryKind { Host, Gpu };

// One owner's slice: as it lies in this host's memory, or where another host's can be read.
struct RemoteSlice {
    std::byte *parameters;
    std::byte *accumulator;
    Stripe *stripes;
    uint64_t numel;
    int32_t parameter_type;
    int32_t gradient_type;
    const std::atomic<uint64_t> *published;  // of its post
    uint64_t record;                         // offset of its post in the owner's arena
    uint64_t address;                        // of the parameters, for remote reads with `key`
    uint64_t key;
    uint64_t first = 0;                    // element of the owner's slice where this begins
    MemoryKind memory = MemoryKind::Host;  // where the parameters and the accumulator are
};

// `count` elements of a slice of another host, from element `first` on.
inline RemoteSlice part_of(const RemoteSlice &slice, uint64_t first, uint64_t count) {
    RemoteSlice part = slice;
    part.numel = count;
    part.address += first * element_size(slice.parameter_type);
    part.first += first;
    return part;
}

// A gather from, or an addition to, one owner that the progress thread completes; it rings the owner's bell then.
class Request {
public:
    explicit Request(int owner) : owner_(owner) {}
    int owner() const { return owner_; }
    // Bytes are here, or sums applied at the owner.
    bool done() const { return state_.load(std::memory_order_acquire) == State::Done; }
    // Done, or given up: nothing touches the caller's buffer any more.
    bool settled() const { return state_.load(std::memory_order_acquire) != State::InFlight; }

    void finish() { settle(State::Done); }
    void give_up() { settle(State::GivenUp); }

private:
    enum class State { InFlight, Done, GivenUp };
    void settle(State state) {
        State in_flight = State::InFlight;
        state_.compare_exchange_strong(in_flight, state, std::memory_order_acq_rel);
    }
    int owner_;
    std::atomic<State> state_{State::InFlight};
};

class Endpoint {
public:
    virtual ~Endpoint() = default;
    // Reads the whole slice, which the owner has published, into `to`. NULL: it is there. `epoch`, here and below: the
    // running minibatch plus one.
    virtual std::shared_ptr<Request> start_get(const RemoteSlice &from, void *to, uint64_t epoch) = 0;
    // The same as soon as the owner has published it. NULL: nobody would see that; ask again then.
    virtual std::shared_ptr<Request> expect_get(const RemoteSlice &from, void *to, uint64_t epoch) = 0;
    // Adds the slice's part of a gradient, each element once. Time spent waiting for others' additions is added to
    // *waited_ns. NULL: it is added.
    virtual std::shared_ptr<Request> start_add(const RemoteSlice &to, const void *from, uint64_t epoch, WaitHook &hook,
                                               int64_t *waited_ns) = 0;
    // Asks to give up a read: it is settled soon.
    virtual void cancel(const std::shared_ptr<Request> &request) = 0;
};

}  // namespace odc
