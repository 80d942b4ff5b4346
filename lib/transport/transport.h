// SPDX-License-Identifier: Apache-2.0
// The interface of transports: an endpoint reads slices of one peer and adds into its accumulators. A transport completes a
// call on the caller's thread, or returns a request that its progress thread completes.
#pragma once

#include "base/element_type.h"
#include "memory/shard_record.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace odc {

// Called by endpoints while they wait; throws if the job has failed or the wait has lasted too long.
class WaitHook {
public:
    virtual ~WaitHook() = default;
    // `holder`: the rank that the endpoint waits for; `since_ns`: since when.
    virtual void check(int holder, int64_t since_ns) = 0;
};

enum class MemoryKind { Host, Gpu };

// One owner's slice: mapped in this process, or on another host and reached by RMA.
struct RemoteSlice {
    std::byte *parameters;
    std::byte *accumulator;
    Stripe *stripes;
    uint64_t numel;
    int32_t parameter_type;
    int32_t gradient_type;
    const std::atomic<uint64_t> *published;  // in its shard record
    uint64_t record;                         // offset of its shard record in the owner's arena
    uint64_t address;                        // of the parameters, for RMA with `key`
    uint64_t key;
    uint64_t first = 0;                    // the element of the owner's slice where this part begins
    MemoryKind memory = MemoryKind::Host;  // where the parameters and the accumulator are
};

// `count` elements from element `first` on of another host's slice.
inline RemoteSlice part_of(const RemoteSlice &slice, uint64_t first, uint64_t count) {
    RemoteSlice part = slice;
    part.numel = count;
    part.address += first * element_size(slice.parameter_type);
    part.first += first;
    return part;
}

// A get from or an add to one owner that the progress thread completes; it then rings the doorbell in the owner's control
// block.
class Request {
public:
    explicit Request(int owner) : owner_(owner) {}
    int owner() const { return owner_; }
    // The bytes have arrived, or the owner has applied the sums.
    bool is_complete() const { return state_.load(std::memory_order_acquire) == State::Complete; }
    // Neither complete nor cancelled: the transport may access the caller's buffer.
    bool is_pending() const { return state_.load(std::memory_order_acquire) == State::Pending; }

    void complete() { end(State::Complete); }
    void cancel() { end(State::Cancelled); }

private:
    enum class State { Pending, Complete, Cancelled };
    void end(State state) {
        State pending = State::Pending;
        state_.compare_exchange_strong(pending, state, std::memory_order_acq_rel);
    }
    int owner_;
    std::atomic<State> state_{State::Pending};
};

class Endpoint {
public:
    virtual ~Endpoint() = default;
    // Reads the whole slice, which the owner has published, into `to`. NULL: it is complete. `epoch`, here and below: the
    // current minibatch plus one.
    virtual std::shared_ptr<Request> start_get(const RemoteSlice &from, void *to, uint64_t epoch) = 0;
    // The same for a slice that is not published yet: reads it once it is. NULL: not supported; call start_get then.
    virtual std::shared_ptr<Request> expect_get(const RemoteSlice &from, void *to, uint64_t epoch) = 0;
    // Adds the slice's part of a gradient, each element once. Adds the time spent waiting for locks to *waited_ns. NULL: it is
    // complete.
    virtual std::shared_ptr<Request> start_add(const RemoteSlice &to, const void *from, uint64_t epoch, WaitHook &hook,
                                               int64_t *waited_ns) = 0;
    // Requests that a get be cancelled; soon afterwards it is no longer pending.
    virtual void cancel(const std::shared_ptr<Request> &request) = 0;
};

}  // namespace odc
