// SPDX-License-Identifier: Apache-2.0
// How GPU memory that a rank registers reaches its host mates: each has an inbox, whose other end they were handed when
// they met. A rank that computes reads its inbox later; until then the kernel, and then the sender, keeps what is in it.
#pragma once

#include "base/fd.h"

#include <cstdint>
#include <deque>
#include <optional>

namespace odc {

// A region of GPU memory in the mail.
struct RegionLetter {
    uint64_t from;
    uint64_t number;  // among the sender's, from 1
    uint64_t bytes;
    uint64_t minibatch;  // in which it was registered
};

// The receiving end.
class Inbox {
public:
    Inbox();
    // What others send by; stays this one's.
    int slot() const { return slot_.get(); }

    struct Delivery {
        RegionLetter letter;
        Fd memory;  // invalid: this process has too many descriptors open
    };
    std::optional<Delivery> take();

private:
    Fd receiving_;
    Fd slot_;
};

// The sending end, to one mate. Calls must not overlap.
class Outbox {
public:
    explicit Outbox(Fd slot) : slot_(std::move(slot)) {}
    bool valid() const { return slot_.valid(); }
    void send(const RegionLetter &letter, const Fd &memory);
    // True: all has been sent, or its reader is gone.
    bool flush();
    // Its reader has no room for it.
    bool is_behind() const { return !waiting_.empty(); }

private:
    bool post(const RegionLetter &letter, int memory);

    struct Waiting {
        RegionLetter letter;
        Fd memory;
    };
    Fd slot_;
    std::deque<Waiting> waiting_;
};

}  // namespace odc
