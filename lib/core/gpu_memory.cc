// SPDX-License-Identifier: Apache-2.0
#include "core/gpu_memory.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/element_type.h"
#include "base/settings.h"
#include "bootstrap/peer.h"
#include "core/gpu_call.h"
#include "core/operation.h"
#include "core/remote_memory.h"
#include "memory/add_slot.h"
#include "transport/cuda/cuda.h"
#include "transport/cuda/owner_add.h"
#include "transport/cuda/staged_add.h"
#include "transport/cuda/staged_get.h"
#include "transport/fabric/types.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

// Another shard's shadow may have been there.
void clear_stripes(const RemoteSlice &shadow) {
    for (uint64_t i = 0; shadow.stripes != nullptr && i < stripe_count(shadow); ++i) {
        shadow.stripes[i].lock.store(0, std::memory_order_relaxed);
        shadow.stripes[i].generation = 0;
    }
}

}  // namespace

GpuMemory::GpuMemory(Job &job, RemoteMemory &remote_memory, Cuda &cuda)
    : job_(job), remote_memory_(remote_memory), cuda_(cuda), add_by_owner_(setting_number(Setting::kAddByOwner) != 0) {}

// ---- Allocation ----

bool GpuMemory::needs_shadow(const Shard &shard) const {
    for (uint64_t index = 0; index < shard.owners(); ++index) {
        const int owner = shard.owner(index);
        const bool by_nic = remote_memory_.reaches_gpu() && !job_.on_this_host(owner);
        if (!job_.peer(owner).gpu_route.is_direct() && !by_nic) {
            return true;
        }
    }
    return false;
}

// The pages of a shadow that ranks of this host read are not reused for anything else: those ranks may keep them pinned as
// long as they have the shard, and would read whatever lies there next.
bool GpuMemory::is_read_by_local_peers(const Shard &shard) const {
    for (uint64_t index = 0; shard.is_shadowed() && index < shard.owners(); ++index) {
        const int owner = shard.owner(index);
        if (job_.on_this_host(owner) && !job_.peer(owner).gpu_route.is_direct()) {
            return true;
        }
    }
    return false;
}

// `reused`: the indexes of those that were taken from kept_shadows_.
std::vector<Allocation> GpuMemory::allocate_shadows(const std::vector<Shard *> &shards, std::set<size_t> *reused) {
    std::vector<uint64_t> sizes;
    std::vector<Allocation> shadows(shards.size());
    for (size_t i = 0; i < shards.size(); ++i) {
        if (needs_shadow(*shards[i])) {
            shards[i]->set_shadowed();
        }
        sizes.push_back(shards[i]->host_bytes());
        const auto found = is_read_by_local_peers(*shards[i]) ? kept_shadows_.find(sizes[i]) : kept_shadows_.end();
        if (found != kept_shadows_.end()) {
            reused->insert(i);
            shadows[i] = found->second;
            kept_shadows_.erase(found);
            sizes[i] = 0;
        }
    }
    try {
        const std::vector<Allocation> fresh = job_.peer(job_.rank()).arena->allocate(sizes);
        for (size_t i = 0; i < shards.size(); ++i) {
            shadows[i] = reused->count(i) != 0 ? shadows[i] : fresh[i];
        }
    } catch (...) {
        for (const size_t i : *reused) {
            free_shadow(*shards[i], shadows[i]);
        }
        throw;
    }
    return shadows;
}

void GpuMemory::free_shadow(const Shard &shard, const Allocation &shadow) {
    if (is_read_by_local_peers(shard)) {
        kept_shadows_.emplace(shard.host_bytes(), shadow);
    } else {
        job_.peer(job_.rank()).arena->free(shadow);
    }
}

