// SPDX-License-Identifier: Apache-2.0
// GPU memory: slices of this host are mapped by the processes that use them, and the caller's own stream copies from them
// and adds into them; the rest is staged. The host only waits until an owner's word says that what is to be read is there.
#pragma once

#include "base/element_type.h"
#include "base/fd.h"
#include "memory/control_block.h"
#include "transport/cuda/add_kernel.h"
#include "transport/cuda/gdr_add.h"
#include "transport/cuda/ipc_channel.h"
#include "transport/cuda/peer_access.h"
#include "transport/cuda/pending_work.h"
#include "transport/cuda/staged_add.h"
#include "transport/cuda/staged_get.h"
#include "transport/cuda/vmm_memory.h"

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace odc {

// This rank's GPU and those of its local peers. Calls run inside a CudaDevice::Scope where they say so; what changes regions
// must not overlap with anything else.
class Cuda {
public:
    explicit Cuda(const std::string &device);
    ~Cuda();

    const CudaDevice &device() const { return device_; }
    GpuIdentity identity() const;
    // To be handed to local peers: by it they send their regions.
    int slot() const { return ipc_channel_.slot(); }
    // The other end of a local peer's. Its regions can be used if there is peer access to its GPU.
    void meet(int rank, Fd slot);
    PeerAccess peer_access_to(const GpuIdentity &gpu) const;

    // ---- Regions ----

    // A new one of this rank, zero, with one user.
    struct Allocated {
        uint64_t number;
        std::byte *start;
    };
    Allocated allocate(int rank, uint64_t bytes, const Deadline &deadline);
    // Sends it to those of `ranks` that are local peers.
    void offer(int rank, uint64_t number, uint64_t minibatch, const std::set<int> &ranks);
    // Takes what local peers have sent, and sends what they had no room for. True: nothing is left. Safe from several threads.
    // Whoever waits does it now and then, so that nobody waits for room in vain.
    bool exchange_mail();
    // A local peer that has not taken what it was sent; none: all have.
    std::optional<int> behind();
    // Where a region begins here, for one user more; NULL: it has not come yet. Safe from several threads.
    std::byte *use(int rank, uint64_t number);
    // One user less, in `minibatch`. Without any it is unmapped, but if it is another rank's and of this minibatch only in
    // `turn`: more of its shards may come to be used.
    void drop(int rank, uint64_t number, uint64_t minibatch);
    // One that is not going to be used here, if it has come.
    void discard(int rank, uint64_t number);
    // At the end of a minibatch all ranks have linked what was registered in it: the rest is unmapped.
    void turn(uint64_t minibatch);

    // ---- Words and marks ----

    // Of mirrors, this rank's and others'. Pages stay registered until they have been unpinned as often.
    void pin_pages(std::byte *start, uint64_t bytes) { pin(start, bytes, bytes); }
    void unpin_pages(std::byte *start);
    // The word's address for streams.
    cuda::Address pin(std::atomic<uint64_t> &word);
    void unpin(std::atomic<uint64_t> &word);
    // Of host memory, for mirrors and staging; from any thread.
    uint64_t pinned_bytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }
    cuda::Event make_mark();
    void drop_mark(cuda::Event mark);
    PendingWork &pending_work() { return pending_work_; }

    // ---- What streams do; inside a CudaDevice::Scope ----

    struct Opening {
        std::byte *accumulator;  // zeroed
        uint64_t bytes;
        const std::byte *parameters;  // copied to `mirror`, unless that is NULL
        std::byte *mirror;
        uint64_t mirror_bytes;
        cuda::Event mark;
        cuda::Address word;
        uint64_t value;
    };
    void open(const Opening &opening, cuda::Stream stream) const;
    // Behind a mark, which another stream may have set.
    void follow_mark(cuda::Event mark, cuda::Stream stream) const;

    struct Copy {
        const std::byte *from;
        std::byte *to;
        uint64_t bytes;
        bool other_gpu;
    };
    void get(const std::vector<Copy> &copies, cuda::Stream stream) const;
    // In the order of the addends.
    void add(int32_t gradient_type, const std::vector<Addend> &addends, cuda::Stream stream) const {
        adder_.enqueue(gradient_type, addends, stream);
    }
    bool is_other(const GpuIdentity &gpu) const { return gpu.uuid != device_.uuid(); }

    // ---- What is staged, each from when it is first needed ----

    // Additions to owners of this host whose GPUs cannot be added to, and, unless there is an outward staging proxy, of others.
    StagingProxy &open_porter(int rank, std::unique_ptr<BouncePool> slots);
    void close_porter();  // before anything has used it
    bool has_porter() const { return staging_proxy_ != nullptr; }
    // Where adapters reach this GPU: additions to owners of other hosts, and theirs to this rank's slices.
    StagingProxy &open_outward_porter(int rank, std::unique_ptr<BouncePool> slots);
    GdrAdd &open_sums(std::unique_ptr<BouncePool> slots);
    // Gathers from other hosts.
    StagedGets &open_fetches(std::unique_ptr<BouncePool> slots);
    void close_fetches();  // before anything has used them
    bool has_fetches() const { return staged_gets_ != nullptr; }
    // All three of an adapter that reaches this GPU were opened in vain.
    void close_outward();

    // `path`: to the owner's host; NULL: this one.
    StagingProxy &porter_to(const Endpoint *path) {
        return path != nullptr && outward_porter_ ? *outward_porter_ : *staging_proxy_;
    }
    StagedGets &staged_gets() { return *staged_gets_; }
    // The owner, on another host, of an addition that has been on its way longest; none: nothing is.
    std::optional<int> awaited();
    bool is_idle();

    // Additions of other hosts are not started any more.
    void stop_sums();
    // Ends this rank's additions that are not done. Whether all that was enqueued has been done within `ms`: only then may this be
    // destroyed.
    bool settles(int64_t ms);

private:
    struct Region {
        std::unique_ptr<CudaMemory> memory;  // NULL: `trouble` says why
        uint64_t users;
        uint64_t minibatch;  // in which another rank registered it
        bool own;
        std::string trouble;
    };
    using Key = std::pair<int, uint64_t>;  // rank, number
    void copy_one(const Copy &copy, cuda::Stream stream) const;
    void copy_between(const std::vector<Copy> &copies, cuda::Stream stream) const;
    void empty_inbox();
    std::array<StagingProxy *, 2> porters() const {
        return {staging_proxy_.get(), outward_porter_.get()};
    }  // NULL: not open
    // Of those that are open.
    template <class Check>
    bool all_porters(Check check) const;
    cuda::Address pin(std::byte *start, uint64_t bytes, uint64_t counted);
    void count(const BouncePool &slots);
    void discount(const BouncePool &slots);

    CudaDevice device_;
    AddKernel adder_;
    PendingWork pending_work_;
    IpcChannel ipc_channel_;
    std::mutex mail_mutex_;
    std::map<int, IpcSender> ipc_senders_;  // by rank
    std::mutex mutex_;
    std::map<Key, Region> regions_;
    uint64_t last_region_ = 0;
    std::set<cuda::Event> marks_;
    std::multimap<std::byte *, uint64_t> pages_;  // their bytes, by where they begin
    std::atomic<uint64_t> pinned_bytes_{0};
    std::unique_ptr<StagingProxy> staging_proxy_;
    std::unique_ptr<StagingProxy> outward_porter_;
    std::unique_ptr<StagedGets> staged_gets_;
    std::unique_ptr<GdrAdd> sums_;
};

}  // namespace odc
