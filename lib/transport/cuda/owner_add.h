// SPDX-License-Identifier: Apache-2.0
// Additions of gradients of two bytes (bf16, f16) by the GPU of the slice's owner. The sender's stream copies them as they are, as
// for gathers by copy engines where the driver can, into slots in the owner's GPU memory, and then writes a word; a thread of the
// owner's sees it and has its GPU add them. So half the bytes cross between the GPUs that a kernel of the sender's sends, which adds
// f32; in return an addition waits for a thread of the owner's.
#pragma once

#include "base/element_type.h"
#include "memory/add_slot.h"
#include "transport/cuda/device.h"
#include "transport/transport.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace odc {

class AddKernel;
class Copier;
struct StagedAddition;

// The slots of one sender or of all, each of BouncePool::kBytes.
struct AddSlots {
    std::span<AddSlot> slots;
    std::vector<cuda::Address> words;  // that this rank's streams write, by slot
    std::byte *memory;                 // of the gradients, where this process has it
    Doorbell *bell;                    // of the owner's thread
};

// This rank's additions to one owner. Thread-safe.
class OwnerAddSource {
public:
    OwnerAddSource(const CudaDevice &device, const Copier &copier, AddSlots slots)
        : device_(device), copier_(copier), slots_(std::move(slots)) {}

    // Enqueues the copy of as many stripes as fit into a slot. Returns their number; 0 if no slot is free. The caller has a
    // CudaDevice::Scope.
    uint64_t stage(const StagedAddition &addition, cuda::Stream stream);
    // Whether the owner has added everything.
    bool is_idle() const;
    // Whether streams are done with the slots.
    bool is_drained() const;
    // Whether the owner has gradients that it has not added yet.
    bool awaits_owner() const;
    // How many times the slots have run out; takes in vain one after another count once.
    uint64_t times_full() const { return times_full_.load(std::memory_order_relaxed); }

private:
    const CudaDevice &device_;
    const Copier &copier_;
    AddSlots slots_;
    std::mutex mutex_;
    bool full_ = false;
    std::atomic<uint64_t> times_full_{0};
};

// The additions of other ranks to this rank's slices, by a thread of its own. Thread-safe.
class OwnerAddTarget {
public:
    OwnerAddTarget(const CudaDevice &device, const AddKernel &add_kernel, AddSlots slots);
    ~OwnerAddTarget() { stop(); }
    OwnerAddTarget(const OwnerAddTarget &) = delete;
    OwnerAddTarget &operator=(const OwnerAddTarget &) = delete;

    // A slice of this rank's, before others know its shard, and until nobody adds to it any more.
    void add_slice(const RemoteSlice &slice);
    void remove_slice(uint64_t record);
    // Why it has ended; none if it has not.
    std::optional<Error> error() const;
    // Adds nothing more. The GPU may still add.
    void stop();
    // Whether the GPU has added all that it was given.
    bool is_idle() const;

private:
    void run();
    bool start_copied();
    void start(size_t slot, uint64_t use);
    RemoteSlice slice_of(const AddSlot &slot);
    bool awaits_any() const;
    void rest(uint32_t rung);

    const CudaDevice &device_;
    const AddKernel &add_kernel_;
    AddSlots slots_;
    std::mutex mutex_;                            // never held while the driver is called: it may block
    std::map<uint64_t, RemoteSlice> slices_;      // by record
    std::vector<std::atomic<uint64_t>> started_;  // the last use of each slot that the GPU was given
    std::optional<Error> error_;                  // constant once `failed_`
    std::atomic<bool> failed_{false};
    int64_t busy_ns_ = 0;  // when the thread last had something to do
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

// Both sides, each opened when it is first needed. Sources thread-safe.
class OwnerAdd {
public:
    OwnerAdd(const CudaDevice &device, const Copier &copier, const AddKernel &add_kernel)
        : device_(device), copier_(copier), add_kernel_(add_kernel) {}

    // Whether gradients of this odc_type are added this way: of wider ones it would move no fewer bytes.
    static bool takes(int32_t gradient_type) { return element_size(gradient_type) == 2; }
    void open_target(AddSlots slots);
    void connect(int owner, AddSlots slots);
    OwnerAddTarget *target() const { return target_.get(); }  // NULL: not open
    OwnerAddSource *source_to(int owner) const;               // NULL: not connected

    bool is_idle() const;
    bool is_drained() const;
    std::optional<int> awaited_owner() const;
    // What this rank's GPU could not add for others; none if there is nothing.
    std::optional<Error> error() const { return target_ ? target_->error() : std::nullopt; }
    uint64_t times_full() const;
    // Adds nothing more for others.
    void stop();

private:
    template <class Check>
    bool all_sources(Check check) const;

    const CudaDevice &device_;
    const Copier &copier_;
    const AddKernel &add_kernel_;
    mutable std::mutex mutex_;
    std::map<int, std::unique_ptr<OwnerAddSource>> sources_;  // by owner; one that is there stays
    std::unique_ptr<OwnerAddTarget> target_;
};

}  // namespace odc
