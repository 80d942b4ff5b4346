// SPDX-License-Identifier: Apache-2.0
// The messages between ranks of different hosts: what local peers would read in shared memory, and the messages of additions.
// Little-endian structs, each behind its kind and length; reliable_stream cuts a stream of them into packets.
#pragma once

#include "base/program.h"
#include "memory/control_block.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace odc {

// A shard is registered. `record`: offset of its shard record in the owner's arena; may be that of a released shard.
struct RegisteredMessage {
    uint64_t record;
    uint64_t minibatch;
    uint64_t numel;
    uint64_t slice_numel;
    uint64_t address;  // of the slice's parameters, for RMA with `key`
    uint64_t key;
    int32_t parameter_type;
    int32_t gradient_type;
    int32_t summation;       // ODC_SUM_EXACT or 0
    int32_t first_exponent;  // of exact sums
    int32_t memory;          // odc_memory; without GPUDirect RMA goes to the host shadow of a slice in GPU memory
    std::string name;
    std::vector<int32_t> ranks;
    std::vector<uint64_t> slices;
};
struct ReleasedMessage {
    uint64_t record;
};
struct PublishedMessage {
    uint64_t record;
    uint64_t minibatch;
    uint64_t reductions;  // odc_all_reduce calls that the sender made before
    int32_t vote;         // for the exponent of exact sums (ExponentVote)
    int32_t unused;
};
// All shards that the sender has registered and not released are published, and none has exact sums.
struct AllPublishedMessage {
    uint64_t minibatch;
    uint64_t reductions;
};
// A rank's arrival in a collective call, as it tells it itself or as another passes it on.
struct Arrival {
    int32_t rank;
    Call call;            // Sync or AllReduce
    uint64_t broadcasts;  // that this rank has sent before (is_broadcast), and that are applied first
    int64_t age_ns;       // since it arrived, when this was sent: clocks of two hosts are not comparable
    double speed;         // in a sync: as the rank measured its own; 0: not yet
    Contribution values;
};
struct ArrivedMessage {
    static constexpr size_t kMost = 7;  // with values below the longest text
    uint64_t number;                    // of the call: syncs and odc_all_reduce are counted together, from 0
    std::vector<Arrival> arrivals;
};
struct LeftMessage {
    uint64_t minibatch;
};
struct FailedMessage {
    int32_t status;
    std::string text;
};
// A ping, its answer, or both. A pong also acknowledges all messages that came before the ping.
struct HeartbeatMessage {
    uint64_t ping;   // its number; 0: none
    uint64_t pong;   // the number of the ping that this answers; 0: none
    uint64_t known;  // with a ping: arrivals of the receiver that the sender has heard of
};
// A rank of the sender's host has died or called exec without leaving or failing first.
struct DeadMessage {
    int32_t rank;
    Ending ending;
};
// The owner can read `count` gradients, or sums of gradients, at the sender and add them to its slice from element `first` on.
struct AddMessage {
    uint64_t operation;
    uint64_t record;
    uint64_t generation;  // the current minibatch plus one
    uint64_t first;
    uint64_t count;
    uint64_t address;
    uint64_t key;
    int32_t exponent;  // of exact sums to which gradients are added
    uint32_t addends;  // as in RemoteSlice
    uint64_t clamped;  // addends of these sums that were clamped
};
// The owner has added `count` more elements of the sender's operation.
struct AppliedMessage {
    uint64_t operation;
    uint64_t count;
};
// The sender asks rank 0 for the next of `count` items.
struct ClaimMessage {
    uint64_t claim;
    uint64_t minibatch;
    uint64_t count;
};
// What rank 0 answers (ClaimedItem).
struct ClaimedMessage {
    uint64_t claim;
    uint64_t index;
    uint64_t count;
};
// The sender's last message, unless it failed. Both last messages are answered by an AckMessage, after which the sender
// closes its endpoint.
struct GoodbyeMessage {};
struct AckMessage {};

using ControlMessage = std::variant<RegisteredMessage, ReleasedMessage, PublishedMessage, ArrivedMessage, LeftMessage,
                                    FailedMessage, HeartbeatMessage, AddMessage, AppliedMessage, GoodbyeMessage,
                                    AckMessage, AllPublishedMessage, DeadMessage, ClaimMessage, ClaimedMessage>;

// Whether it is of those that each rank of another host gets and must have applied before it sees the sender's next arrival.
inline bool is_broadcast(const ControlMessage &message) {
    return std::holds_alternative<RegisteredMessage>(message) || std::holds_alternative<AllPublishedMessage>(message);
}

std::string encode(const ControlMessage &message);
// Removes the first message from `stream`; empty if it is not complete yet. Throws ODC_ERROR_INTERNAL if the bytes are not
// control messages of a job of `size` ranks.
std::optional<ControlMessage> decode(std::string_view *stream, int size);

}  // namespace odc
