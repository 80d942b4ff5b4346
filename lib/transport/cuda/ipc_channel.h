// SPDX-License-Identifier: Apache-2.0
// Passes handles of GPU memory to local peers. Each rank has a channel whose sending end its local peers got in odc_init. A
// rank that computes receives later; until then the kernel, or the sender if the channel is full, queues the messages.
#pragma once

#include "base/fd.h"

#include <cstdint>
#include <deque>
#include <optional>

namespace odc {

// A region of GPU memory; its handle is attached.
struct RegionMessage {
    uint64_t from;
    uint64_t number;  // of the sender's regions, from 1
    uint64_t bytes;
    uint64_t minibatch;  // in which it was registered
};

// The receiving end.
class IpcChannel {
public:
    IpcChannel();
    // The sending end, to be passed to local peers; stays owned by this.
    int send_fd() const { return send_end_.get(); }

    struct Delivery {
        RegionMessage message;
        Fd memory;  // invalid: this process has too many open descriptors
    };
    std::optional<Delivery> receive();
    // Becomes readable when there is a message.
    int fd() const { return receive_end_.get(); }

private:
    Fd receive_end_;
    Fd send_end_;
};

// The sending end of one local peer's channel. Calls must not overlap.
class IpcSender {
public:
    explicit IpcSender(Fd send_end) : send_end_(std::move(send_end)) {}
    bool valid() const { return send_end_.valid(); }
    void send(const RegionMessage &message, const Fd &memory);
    // Sends queued messages; true if none is left, or the receiver is gone.
    bool flush();
    // The channel is full.
    bool is_blocked() const { return !waiting_.empty(); }

private:
    bool try_send(const RegionMessage &message, int memory);

    struct Waiting {
        RegionMessage message;
        Fd memory;
    };
    Fd send_end_;
    std::deque<Waiting> waiting_;
};

}  // namespace odc