// One region for all of them.
std::vector<DeviceAllocation> GpuMemory::allocate(const std::vector<Shard *> &shards) {
    constexpr uint64_t kAlignment = 256;
    std::vector<DeviceAllocation> parts;
    uint64_t bytes = 0;
    for (const Shard *shard : shards) {
        parts.push_back({0, nullptr, bytes});
        bytes += (shard->device_bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    if (bytes == 0) {
        return parts;
    }
    try {
        call_gpu(job_, cuda_.device(), [&] {
            const auto [region, start] = cuda_.allocate(job_.rank(), bytes, job_.deadline());
            for (size_t i = 0; i < shards.size(); ++i) {
                if (shards[i]->device_bytes() > 0) {
                    parts[i].region = region;
                    parts[i].start = start;
                }
            }
        });
    } catch (const Error &error) {
        if (error.status() != ODC_ERROR_NO_MEMORY) {
            throw;
        }
        std::vector<std::string> names;
        for (const Shard *shard : shards) {
            if (shard->device_bytes() > 0) {
                names.push_back(formatted("\"{}\"", shard->name()));
            }
        }
        fail(ODC_ERROR_NO_MEMORY, "{}{}: {}", names.size() == 1 ? "shard " : "shards ", listed(names, ", "),
             error.what());
    }
    return parts;
}

// Releases the reference taken by allocate(): each slice has its own.
void GpuMemory::drop_allocation(const std::vector<DeviceAllocation> &parts) {
    for (const DeviceAllocation &part : parts) {
        if (part.region != 0) {
            cuda_.unmap_region(job_.rank(), part.region, job_.minibatch());
            return;  // there is one region
        }
    }
}

// ---- Own slices ----

// Loads the kernels at registration, where the host may wait for the GPU; also if the own slice is empty, as a rank adds to others.
void GpuMemory::prepare_exact_sums(const std::vector<Shard *> &shards) {
    for (const Shard *shard : shards) {
        if (!shard->is_exact()) {
            continue;
        }
        for (uint64_t index = 0; index < shard->owners(); ++index) {
            const int owner = shard->owner(index);
            if (!job_.peer(owner).gpu_route.is_direct() || takes_exact_sums_.contains(owner)) {
                continue;
            }
            const std::string why_not = cuda_.why_no_exact_sums_with(job_.block(owner).gpu);
            if (!why_not.empty()) {
                fail(ODC_ERROR_UNSUPPORTED,
                     "shard \"{}\": exact sums (ODC_SUM_EXACT) cannot be added to the memory of {}: {}; with "
                     "ODC_TRANSPORTS=shm on all ranks they go through host memory",
                     shard->name(), job_.who(owner), why_not);
            }
            takes_exact_sums_.insert(owner);
        }
        try {
            call_gpu(job_, cuda_.device(), [&] { cuda_.load_exact_kernels(); });
        } catch (const Error &error) {
            if (error.status() == ODC_ERROR_DEVICE) {
                throw;
            }
            fail(error.status(), "shard \"{}\": {}", shard->name(), error.what());
        }
    }
}

void GpuMemory::attach(const std::vector<Shard *> &shards) {
    prepare_exact_sums(shards);
    std::set<size_t> reused;
    const std::vector<Allocation> shadows = allocate_shadows(shards, &reused);
    std::vector<DeviceAllocation> parts;
    size_t begun = 0;
    try {
        parts = allocate(shards);
        for (; begun < shards.size();) {
            Shard &shard = *shards[begun];
            shard.set_memory(shadows[begun], parts[begun]);
            ++begun;
            attach_slice(shard);
            register_memory(shard);
        }
        offer_owner_add(shards);
        send_regions(shards);
        drop_allocation(parts);
    } catch (...) {
        drop_allocation(parts);
        for (size_t i = 0; i < begun; ++i) {
            detach_slice(*shards[i]);
        }
        for (size_t i = 0; i < shards.size(); ++i) {  // nobody has seen the new ones
            reused.count(i) != 0 ? free_shadow(*shards[i], shadows[i]) : job_.peer(job_.rank()).arena->free(shadows[i]);
        }
        throw;
    }
}

void GpuMemory::detach(Shard &shard) {
    detach_slice(shard);
    free_shadow(shard, shard.host_region());
}

// Opens the bounce buffers that the shard needs and that are not open yet.
void GpuMemory::open_bounce_buffers(const Shard &shard) {
    const auto pool = [&](size_t least) {
        return BouncePool::of_pinned_memory(cuda_.device(),
                                            static_cast<uint64_t>(setting_number(Setting::kStagingBytes)), least);
    };
    const auto register_pool = [&](const BouncePool &opened, Access access, auto close) {
        try {
            remote_memory_.register_memory(opened, access);
        } catch (...) {
            close();
            throw;
        }
    };
    if (shard.is_shadowed() && !cuda_.has_staging_proxy()) {
        const StagingProxy &staging_proxy = cuda_.open_staging_proxy(job_.rank(), pool(StagingProxy::kLeastSlots));
        if (!remote_memory_.reaches_gpu()) {
            register_pool(staging_proxy.slots(), Access::RemoteRead, [&] { cuda_.close_staging_proxy(); });
        }
    }
    if (has_remote_owner(job_, shard) && !cuda_.has_staged_gets()) {
        const StagedGets &staged_gets = cuda_.open_staged_gets(pool(StagedGets::kLeastSlots));
        register_pool(staged_gets.slots(), Access::Local, [&] { cuda_.close_staged_gets(); });
    }
}

// ---- Additions by owners ----

namespace {

using SlotWord = std::atomic<uint64_t> AddSlot::*;

void unpin(Cuda &cuda, std::span<AddSlot> slots, SlotWord word) {
    for (AddSlot &slot : slots) {
        cuda.unpin(slot.*word);
    }
}

// The words' addresses for streams. If it fails, none stays pinned.
std::vector<cuda::Address> pin(Cuda &cuda, std::span<AddSlot> slots, SlotWord word) {
    std::vector<cuda::Address> addresses;
    addresses.reserve(slots.size());
    try {
        for (AddSlot &slot : slots) {
            addresses.push_back(cuda.pin(slot.*word));
        }
    } catch (...) {
        unpin(cuda, slots.first(addresses.size()), word);
        throw;
    }
    return addresses;
}

Cuda::Allocated allocate_slots(Cuda &cuda, int rank, uint64_t bytes, const Deadline &deadline) {
    try {
        return cuda.allocate(rank, bytes, deadline);
    } catch (const Error &error) {
        if (error.status() != ODC_ERROR_NO_MEMORY) {
            throw;
        }
        fail(ODC_ERROR_NO_MEMORY,
             "ODC_ADD_BY_OWNER=1 needs {} bytes of the memory of {} for gradients that other ranks copy there, and has "
             "not got them: set ODC_STAGING_BYTES lower, or ODC_ADD_BY_OWNER=0",
             bytes, cuda.device().name());
    }
}

}  // namespace

bool GpuMemory::is_added_by_owners(const Shard &shard) const {
    return add_by_owner_ && OwnerAdd::takes(shard.description().gradient_type);
}

// The slots of an owner who has opened them: of all senders, which are the other ranks of its host, or of one.
std::span<AddSlot> GpuMemory::add_slots(int owner) {
    const AddQueue &queue = job_.block(owner).add_queue;
    return {reinterpret_cast<AddSlot *>(job_.peer(owner).arena->record(queue.slots)),
            queue.each * (job_.local_peers().size() - 1)};
}

std::span<AddSlot> GpuMemory::add_slots(int owner, int sender) {
    const std::vector<int> &ranks = job_.local_peers();
    const auto before = static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), sender) - ranks.begin());
    const uint64_t each = job_.block(owner).add_queue.each;
    return add_slots(owner).subspan((before - (sender > owner ? 1 : 0)) * each, each);
}

