// SPDX-License-Identifier: Apache-2.0
// What this rank tells the ranks of other hosts: what those of this host read in shared memory. Where all ranks are on this
// host nothing is told.
#pragma once

#include "transport/fabric/control_message.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace odc {

class ClaimRequest;
class Fabric;

class ControlChannel {
public:
    explicit ControlChannel(Fabric *fabric) : fabric_(fabric) {}  // NULL: all ranks are on this host

    // To all of them, or to those of `ranks` (empty: all) that are on other hosts.
    void tell(const ControlMessage &message);
    void tell(const ControlMessage &message, const std::vector<int32_t> &ranks);
    // As soon as `word`, which a stream writes, is `value` or more. What is told after that comes after it.
    void tell_when(const std::atomic<uint64_t> &word, uint64_t value, const ControlMessage &message,
                   const std::vector<int32_t> &ranks);
    // Whether there are ranks on other hosts.
    bool has_others() const { return fabric_ != nullptr; }
    // To all of them, of which there are some, with where each can read the slice.
    void tell_registered(const RegisteredMessage &message);
    // Asks rank 0, which is on another host, for one of `count` items.
    std::shared_ptr<ClaimRequest> claim(uint64_t minibatch, uint64_t count);
    // The job has failed: ends what is under way from and to other hosts.
    void fail(const FailedMessage &message);
    // After `fail`: returns when all have been told, or after a quarter of a second.
    void await_failed();
    // The process may end after this: what was told has been heard, if the peers can hear.
    void flush();

    uint64_t packets_sent() const;

private:
    Fabric *fabric_;
};

}  // namespace odc
