// SPDX-License-Identifier: Apache-2.0
// What a rank tells a rank of another host: each word that local peers would read in its shared memory, and the messages
// of additions. Fixed little-endian structs, each behind its kind and length; a stream of them is cut into packets.
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

// A shard is registered. `record`: where its post lies in the owner's arena; the place of a released one is used again.
struct PostMessage {
    uint64_t record;
    uint64_t minibatch;
    uint64_t numel;
    uint64_t slice_numel;
    uint64_t address;  // of the slice's parameters, for remote reads with `key`
    uint64_t key;
    int32_t parameter_type;
    int32_t gradient_type;
    int32_t memory;  // odc_memory; of a GPU's the replica is read, and added to
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
};
// All that the sender has registered and not released: one word, however many shards there are.
struct AllPublishedMessage {
    uint64_t minibatch;
};
struct ArrivedMessage {
    uint64_t minibatch;
    Contribution values;
};
// The values of the odc_all_reduce of this number, from 0.
struct ReducedMessage {
    uint64_t number;
    Contribution values;
};
struct LeftMessage {
    uint64_t minibatch;
};
struct FailedMessage {
    int32_t status;
    std::string text;
};
// "I am here, and have heard all that you said before."
struct HeartbeatMessage {
    uint64_t question;  // to be answered by a pulse; 0: none
    uint64_t answer;    // to the question of this number; 0: to none
};
// A rank of the sender's host has died or called exec, and said nothing before.
struct DeadMessage {
    int32_t rank;
    Ending ending;
};
// `count` gradients, from element `first` of the owner's slice on, can be read at the sender and added.
struct AddMessage {
    uint64_t operation;
    uint64_t record;
    uint64_t epoch;  // the minibatch plus one
    uint64_t first;
    uint64_t count;
    uint64_t address;
    uint64_t key;
};
// The owner has added `count` more elements of the sender's operation.
struct AppliedMessage {
    uint64_t operation;
    uint64_t count;
};
// The sender's last word; answered by a HeardNotice, after which it closes its endpoint.
struct ByeMessage {};
struct HeardMessage {};

using ControlMessage = std::variant<PostMessage, ReleasedMessage, PublishedMessage, ArrivedMessage, ReducedMessage,
                                    LeftMessage, FailedMessage, HeartbeatMessage, AddMessage, AppliedMessage,
                                    ByeMessage, HeardMessage, AllPublishedMessage, DeadMessage>;

std::string encode(const ControlMessage &message);
// Takes the first notice off `stream`; empty while it is not there as a whole. Throws ODC_ERROR_INTERNAL when these are
// no control messages of a job of `size` ranks.
std::optional<ControlMessage> decode(std::string_view *stream, int size);

}  // namespace odc