// Opens the slots into which others copy gradients for this rank's GPU.
void GpuMemory::open_owner_add() {
    const int rank = job_.rank();
    AddQueue &queue = job_.block(rank).add_queue;
    Arena &arena = *job_.peer(rank).arena;
    const uint64_t senders = job_.local_peers().size() - 1;
    const auto most = static_cast<uint64_t>(setting_number(Setting::kStagingBytes)) / BouncePool::kBytes;
    queue.each = std::max<uint64_t>(1, most / senders);
    const uint64_t count = queue.each * senders;
    queue.slots = arena.allocate_record(count * sizeof(AddSlot));
    new (arena.record(queue.slots)) AddSlot[count]();  // the record may have been another's
    const std::span<AddSlot> slots = add_slots(rank);
    Cuda::Allocated memory{};
    std::vector<cuda::Address> words;
    try {
        memory = allocate_slots(cuda_, rank, count * BouncePool::kBytes, job_.deadline());
        words = pin(cuda_, slots, &AddSlot::added);
        cuda_.owner_add().open_target({slots, words, memory.start, &queue.bell});
    } catch (...) {
        unpin(cuda_, slots.first(words.size()), &AddSlot::added);
        if (memory.number != 0) {
            cuda_.unmap_region(rank, memory.number, job_.minibatch());
        }
        arena.free_record(queue.slots, count * sizeof(AddSlot));
        throw;
    }
    queue.region = memory.number;
}

