// SPDX-License-Identifier: Apache-2.0
// Tells the ranks of other hosts what those of this host read in shared memory. Does nothing where all ranks are on this host.
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

    // Sends a message to all ranks of other hosts, or to those of `ranks` (empty: all) that are on other hosts.
    void tell(const ControlMessage &message);
    void tell(const ControlMessage &message, const std::vector<int32_t> &ranks);
    // Sends the message once `word`, which a stream writes, is at least `value`. Later messages arrive after it.
    void tell_when(const std::atomic<uint64_t> &word, uint64_t value, const ControlMessage &message,
                   const std::vector<int32_t> &ranks);
    // Whether there are ranks on other hosts.
    bool has_others() const { return fabric_ != nullptr; }
    // Tells each rank of another host of a shard, and where it can read the slice. There must be such ranks.
    void tell_registered(const RegisteredMessage &message);
    // As in Fabric. For the first there must be such ranks.
    void arrive(uint64_t number, const Arrival &own, int64_t at_ns);
    void pass_on_arrivals(uint64_t number);
    void finish_arrivals(uint64_t number);
    uint64_t broadcasts() const { return broadcasts_; }
    void leave(const LeftMessage &message);
    // Asks rank 0, which is on another host, for one of `count` items.
    std::shared_ptr<ClaimRequest> claim(uint64_t minibatch, uint64_t count);
    // The job has failed: ends all gets and additions from and to other hosts.
    void fail(const FailedMessage &message);
    // After `fail`: returns once all ranks have been told, or after a quarter of a second.
    void await_failed();
    // Returns once the peers that still answer have received all messages; then the process may end.
    void flush();

    uint64_t packets_sent() const;
    uint64_t sent_bytes() const;  // of gradients that owners have applied

private:
    Fabric *fabric_;
    uint64_t broadcasts_ = 0;  // sent (is_broadcast)
};

}  // namespace odc
