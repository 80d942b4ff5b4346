// SPDX-License-Identifier: Apache-2.0
// Ranks of other hosts, by libfabric. One progress thread per context keeps replicas of the other hosts' ranks, serves their
// reads, reads slices, adds what they announce, and detects failures. The methods here are for the context's threads; they
// hand work over and never wait for a peer.
#pragma once

#include "transport/fabric/control_message.h"
#include "transport/fabric/types.h"
#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace odc {

class Arena;
class ClaimRequest;
class GdrAdd;
class ProgressThread;
class BouncePool;

class Fabric final : public EndpointFactory {
public:
    // Opens the endpoints. Throws, with the provider's message.
    Fabric(const FabricConfig &config, const std::vector<FabricNic> &nics);
    // Says goodbye to the peers, unless something failed, and joins the progress thread.
    ~Fabric() override;
    Fabric(const Fabric &) = delete;
    Fabric &operator=(const Fabric &) = delete;

    // The address of a NIC's endpoint, for peers.
    const std::vector<std::byte> &name(size_t nic) const;
    // Starts the progress thread. `hosts`: the ranks of each host. What
    // `local_peers` points to must outlive this.
    void start(const Token &token, const std::vector<FabricPeer> &peers, const std::vector<std::vector<int>> &hosts,
               std::vector<FabricLocalPeer> local_peers);

    // The arena of the replicas, which lives as long as this.
    std::shared_ptr<Arena> replicas() const;
    uint64_t replica_offset(int rank) const;  // of the rank's control block in the arena
    std::unique_ptr<Endpoint> endpoint_to(int peer_rank) override;

    // Sends a message to all ranks of other hosts, or to those of `ranks` that are on other hosts.
    void tell(const ControlMessage &message);
    void tell(const ControlMessage &message, const std::vector<int> &ranks);
    // The same once `word`, which a GPU writes without a wake-up, is at least `value`. Messages that are sent after the word
    // has its value arrive after this one.
    void tell_when(const std::atomic<uint64_t> &word, uint64_t value, const ControlMessage &message,
                   const std::vector<int> &ranks);
    // This rank has arrived in collective call `number`, as its block says, at the time `at_ns`: tells the ranks of other hosts, by
    // way of some.
    void arrive(uint64_t number, const Arrival &own, int64_t at_ns);
    // All ranks of this host have arrived in it: without this it would be noticed a little later.
    void pass_on_arrivals(uint64_t number);
    // Once all ranks have arrived in it: returns when this rank has passed on what it has to, and reads no more what the ranks of
    // its host brought. As each rank calls this before it arrives again, they overwrite only what nobody reads.
    void finish_arrivals(uint64_t number);
    // Tells all that this rank leaves.
    void leave(const LeftMessage &message);
    // Asks rank 0, which is on another host, for one of `count` items.
    std::shared_ptr<ClaimRequest> claim(uint64_t minibatch, uint64_t count);
    // Tells all ranks that the job has failed, then releases all buffers and closes the endpoints.
    void fail(const FailedMessage &message);
    // After fail(): returns once all ranks have been told, or after a quarter of a second.
    void await_failed();

    // Returns once all ranks have received all messages so far, or after a second.
    void flush();

    // Whether NICs reach the memory of this rank's GPU, so that slices and bounce buffers there may be registered.
    bool reaches_gpu() const;
    // Registers a pool, which must outlive this unless this throws: gets and adds from and to its memory are neither staged nor
    // registered again. Throws if the provider refuses the memory.
    void register_memory(const BouncePool &slots, Access access);
    // Adds to slices in GPU memory by `gdr_add`, which must outlive this and whose slots are registered.
    void use_gdr_add(GdrAdd &gdr_add);

    // Lets ranks of other hosts read this rank's slice and add to it, once its shard is told of. Throws if the provider refuses
    // the memory.
    void register_slice(const RemoteSlice &slice);
    void deregister_slice(uint64_t record);
    // Sends the description of a shard, and where each rank can read the slice.
    void tell_registered(const RegisteredMessage &message);

    uint64_t packets_sent() const;
    uint64_t sent_bytes() const;  // of gradients that owners have applied

private:
    std::unique_ptr<ProgressThread> thread_;
};

std::unique_ptr<Endpoint> connect_fabric(const EndpointParams &params);

}  // namespace odc