// Lets the GPUs of other ranks leave additions to these shards to this one. Before others know them, because they take what is
// sent here in the minibatch of the registration.
void GpuMemory::offer_owner_add(const std::vector<Shard *> &shards) {
    std::set<int> peers;
    for (const Shard *shard : shards) {
        for (uint64_t index = 0; index < shard->owners(); ++index) {
            const int owner = shard->owner(index);
            if (is_added_by_owners(*shard) && shard->own_numel() > 0 && job_.peer(owner).gpu_route.is_direct() &&
                cuda_.is_other(job_.block(owner).gpu)) {
                peers.insert(owner);
            }
        }
    }
    if (peers.empty()) {
        return;
    }
    call_gpu(job_, cuda_.device(), [&] {
        if (cuda_.owner_add().target() == nullptr) {
            open_owner_add();
        }
        for (const Shard *shard : shards) {
            if (is_added_by_owners(*shard) && shard->own_numel() > 0) {
                cuda_.owner_add().target()->add_slice(shard->slice(shard->own_index()));
            }
        }
        std::erase_if(peers, [this](int peer) {
            return add_slots(job_.rank(), peer).front().connected.load(std::memory_order_relaxed) != 0;
        });
        if (!peers.empty()) {
            cuda_.send_region(job_.rank(), job_.block(job_.rank()).add_queue.region, job_.minibatch(), peers);
        }
    });
}

// Whether this rank's GPU can leave additions to the owner's, if it may; else the handle of the owner's slots is on its way.
bool GpuMemory::connect_owner_add(const Shard &shard, int owner) {
    if (!is_added_by_owners(shard) || !cuda_.is_other(job_.block(owner).gpu) ||
        cuda_.owner_add().source_to(owner) != nullptr) {
        return true;
    }
    AddQueue &queue = job_.block(owner).add_queue;  // as it was when the owner registered the shard, or later
    if (queue.region == 0) {
        return true;  // ODC_ADD_BY_OWNER is 0 there
    }
    std::byte *const memory = cuda_.map_region(owner, queue.region);
    if (memory == nullptr) {
        return false;
    }
    const std::span<AddSlot> slots = add_slots(owner, job_.rank());
    const auto first = static_cast<size_t>(slots.data() - add_slots(owner).data());
    std::vector<cuda::Address> words;
    try {
        words = pin(cuda_, slots, &AddSlot::copied);
        cuda_.owner_add().connect(owner, {slots, words, memory + first * BouncePool::kBytes, &queue.bell});
    } catch (...) {
        unpin(cuda_, slots.first(words.size()), &AddSlot::copied);
        cuda_.unmap_region(owner, queue.region, job_.minibatch());
        throw;
    }
    slots.front().connected.store(1, std::memory_order_relaxed);
    job_.log().debug("leaves additions of bf16 and f16 gradients to the GPU of rank {}", owner);
    return true;
}

void GpuMemory::attach_slice(Shard &shard) {
    const Shard::Bases &mine = shard.bases(shard.own_index());
    clear_stripes(shard.host_slice(shard.own_index()));
    call_gpu(job_, cuda_.device(), [&] {
        open_bounce_buffers(shard);
        if (shard.own_numel() == 0) {
            return;
        }
        auto state = std::make_unique<GpuSliceState>();
        state->word = cuda_.pin(shard.record().published);
        bool pinned = false;
        try {
            if (mine.shadow != nullptr) {
                cuda_.pin_pages(mine.shadow, mine.shadow_bytes);
                pinned = true;
            }
            state->totals = shard.is_exact() ? &cuda_.allocate_pinned(page_bytes()) : nullptr;
            state->published = cuda_.create_event();
        } catch (...) {
            free_totals(*state);
            if (pinned) {
                cuda_.unpin_pages(mine.shadow);
            }
            cuda_.unpin(shard.record().published);
            throw;
        }
        shard.engine_state = std::move(state);
        cuda_.map_region(job_.rank(), mine.region);
    });
}

void GpuMemory::free_totals(const GpuSliceState &state) {
    if (state.totals != nullptr) {
        cuda_.free_pinned(*state.totals);
    }
}

