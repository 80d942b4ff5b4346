// SPDX-License-Identifier: Apache-2.0
// What a context asks of the engine that keeps its shards: one for each kind of memory (engines.h).
#pragma once

#include "core/shard.h"
#include "memory/control_block.h"
#include "transport/transport.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace odc {

class Job;

// A gather or an addition that has been started.
struct Operation {
    struct Gather {
        std::byte *to;
        std::vector<uint64_t> unread = {};  // owners whose slices nobody has begun to read
        std::vector<uint64_t> cached = {};  // those whose slices come by the node cache
        size_t copied = 0;                  // how many of `cached` are copied
    };
    struct ScatterAdd {
        const std::byte *from;
        bool added = false;  // all that this rank does is done, or enqueued; what others do is in flight
    };
    struct InFlight {
        uint64_t index;  // of the owner
        std::shared_ptr<Request> request;
    };

    Shard *shard;
    void *stream;  // the caller's, for shards in device memory
    std::variant<Gather, ScatterAdd> kind;
    bool started_only = false;  // odc_wait or sync finishes it, which may be called again
    std::vector<InFlight> in_flight = {};
    std::unique_ptr<EngineState> engine_state = {};

    Call call() const { return std::holds_alternative<Gather>(kind) ? Call::Gather : Call::ScatterAdd; }
    // Where the slice of an owner begins in the caller's buffer.
    std::byte *target(uint64_t index) const;
    const std::byte *gradient(uint64_t index) const;
    // What is awaited of an owner whose part is in flight, for an error.
    std::string in_flight_text(const Job &job, int owner) const;
};

// Keeps shards in one kind of memory, and moves bytes and sums from and to those of other ranks.
class Engine {
public:
    Engine() = default;
    virtual ~Engine() = default;
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    // Gives memory to shards that no rank has seen: to all of them or to none.
    virtual void attach(const std::vector<Shard *> &shards) = 0;
    // Says what is enqueued and may still use the shards' memory; empty: nothing.
    virtual std::string still_enqueued() = 0;
    // Takes a shard's memory back.
    virtual void detach(Shard &shard) = 0;
    // Where the slice of another rank begins here; none: its memory has not come yet, ask again.
    virtual std::optional<Shard::Bases> map(const Shard &shard, int rank, const ShardRecord &record) = 0;
    virtual void unmap(const Shard &shard, uint64_t index) = 0;

    // Throws if this engine's shards cannot be published on the stream. Called before anything is published on it.
    virtual void check_stream(void *stream) const = 0;
    // Lets the ranks of this host see the own slice, now or when the stream comes there. Rings no doorbell.
    virtual void publish(Shard &shard, void *stream) = 0;
    // Tells the ranks of other hosts as soon as the slice is published.
    virtual void tell_published(Shard &shard) = 0;
    // Once this rank has published the shard and told so: begins what its host's ranks are likely to want of others.
    virtual void read_ahead(Shard &shard) = 0;

    // Does what needs no wait for a peer. After an error the operation is to be cancelled.
    virtual void start(Operation &operation) = 0;
    // Waits for the rest. After an error without a job error it may be called again.
    virtual void finish(Operation &operation) = 0;
    // Returns when nothing touches the caller's buffer any more. `look` is called now and then; if it throws, the operation
    // is to be cancelled again.
    virtual void cancel(Operation &operation, const std::function<void()> &look) = 0;

    // This rank adds nothing more to the shard in this minibatch. `started`: its additions to it that it has started and not waited
    // for. Waits for nobody.
    virtual void end_additions(Shard &shard, const std::vector<Operation *> &started) = 0;
    // Completes the operations that this rank has started on its shards, and all that peers may rely on once it has arrived.
    virtual void before_arrival(const std::vector<Operation *> &started) = 0;
    // Completes this rank's sums once all ranks have arrived. After an interruption it is called again.
    virtual void after_arrival() = 0;

    // Bytes of host memory that the engine keeps page-locked.
    virtual uint64_t pinned_bytes() const = 0;
};

// Whether a rank of another host lists the shard.
bool has_remote_owner(const Job &job, const Shard &shard);
// What such an owner is told once this rank's slice is published.
PublishedMessage published_message(const Job &job, const Shard &shard);

}  // namespace odc
