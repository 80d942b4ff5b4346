// SPDX-License-Identifier: Apache-2.0
// Sums from other hosts. The sender offers a stretch of its gradient for reading; the owner's library thread reads it in
// chunks into bounded staging, of GPU memory for sums there, widens and adds them, and says how much it has applied. So the owner alone decides what
// is on its way, whatever the number of senders, and nobody waits for room that another would have to make. By measurement,
// too: of seven senders an owner gets 2.0 to 2.3 GB/s by reading, 1.4 to 2.0 by being written to, 1.5 to 1.7 by messages.
#pragma once

#include "transport/loans.h"
#include "transport/reads.h"
#include "transport/staging.h"
#include "transport/transport.h"

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace odc {

using Tell = std::function<void(Remote &, const Notice &)>;

// The owner's side.
class Additions {
public:
    Additions(int rank, size_t staging_bytes, const Loans &loans, Tell tell);
    ~Additions();

    // Makes what staging the endpoint needs; throws where it is refused.
    void prepare(FabricEndpoint &endpoint) { staging_.at(endpoint); }
    // What adds to slices in GPU memory; before the first of them is opened.
    void add_by(GpuSums &sums) { gpu_sums_ = &sums; }
    // This rank's own slices, by the records of their posts.
    void open(const RemoteSlice &slice) { slices_[slice.record] = slice; }
    void close(uint64_t record) { slices_.erase(record); }

    void offered(Remote &sender, const AddNotice &offer);
    bool pump() { return reads_.pump(); }
    // Adds a chunk that has landed. Never waits: for stripes that somebody else holds, and for the GPU, it is tried again in
    // the next call.
    bool work();
    bool refused() const { return reads_.refused(); }
    bool flying() const { return reads_.flying(); }
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
    const Loans &loans_;
    Staging staging_;
    GpuSums *gpu_sums_ = nullptr;
    Tell tell_;
    Reads reads_;
    std::unordered_map<uint64_t, RemoteSlice> slices_;
    std::deque<Landed> landed_;
};

// The sender's side. A gradient is offered as a whole, or, where memory must be registered at a price and is not lent,
// piece by piece from bounded staging.
class Offers {
public:
    Offers(size_t staging_bytes, const Loans &loans, Tell tell);
    ~Offers();

    // Makes what staging the endpoint needs; throws where it is refused.
    void prepare(FabricEndpoint &endpoint) { staging_.at(endpoint); }
    void start(Remote &owner, const RemoteSlice &to, const std::byte *from, uint64_t filled,
               std::shared_ptr<Transfer> transfer);
    bool pump();
    // The transfer that is complete with this, or NULL.
    std::shared_ptr<Transfer> applied(Remote &owner, const AppliedNotice &notice);
    void stop();

private:
    struct Sum {
        Remote &owner;
        RemoteSlice to;
        const std::byte *from;
        uint64_t filled;
        uint64_t offered;  // elements
        uint64_t applied;
        std::shared_ptr<Transfer> transfer;
    };
    // Where a piece can be read, and what that takes until it has been.
    struct Source {
        uint64_t address;
        uint64_t key;
        Exposed exposed = {};
        std::byte *slot = nullptr;
    };
    struct Piece {
        std::shared_ptr<Sum> sum;
        uint64_t left;  // elements
        Source source;
    };
    void offer(std::shared_ptr<Sum> sum, uint64_t count, Source source);

    const Loans &loans_;
    Staging staging_;
    Tell tell_;
    std::deque<std::shared_ptr<Sum>> waiting_;  // for staging
    std::unordered_map<uint64_t, Piece> pieces_;
    uint64_t last_ = 0;
};

}  // namespace odc
