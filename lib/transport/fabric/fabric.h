// SPDX-License-Identifier: Apache-2.0
// Ranks of other hosts, through libfabric. One progress thread a context does all of it: it keeps the images of the other
// hosts' ranks up to date, serves their reads, reads slices, adds what they offer, and watches whether they live. What
// is declared here is for the context's threads; it only hands work over and never waits for a peer.
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
class GdrAdd;
class ProgressThread;
class BouncePool;

class Fabric {
public:
    // Opens the endpoints. Throws, with the provider's words.
    Fabric(const FabricTerms &terms, const std::vector<FabricPort> &ports);
    // Says goodbye to the peers, if nothing went wrong, and ends the progress thread.
    ~Fabric();
    Fabric(const Fabric &) = delete;
    Fabric &operator=(const Fabric &) = delete;

    // By which peers reach the endpoint of a port.
    const std::vector<std::byte> &name(size_t port) const;
    // Starts the progress thread. `token`: random, known to the job's ranks only. `hosts`: the ranks of each. What `local peers`
    // points to outlives this.
    void start(const std::array<unsigned char, 16> &token, const std::vector<FabricPeer> &peers,
               const std::vector<std::vector<int>> &hosts, std::vector<FabricLocalPeer> local_peers);

    // The images of the peers lie in this arena; it lives as long as this.
    std::shared_ptr<Arena> images() const;
    uint64_t image_of(int rank) const;  // offset of its block there
    std::unique_ptr<Endpoint> endpoint_to(int rank);

    // To all ranks of other hosts, or to those listed (others of the list are left out).
    void tell(const ControlMessage &message);
    void tell(const ControlMessage &message, const std::vector<int> &ranks);
    // The same as soon as `word`, which a GPU writes and rings no bell for, is `value` or more. What is told after it was,
    // comes after it.
    void tell_when(const std::atomic<uint64_t> &word, uint64_t value, const ControlMessage &message,
                   const std::vector<int> &ranks);
    // The job has failed: tells everybody, then lets go of all buffers and closes the endpoints.
    void fail(const FailedMessage &message);
    // After `fail`: returns when everybody has been told, or after a quarter of a second.
    void await_failed();

    // Returns when they have heard all that was told them, or after a second.
    void flush();

    // Whether NICs reach the memory of this rank's GPU: then slices there may be exposed, and memory there lent.
    bool reaches_gpu() const;
    // They outlive this, unless this throws: gathers and additions that go through them are neither staged nor registered
    // again. Throws where the provider refuses the memory.
    void register_memory(const BouncePool &slots, Access access);
    // Additions to slices in GPU memory go through these slots, which have been lent. They outlive this.
    void add_by(GdrAdd &sums);

    // Lets the ranks of other hosts read this rank's slice, and add to it, once it is announced. Throws where the
    // provider refuses the memory. `conceal` takes that back.
    void expose(const RemoteSlice &slice);
    void conceal(uint64_t record);
    // Tells all of them of a post, and where each can read the slice.
    void announce(const PostMessage &post);

    uint64_t packets_sent() const;

private:
    std::unique_ptr<ProgressThread> thread_;
};

}  // namespace odc
