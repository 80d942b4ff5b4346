// SPDX-License-Identifier: Apache-2.0
// The owner's side of additions from other hosts. The sender offers a stretch of its gradient for reading
// (accumulate_source.h); the owner's progress thread reads it in chunks into bounded staging, of GPU memory for sums there,
// widens and adds them, and says how much it has applied. So the owner alone decides what is on its way, whatever the number
// of senders, and nobody waits for room that another would have to make. By measurement, too: of seven senders an owner gets
// 2.0 to 2.3 GB/s by reading, 1.4 to 2.0 by being written to, 1.5 to 1.7 by messages.
#pragma once

#include "transport/fabric/bounce_ring.h"
#include "transport/fabric/registered_memory.h"
#include "transport/fabric/rma_read.h"
#include "transport/transport.h"

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace odc {

class GdrAdd;

class AccumulateTarget {
public:
    AccumulateTarget(int rank, size_t staging_bytes, const RegisteredMemory &registered, Tell tell);
    ~AccumulateTarget();

    // Makes what staging the endpoint needs; throws where it is refused.
    void prepare(FabricEndpoint &endpoint) { staging_.at(endpoint); }
    // What adds to slices in GPU memory; before the first of them is opened.
    void add_by(GdrAdd &sums) { gdr_add_ = &sums; }
    // This rank's own slices, by the records of their posts.
    void open(const RemoteSlice &slice) { slices_[slice.record] = slice; }
    void close(uint64_t record) { slices_.erase(record); }

    void offered(RemoteRank &sender, const AddMessage &offer);
    bool pump() { return reads_.pump(); }
    // Adds a chunk that has landed. Never waits: for stripes that somebody else holds, and for the GPU, it is tried again in
    // the next call.
    bool work();
    bool refused() const { return reads_.refused(); }
    bool in_flight() const { return reads_.in_flight(); }
    // A chunk waits for stripes that others hold, or for the GPU.
    bool blocked() const { return !landed_.empty(); }
    void stop();

private:
    class Offer;
    struct Landed {
        std::shared_ptr<Offer> offer;
        std::byte *data;
        uint64_t first;  // element of the slice
        uint64_t count;
        std::vector<uint64_t> stripes;  // still to be added, in host memory
        bool started = false;           // in GPU memory
    };
    enum class Progress { None, Some, All };
    Progress add(Landed &landed);
    Progress add_stripes(Landed &landed);
    Progress add_on_gpu(Landed &landed);
    void applied(Landed &landed);

    int rank_;
    const RegisteredMemory &registered_;
    BounceRings staging_;
    GdrAdd *gdr_add_ = nullptr;
    Tell tell_;
    RmaReads reads_;
    std::unordered_map<uint64_t, RemoteSlice> slices_;
    std::deque<Landed> landed_;
};

}  // namespace odc