void GpuMemory::detach_slice(Shard &shard) {
    if (has_remote_owner(job_, shard)) {
        remote_memory_.deregister_memory(shard.record_offset());
    }
    GpuSliceState *const state = slice_state_of(shard);
    if (state == nullptr) {
        return;
    }
    const Shard::Bases &mine = shard.bases(shard.own_index());
    if (mine.shadow != nullptr) {
        cuda_.unpin_pages(mine.shadow);
    }
    if (OwnerAddTarget *const target = cuda_.owner_add().target()) {
        target->remove_slice(shard.record_offset());
    }
    cuda_.destroy_event(state->published);
    free_totals(*state);
    cuda_.unpin(shard.record().published);
    cuda_.unmap_region(job_.rank(), mine.region, job_.minibatch());
    shard.engine_state.reset();
}

// Registers the slice before any other rank hears of the shard, as the provider may refuse the memory.
void GpuMemory::register_memory(const Shard &shard) {
    if (has_remote_owner(job_, shard)) {
        const uint64_t own = shard.own_index();
        remote_memory_.register_memory(remote_memory_.reaches_gpu() ? shard.slice(own) : shard.host_slice(own));
    }
}

// Sends their region's handle to every rank that one of them lists.
void GpuMemory::send_regions(const std::vector<Shard *> &shards) {
    std::set<int> ranks;
    uint64_t region = 0;
    for (const Shard *shard : shards) {
        if (const uint64_t theirs = shard->bases(shard->own_index()).region; theirs != 0) {
            region = theirs;
            for (uint64_t index = 0; index < shard->owners(); ++index) {
                const int owner = shard->owner(index);
                if (owner != job_.rank() && job_.peer(owner).gpu_route.is_direct()) {
                    ranks.insert(owner);
                }
            }
        }
    }
    if (!ranks.empty()) {
        call_gpu(job_, cuda_.device(), [&] { cuda_.send_region(job_.rank(), region, job_.minibatch(), ranks); });
    }
}

// ---- Other ranks' slices ----

std::optional<Shard::Bases> GpuMemory::map(const Shard &shard, int rank, const ShardRecord &record) {
    try {
        return job_.peer(rank).gpu_route.is_direct() ? map_region(shard, rank, record)
                                                     : map_shadow(shard, rank, record);
    } catch (const Error &error) {
        if (error.status() != ODC_ERROR_DEVICE) {
            throw;
        }
        job_.fail_job(ODC_ERROR_DEVICE, formatted("{} cannot map the GPU memory of {}: {}", job_.who(job_.rank()),
                                                  job_.who(rank), error.what()));
    }
}

std::optional<Shard::Bases> GpuMemory::map_region(const Shard &shard, int rank, const ShardRecord &record) {
    if (record.region == 0) {
        return shard.bases_of(record, nullptr, nullptr);
    }
    std::byte *const start = connect_owner_add(shard, rank) ? cuda_.map_region(rank, record.region) : nullptr;
    if (start == nullptr) {  // a descriptor is on its way
        return std::nullopt;
    }
    return shard.bases_of(record, nullptr, start);
}

Shard::Bases GpuMemory::map_shadow(const Shard &shard, int rank, const ShardRecord &record) {
    Arena &arena = *job_.peer(rank).arena;
    std::byte *const start = record.segment.bytes > 0 ? arena.map(record.segment) : nullptr;
    const Shard::Bases bases = shard.bases_of(record, start, nullptr);
    if (bases.shadow != nullptr) {  // streams will read it
        try {
            cuda_.pin_pages(bases.shadow, bases.shadow_bytes);
        } catch (...) {
            arena.unmap(start);
            throw;
        }
    }
    return bases;
}

void GpuMemory::unmap(const Shard &shard, uint64_t index) {
    const int rank = shard.owner(index);
    const Shard::Bases &bases = shard.bases(index);
    if (bases.device != nullptr) {
        cuda_.unmap_region(rank, bases.region, job_.minibatch());
    }
    if (bases.shadow != nullptr) {
        cuda_.unpin_pages(bases.shadow);
    }
    if (bases.host != nullptr) {
        job_.peer(rank).arena->unmap(bases.host);
    }
}

}  // namespace odc
