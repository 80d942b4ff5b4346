// SPDX-License-Identifier: Apache-2.0
// How GPU memory that a rank registers reaches its local peers: each has an IPC channel, whose other end they were handed when
// they met. A rank that computes reads its IPC channel later; until then the kernel, and then the sender, keeps what is in it.
#pragma once

#include "base/fd.h"

#include <cstdint>
#include <deque>
#include <optional>

namespace odc {

// A region of GPU memory in the mail.
struct RegionMessage {
    uint64_t from;
    uint64_t number;  // among the sender's, from 1
    uint64_t bytes;
    uint64_t minibatch;  // in which it was registered
};

// The receiving end.
class IpcChannel {
public:
    IpcChannel();
    // What others send by; stays this one's.
    int slot() const { return slot_.get(); }

    struct Delivery {
        RegionMessage message;
        Fd memory;  // invalid: this process has too many descriptors open
    };
    std::optional<Delivery> take();

private:
    Fd receiving_;
    Fd slot_;
};

// The sending end, to one local peer. Calls must not overlap.
class IpcSender {
public:
    explicit IpcSender(Fd slot) : slot_(std::move(slot)) {}
    bool valid() const { return slot_.valid(); }
    void send(const RegionMessage &message, const Fd &memory);
    // True: all has been sent, or its reader is gone.
    bool flush();
    // Its reader has no room for it.
    bool is_behind() const { return !waiting_.empty(); }

private:
    bool post(const RegionMessage &message, int memory);

    struct Waiting {
        RegionMessage message;
        Fd memory;
    };
    Fd slot_;
    std::deque<Waiting> waiting_;
};

}  // namespace odc
