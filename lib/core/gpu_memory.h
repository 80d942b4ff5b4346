// SPDX-License-Identifier: Apache-2.0
// Where shards lie in GPU memory. For ranks that reach a slice through host memory only, its owner keeps a host shadow: a
// copy in pinned host memory, laid out like a slice there.
#pragma once

#include "core/shard.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace odc {

class Cuda;
class Job;
class RemoteMemory;
struct GpuSliceState;

class GpuMemory {
public:
    GpuMemory(Job &job, RemoteMemory &remote_memory, Cuda &cuda)
        : job_(job), remote_memory_(remote_memory), cuda_(cuda) {}

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
    // By bytes: ranks of this host may still have them pinned, so they serve as shadows only.
    std::multimap<uint64_t, Allocation> kept_shadows_;
};

}  // namespace odc
