// SPDX-License-Identifier: Apache-2.0
// GPU memory of this host. Processes map the slices that they use; the caller's stream copies from them and adds into them,
// or goes through bounce buffers. The host only waits for the words that tell that owners have published.
#pragma once

#include "base/element_type.h"
#include "base/fd.h"
#include "memory/control_block.h"
#include "transport/cuda/add_kernel.h"
#include "transport/cuda/ipc_channel.h"
#include "transport/cuda/peer_access.h"
#include "transport/cuda/pending_work.h"
#include "transport/cuda/vmm_memory.h"

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace odc {

class BouncePool;
class Copier;
class Endpoint;
class GdrAdd;
class OwnerAdd;
class StagedGets;
class StagingProxy;
struct Copy;

// This rank's GPU, and the GPU memory of its local peers. Callers have a CudaDevice::Scope where noted. Calls that change
// regions must not overlap with other calls, unless noted.
class Cuda {
public:
    explicit Cuda(const std::string &device);
    ~Cuda();

    const CudaDevice &device() const { return device_; }
    GpuIdentity identity() const;
    // The sending end of this rank's IPC channel, for local peers.
    int ipc_fd() const { return ipc_channel_.send_fd(); }
    // Takes a local peer's ipc_fd().
    void connect_ipc(int rank, Fd send_end);
    PeerAccess peer_access_to(const GpuIdentity &gpu) const;
    // Why the GPUs, which have peer access, cannot add exact sums to each other's memory; empty if they can.
    std::string why_no_exact_sums_with(const GpuIdentity &gpu) const;
    // The caller has a CudaDevice::Scope. See CudaDevice.
    void use_scalar_reductions() { device_.use_scalar_reductions(); }
    void load_exact_kernels() { device_.load_exact_kernels(); }

    // ---- Regions ----

    // Allocates a zeroed region of this rank with one user.
    struct Allocated {
        uint64_t number;
        std::byte *start;
    };
    Allocated allocate(int rank, uint64_t bytes, const Deadline &deadline);
    // Sends the region to those of `ranks` that are local peers.
    void send_region(int rank, uint64_t number, uint64_t minibatch, const std::set<int> &ranks);
    // Receives regions of local peers and sends those that did not fit into their channels; true if none is left.
    // Thread-safe. A waiting rank calls this regularly, so that peers with a full channel make progress.
    bool progress_ipc();
    // Becomes readable when a local peer has sent a region.
    int ipc_wait_fd() const { return ipc_channel_.fd(); }
    // A local peer whose channel is full; none if all regions have been sent.
    std::optional<int> lagging_peer();
    // Adds a user to a region and returns its address in this process; NULL if it has not been received yet. Thread-safe.
    std::byte *map_region(int rank, uint64_t number);
    // Removes a user in `minibatch`. A region without users is unmapped; a peer's region of this minibatch stays mapped until
    // end_minibatch, as further shards in it may come to be used.
    void unmap_region(int rank, uint64_t number, uint64_t minibatch);
    // Unmaps a received region that is not going to be used.
    void discard_region(int rank, uint64_t number);
    // Unmaps unused regions: at the end of a minibatch all ranks have linked the shards that were registered in it.
    void end_minibatch(uint64_t minibatch);

    // ---- Words and events ----

    // For host shadows, this rank's and its peers'. Pages stay registered until they have been unpinned as often.
    void pin_pages(std::byte *start, uint64_t bytes) { pin(start, bytes, bytes); }
    void unpin_pages(std::byte *start);
    // Returns the word's address for streams.
    cuda::Address pin(std::atomic<uint64_t> &word);
    void unpin(std::atomic<uint64_t> &word);
    // Bytes of pinned host shadows and bounce buffers. Thread-safe.
    uint64_t pinned_bytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }
    // Pinned memory of this process, which lives as long as this unless it is freed.
    PinnedMemory &allocate_pinned(uint64_t bytes) { return pinned_.emplace_back(device_, bytes); }
    void free_pinned(const PinnedMemory &memory);
    cuda::Event create_event();
    void destroy_event(cuda::Event event);
    PendingWork &pending_work() { return pending_work_; }

    // ---- Enqueueing; the caller has a CudaDevice::Scope ----

    struct Publish {
        std::byte *accumulator;  // is zeroed
        uint64_t bytes;
        const std::byte *parameters;  // are copied to `shadow`, unless that is NULL
        std::byte *shadow;
        uint64_t shadow_bytes;
        cuda::Event event;   // is recorded
        cuda::Address word;  // is set to `value`
        uint64_t value;
    };
    void publish(const Publish &work, cuda::Stream stream) const;
    // Makes the stream wait for an event, which may be recorded on another stream.
    void wait_event(cuda::Event event, cuda::Stream stream) const;

    void get(const std::vector<Copy> &copies, cuda::Stream stream) const;
    // Adds gradients in the order of the addends.
    void add(const std::vector<SliceAddend> &addends, AddScope scope, cuda::Stream stream) const {
        add_kernel_.enqueue(addends, scope, stream);
    }
    // Adds sums that were made in host memory to those of this GPU.
    void add_sums(const std::vector<SliceAddend> &addends, cuda::Stream stream) const {
        add_kernel_.enqueue_sums(addends, stream);
    }
    // Makes f32 of a slice's exact sums, in place, and copies their totals to `to`.
    void convert_exact_sums(const RemoteSlice &slice, const PinnedMemory &to, cuda::Stream stream) const;
    bool is_other(const GpuIdentity &gpu) const { return gpu.uuid != device_.uuid(); }

    // ---- Bounce buffers, each opened when it is first needed ----

    // For additions to owners of this host without peer access and, unless there is a GPUDirect staging proxy, of other hosts.
    StagingProxy &open_staging_proxy(int rank, std::unique_ptr<BouncePool> slots);
    void close_staging_proxy();  // before its first use
    bool has_staging_proxy() const { return staging_proxy_ != nullptr; }
    // With GPUDirect RDMA: for additions to owners of other hosts, and for theirs to this rank's slices.
    StagingProxy &open_gdr_staging_proxy(int rank, std::unique_ptr<BouncePool> slots);
    GdrAdd &open_gdr_add(std::unique_ptr<BouncePool> slots);
    // For gets from other hosts.
    StagedGets &open_staged_gets(std::unique_ptr<BouncePool> slots);
    void close_staged_gets();  // before their first use
    bool has_staged_gets() const { return staged_gets_ != nullptr; }
    // Closes the GPUDirect staging proxy, GdrAdd and staged gets before their first use.
    void close_gdr();

    // `endpoint`: of the owner's host; NULL: this host.
    StagingProxy &staging_proxy_to(const Endpoint *endpoint) {
        return endpoint != nullptr && gdr_staging_proxy_ ? *gdr_staging_proxy_ : *staging_proxy_;
    }
    StagedGets &staged_gets() { return *staged_gets_; }
    // Between GPUs of this host.
    OwnerAdd &owner_add() { return *owner_add_; }
    // Of gets from other hosts, see StagedGets.
    std::optional<int> awaited_get_owner();
    std::optional<int> failed_get_owner();
    // The same, or else an owner whose host or GPU has gradients that it has not added yet; none if there is none.
    std::optional<int> awaited_owner();
    // What a staging proxy could not add; none if there is nothing.
    std::optional<Error> staging_error();
    bool is_idle();
    // How often all bounce buffers of one kind were in use.
    uint64_t times_full() const;

    // Starts no further additions of other ranks.
    void stop_adding_for_others();
    // Stops this rank's pending additions; returns whether all enqueued work is done within `ms`. Only then may this be
    // destroyed.
    bool drain(int64_t ms);

private:
    struct Region {
        std::unique_ptr<CudaMemory> memory;  // NULL: see `error`
        uint64_t users;
        uint64_t minibatch;  // in which a peer registered it
        bool own;
        std::string error;
    };
    using Key = std::pair<int, uint64_t>;  // rank, number
    void receive_regions();
    std::array<StagingProxy *, 2> staging_proxies() const {
        return {staging_proxy_.get(), gdr_staging_proxy_.get()};
    }  // NULL: not open
    // Checks those that are open.
    template <class Check>
    bool all_staging_proxies(Check check) const;
    cuda::Address pin(std::byte *start, uint64_t bytes, uint64_t counted);
    void count(const BouncePool &slots);
    void discount(const BouncePool &slots);

    CudaDevice device_;
    AddKernel add_kernel_;
    PendingWork pending_work_;
    std::unique_ptr<Copier> copier_;
    IpcChannel ipc_channel_;
    std::mutex ipc_mutex_;
    std::map<int, IpcSender> ipc_senders_;  // by rank
    std::mutex mutex_;
    std::map<Key, Region> regions_;
    uint64_t last_region_ = 0;
    std::set<cuda::Event> events_;
    std::list<PinnedMemory> pinned_;
    std::multimap<std::byte *, uint64_t> pages_;  // bytes of pinned pages, by address
    std::atomic<uint64_t> pinned_bytes_{0};
    std::unique_ptr<StagingProxy> staging_proxy_;
    std::unique_ptr<StagingProxy> gdr_staging_proxy_;
    std::unique_ptr<StagedGets> staged_gets_;
    std::unique_ptr<GdrAdd> gdr_add_;
    std::unique_ptr<OwnerAdd> owner_add_;
};

}  // namespace odc
