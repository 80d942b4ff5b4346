// SPDX-License-Identifier: Apache-2.0
// How bytes and sums reach a peer: an endpoint reads one peer's slices and adds into its accumulators (README.md says how
// to add a transport). What it does on the caller's thread is complete when the call returns; what it leaves to a progress
// thread is a request.
#pragma once

#include "base/element_type.h"
#include "memory/shard_record.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace odc {

// Called by endpoints while they wait on the caller's thread, at least every 20 ms; throws if the job has failed or the wait
// has lasted too long.
class WaitHook {
public:
    virtual ~WaitHook() = default;
    // `holder`: the rank that the endpoint waits for; `since_ns`: since when.
    virtual void check(int holder, int64_t since_ns) = 0;

    void count_wait(int64_t ns) { waited_ns_ += ns; }
    int64_t waited_ns() const { return waited_ns_; }  // for other ranks' additions

private:
    int64_t waited_ns_ = 0;
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
    uint64_t first = 0;                        // the element of the owner's slice where this part begins
    MemoryKind memory = MemoryKind::Host;      // where the parameters and the accumulator are
    int32_t summation = 0;                     // ODC_SUM_EXACT or 0
    int32_t exponent = 0;                      // of exact sums, in the generation of an addition (exact_sum.h)
    std::atomic<uint64_t> *clamped = nullptr;  // counts the addends of exact sums that were clamped
    // For additions. 0: a gradient is added. Else sums of this many gradients (1 if nobody counts them) in the type in which the
    // owner sums; `were_clamped` of their addends were clamped.
    uint32_t addends = 0;
    uint64_t were_clamped = 0;
};

// Bytes of an element that is added to the slice.
inline size_t addend_size(const RemoteSlice &slice) {
    return slice.addends > 0 ? sum_size(slice.gradient_type, slice.summation) : element_size(slice.gradient_type);
}

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
    // Called once, on the thread that completes or cancels it, when the transport is done with the caller's buffer. Until it
    // returns the request is pending. May be empty.
    using OnEnd = std::function<void(bool complete)>;

    explicit Request(int owner, OnEnd on_end = {}) : owner_(owner), on_end_(std::move(on_end)) {}
    virtual ~Request() = default;
    int owner() const { return owner_; }
    // Requests that a get be cancelled; soon afterwards it is no longer pending. An addition goes on.
    virtual void cancel() = 0;
    // The bytes have arrived, or the owner has applied the sums.
    bool is_complete() const { return state_.load(std::memory_order_acquire) == State::Complete; }
    // A stream waits for this get, whether or not a thread does: if it is still pending at that time (now_ns()), or its owner is
    // gone, the progress thread cancels it. Then the job must fail, as bytes may still come into the buffer.
    void set_deadline(int64_t ns) { deadline_ns_.store(ns, std::memory_order_relaxed); }
    int64_t deadline_ns() const { return deadline_ns_.load(std::memory_order_relaxed); }  // 0: none
    // Neither complete nor cancelled: the transport may access the caller's buffer.
    bool is_pending() const { return state_.load(std::memory_order_acquire) <= State::Ending; }

    void complete() { end(State::Complete); }
    void set_cancelled() { end(State::Cancelled); }

private:
    enum class State { Pending, Ending, Complete, Cancelled };
    void end(State state) {
        State pending = State::Pending;
        if (!state_.compare_exchange_strong(pending, State::Ending, std::memory_order_acq_rel)) {
            return;
        }
        if (on_end_) {
            on_end_(state == State::Complete);
        }
        state_.store(state, std::memory_order_release);
    }
    int owner_;
    OnEnd on_end_;
    std::atomic<int64_t> deadline_ns_{0};
    std::atomic<State> state_{State::Pending};
};

// Of a get that nobody waits for yet: it goes behind those that are waited for. Somebody waits for it once `*wanted`, which stays
// mapped until the request ends, is at least `wanted_from`, or from the beginning where that is NULL; ControlBlock::wants of this
// rank is incremented then.
struct ReadAhead {
    const std::atomic<uint64_t> *wanted = nullptr;
    uint64_t wanted_from = 0;
    uint64_t order = 0;  // among those that nobody waits for: lower first

    bool is_wanted() const { return wanted == nullptr || wanted->load(std::memory_order_relaxed) >= wanted_from; }
};

struct GetOptions {
    Request::OnEnd on_end;  // of the request, if there is one
    ReadAhead ahead;
};

struct StartedGet {
    bool begun;                        // false: the owner has not published yet, and nobody here would see it do so
    std::shared_ptr<Request> request;  // of one that has begun; NULL: the bytes are there
};

class Endpoint {
public:
    virtual ~Endpoint() = default;
    // Reads the whole slice into `to` as the owner publishes it for `generation`, here and below: the running minibatch plus one.
    // Any endpoint begins what has been published; one with a progress thread also what has not.
    virtual StartedGet start_get(const RemoteSlice &from, void *to, uint64_t generation, GetOptions options) = 0;
    // Adds the slice's part of a gradient, each element once; the owner has published it. NULL: it is added. Whatever waits
    // for others' additions on this thread asks the hook.
    virtual std::shared_ptr<Request> start_add(const RemoteSlice &to, const void *from, uint64_t generation,
                                               WaitHook &hook) = 0;
};

// What a transport keeps for a whole job, such as a progress thread, and makes its endpoints from.
class EndpointFactory {
public:
    virtual ~EndpointFactory() = default;
    virtual std::unique_ptr<Endpoint> endpoint_to(int peer_rank) = 0;
};

// What the endpoint to one peer is made of.
struct EndpointParams {
    int my_rank;
    int peer_rank;
    EndpointFactory *other_hosts;  // NULL: all ranks are on this host
};

}  // namespace odc
