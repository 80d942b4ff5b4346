// SPDX-License-Identifier: Apache-2.0
// Where shards lie in GPU memory. For ranks that reach a slice through host memory only, its owner keeps a host shadow: a
// copy in pinned host memory, laid out like a slice there.
#pragma once

#include "core/shard.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace odc {

class Cuda;
class Job;
class RemoteMemory;
struct AddSlot;
struct GpuSliceState;

class GpuMemory {
public:
    GpuMemory(Job &job, RemoteMemory &remote_memory, Cuda &cuda);

    // As Engine's.
    void attach(const std::vector<Shard *> &shards);
    void detach(Shard &shard);
    std::optional<Shard::Bases> map(const Shard &shard, int rank, const ShardRecord &record);
    void unmap(const Shard &shard, uint64_t index);

private:
    void prepare_exact_sums(const std::vector<Shard *> &shards);
    bool needs_shadow(const Shard &shard) const;
    bool is_read_by_local_peers(const Shard &shard) const;
    std::vector<Allocation> allocate_shadows(const std::vector<Shard *> &shards, std::set<size_t> *reused);
    void free_shadow(const Shard &shard, const Allocation &shadow);
    std::vector<DeviceAllocation> allocate(const std::vector<Shard *> &shards);
    void drop_allocation(const std::vector<DeviceAllocation> &parts);
    void open_bounce_buffers(const Shard &shard);
    bool is_added_by_owners(const Shard &shard) const;
    std::span<AddSlot> add_slots(int owner);
    std::span<AddSlot> add_slots(int owner, int sender);
    void open_owner_add();
    void offer_owner_add(const std::vector<Shard *> &shards);
    bool connect_owner_add(const Shard &shard, int owner);
    void attach_slice(Shard &shard);
    void detach_slice(Shard &shard);
    void free_totals(const GpuSliceState &state);
    void register_memory(const Shard &shard);
    void send_regions(const std::vector<Shard *> &shards);
    std::optional<Shard::Bases> map_region(const Shard &shard, int rank, const ShardRecord &record);
    Shard::Bases map_shadow(const Shard &shard, int rank, const ShardRecord &record);

    Job &job_;
    RemoteMemory &remote_memory_;
    Cuda &cuda_;
    const bool add_by_owner_;
    // By bytes: ranks of this host may still have them pinned, so they serve as shadows only.
    std::multimap<uint64_t, Allocation> kept_shadows_;
    std::set<int> takes_exact_sums_;  // ranks whose GPUs do, as the driver has said
};

}  // namespace odc
