// SPDX-License-Identifier: Apache-2.0
// The contract for shards in GPU memory: what the host waits for, and what it leaves to the caller's streams.
#include <algorithm>

#include "base/element_type.h"
#include "base/settings.h"
#include "core/context.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

constexpr int64_t kSettleMs = 2'000;  // for what is on its way when a context ends

std::string words_for(Call call, const Shard &shard) {
    return say(call_name(call), " of shard \"", shard.name(), "\"");
}

}  // namespace

// A GPU that has failed is everybody's affair at once.
template <class Body>
void Context::on_gpu(Body body) {
    Cuda &cuda = *job_.cuda();
    try {
        const CudaDevice::Scope scope(cuda.device());
        body(cuda);
    } catch (const Error &error) {
        job_.fail_of_gpu(error);
        throw;
    }
}

// The body is a flight's, and what it enqueued before it failed is followed by nothing.
template <class Body>
void Context::enqueue(Call call, Body body) {
    on_gpu([&](Cuda &cuda) {
        try {
            body(cuda);
        } catch (const std::bad_alloc &) {
            fail_halfway(call);
        }
    });
}

// On the operation's stream, behind the opening of the own slice, which may be on another one and not done; sync waits
// for it.
template <class Body>
void Context::fly(const Operation &operation, Body body) {
    const Shard &shard = *operation.shard;
    const uint64_t flight = begin_flight(operation.call, shard, words_for(operation.call, shard));
    enqueue(operation.call, [&](Cuda &cuda) {
        auto *const stream = static_cast<cuda::Stream>(operation.stream);
        if (shard.mark != nullptr && shard.post().published.load(std::memory_order_acquire) <= minibatch_) {
            cuda.wait_event(shard.mark, stream);
        }
        body(cuda, stream);
        cuda.pending_work().track(flight, stream);
    });
}

// ---- Shards ----

void Context::check_gpu_routes(const Description &description) {
    if (description.memory != ODC_GPU_MEMORY) {
        return;
    }
    if (job_.cuda() == nullptr) {
        fail(ODC_ERROR_UNSUPPORTED, "shard \"", description.name, "\" is to be in GPU memory, but rank ", job_.rank(),
             " has no GPU: name one by config.device or ODC_DEVICE, such as cuda:0");
    }
    const std::vector<int32_t> &ranks = description.ranks;
    for (int rank = 0; rank < job_.size(); ++rank) {
        const RouteChoice &choice = job_.peer(rank).gpu_route.choice;
        const bool listed = ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
        if (listed && choice.transport.empty()) {
            fail(ODC_ERROR_UNSUPPORTED, "shard \"", description.name, "\" is to be in GPU memory, but from ",
                 job_.who(job_.rank()), " there is no path to that of ", job_.who(rank), ": ", choice.why);
        }
    }
}

// One region for all of them.
std::vector<GpuAllocation> Context::allocate_on_gpu(const std::vector<std::unique_ptr<Shard>> &shards) {
    constexpr uint64_t kAlignment = 256;
    std::vector<GpuAllocation> parts;
    uint64_t bytes = 0;
    for (const auto &shard : shards) {
        parts.push_back({0, nullptr, bytes});
        bytes += (shard->gpu_bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    if (bytes == 0) {
        return parts;
    }
    try {
        on_gpu([&](Cuda &cuda) {
            const auto [region, start] = cuda.allocate(job_.rank(), bytes, job_.deadline());
            for (size_t i = 0; i < shards.size(); ++i) {
                if (shards[i]->gpu_bytes() > 0) {
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
        for (const auto &shard : shards) {
            if (shard->gpu_bytes() > 0) {
                names.push_back(say("\"", shard->name(), "\""));
            }
        }
        fail(ODC_ERROR_NO_MEMORY, names.size() == 1 ? "shard " : "shards ", listed(names, ", "), ": ", error.what());
    }
    return parts;
}

// The use that allocating is.
void Context::drop(const std::vector<GpuAllocation> &parts) {
    for (const GpuAllocation &part : parts) {
        if (part.region != 0) {
            job_.cuda()->unmap_region(job_.rank(), part.region, minibatch_);
            return;  // there is one region
        }
    }
}

bool Context::nics_reach_gpu() { return job_.fabric() != nullptr && job_.fabric()->reaches_gpu(); }

// For ranks that reach it through host memory.
void Context::mirror_if_needed(Shard &shard) {
    for (uint64_t index = 0; shard.on_gpu() && index < shard.owners(); ++index) {
        const int owner = shard.owner(index);
        const bool by_nic = nics_reach_gpu() && !job_.on_this_host(owner);
        if (!job_.peer(owner).gpu_route.is_direct() && !by_nic) {
            shard.mirror();
        }
    }
}

// What goes through host memory, if nothing has gone there yet.
void Context::open_staging(const Shard &shard) {
    Cuda &cuda = *job_.cuda();
    const auto slots = [&](size_t least) {
        return BouncePool::of_pinned_memory(cuda.device(),
                                            static_cast<uint64_t>(setting_number(Setting::kStagingBytes)), least);
    };
    const auto register_memory = [&](const BouncePool &opened, Access access, auto close) {
        try {
            job_.fabric()->register_memory(opened, access);
        } catch (...) {
            close();
            throw;
        }
    };
    if (shard.is_mirrored() && !cuda.has_staging_proxy()) {
        const StagingProxy &staging_proxy = cuda.open_staging_proxy(job_.rank(), slots(StagingProxy::kLeastSlots));
        if (job_.fabric() != nullptr && !nics_reach_gpu()) {
            register_memory(staging_proxy.slots(), Access::RemoteRead, [&] { cuda.close_staging_proxy(); });
        }
    }
    if (reaches_out(shard) && !cuda.has_staged_gets()) {
        const StagedGets &staged_gets = cuda.open_staged_gets(slots(StagedGets::kLeastSlots));
        register_memory(staged_gets.slots(), Access::Local, [&] { cuda.close_staged_gets(); });
    }
}

// With what its publishes need, and what goes through host memory.
void Context::attach_gpu(Shard &shard) {
    const Shard::Bases &mine = shard.bases(shard.own_index());
    if (const RemoteSlice mirror = shard.host_slice(shard.own_index()); mirror.stripes != nullptr) {
        // Something else may have been there, in another shard's mirror.
        const uint64_t sums = mirror.numel * element_size(accumulator_type(mirror.gradient_type));
        for (uint64_t i = 0; i < stripe_count(sums); ++i) {
            mirror.stripes[i].lock.store(0, std::memory_order_relaxed);
            mirror.stripes[i].epoch = 0;
        }
    }
    on_gpu([&](Cuda &cuda) {
        open_staging(shard);
        if (shard.own_numel() == 0) {
            return;
        }
        shard.word = cuda.pin(shard.post().published);
        bool pinned = false;
        try {
            if (mine.mirror != nullptr) {
                cuda.pin_pages(mine.mirror, mine.mirror_bytes);
                pinned = true;
            }
            shard.mark = cuda.create_event();
        } catch (...) {
            if (pinned) {
                cuda.unpin_pages(mine.mirror);
            }
            cuda.unpin(shard.post().published);
            throw;
        }
        cuda.map_region(job_.rank(), mine.region);
    });
}

// A mirror that ranks of this host read stays a mirror: they may have its pages pinned for as long as they keep the shard,
// and what lay there next would not be what they see.
bool Context::is_kept_by_mates(const Shard &shard) const {
    for (uint64_t index = 0; shard.is_mirrored() && index < shard.owners(); ++index) {
        const int owner = shard.owner(index);
        if (job_.on_this_host(owner) && !job_.peer(owner).gpu_route.is_direct()) {
            return true;
        }
    }
    return false;
}

void Context::unpin_mirror(Shard &shard) {
    const Shard::Bases &mine = shard.bases(shard.own_index());
    if (shard.mark != nullptr && mine.mirror != nullptr) {
        job_.cuda()->unpin_pages(mine.mirror);
    }
}

void Context::detach_gpu(Shard &shard) {
    if (shard.mark == nullptr) {
        return;
    }
    Cuda *cuda = job_.cuda();
    const Shard::Bases &mine = shard.bases(shard.own_index());
    cuda->destroy_event(shard.mark);
    cuda->unpin(shard.post().published);
    cuda->unmap_region(job_.rank(), mine.region, minibatch_);
    shard.mark = nullptr;
}

// Hands their region to every rank that one of them lists.
void Context::offer(const std::vector<std::unique_ptr<Shard>> &shards) {
    std::set<int> ranks;
    uint64_t region = 0;
    for (const auto &shard : shards) {
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
        on_gpu([&](Cuda &cuda) { cuda.send_region(job_.rank(), region, minibatch_, ranks); });
    }
}

// ---- A minibatch ----

// Before anything is published.
void Context::check_stream(void *stream) {
    const auto on_gpu_too = [](const auto &entry) { return entry.second->on_gpu(); };
    if (std::any_of(shards_.begin(), shards_.end(), on_gpu_too)) {
        on_gpu([&](Cuda &cuda) { cuda.device().checked_stream(stream, call_name(Call::Publish)); });
    } else if (stream != nullptr && job_.cuda() == nullptr) {
        fail(ODC_ERROR_UNSUPPORTED, "a stream is given for odc_publish_all, but this rank has no GPU: pass NULL");
    }
}

void Context::open_on_gpu(Shard &shard, void *stream) {
    const RemoteSlice mine = shard.slice(shard.own_index());
    const RemoteSlice mirror = shard.host_slice(shard.own_index());
    auto *const on = static_cast<cuda::Stream>(stream);
    on_gpu([&](Cuda &cuda) { cuda.device().checked_stream(stream, call_name(Call::Publish)); });
    if (shard.own_numel() > 0) {
        const uint64_t flight = job_.cuda()->pending_work().begin(shard.record(), words_for(Call::Publish, shard));
        enqueue(Call::Publish, [&](Cuda &cuda) {
            const uint64_t sums =
                mine.accumulator == nullptr ? 0 : mine.numel * element_size(accumulator_type(mine.gradient_type));
            cuda.publish({mine.accumulator, sums, mine.parameters, mirror.parameters,
                          mine.numel * element_size(mine.parameter_type), shard.mark, shard.word, minibatch_ + 1},
                         on);
            cuda.pending_work().track(flight, shard.post().published, minibatch_ + 1);
        });
    }
}

void Context::start_on_gpu(Operation &operation) {
    Shard &shard = *operation.shard;
    on_gpu([&](Cuda &cuda) {
        cuda.device().checked_stream(operation.stream, call_name(operation.call));
        if (shard.description().numel > 0) {
            cuda.device().check_buffer(operation.buffer,
                                       say(call_name(operation.call), ": the buffer for shard \"", shard.name(), "\""));
        }
        cuda.progress_ipc();
    });
    std::vector<uint64_t> ready;
    for (uint64_t i = 0; i < shard.owners(); ++i) {
        const uint64_t index = (shard.own_index() + i) % shard.owners();
        (is_published(shard, index) ? ready : operation.left).push_back(index);
    }
    if (operation.call == Call::Gather) {
        get_on_gpu(operation, ready);
    } else if (operation.left.empty()) {
        Job::Wait wait(job_, call_name(operation.call));
        add_on_gpu(operation, wait);
    } else {
        operation.left.push_back(shard.own_index());  // marks what is not added yet
    }
}

void Context::finish_on_gpu(Operation &operation, Job::Wait &wait) {
    Shard &shard = *operation.shard;
    if (!operation.left.empty() || !operation.staged_gets.empty()) {  // it may be captured by now
        on_gpu([&](Cuda &cuda) { cuda.device().checked_stream(operation.stream, call_name(operation.call)); });
    }
    if (operation.call == Call::Gather) {
        await_staged_gets(operation, wait);
        while (!operation.left.empty()) {
            await_publish(shard, operation.left.front(), wait);
            get_published(operation);
            await_staged_gets(operation, wait);
        }
    } else if (!operation.left.empty()) {
        for (const uint64_t index : operation.left) {
            await_publish(shard, index, wait);
        }
        add_on_gpu(operation, wait);
        operation.left.clear();
    }
}

// Of those that are left.
void Context::get_published(Operation &operation) {
    std::vector<uint64_t> ready;
    for (const uint64_t index : operation.left) {
        if (is_published(*operation.shard, index)) {
            ready.push_back(index);
        }
    }
    get_on_gpu(operation, ready);
    std::erase_if(operation.left,
                  [&](uint64_t index) { return std::find(ready.begin(), ready.end(), index) != ready.end(); });
}

void Context::get_on_gpu(Operation &operation, const std::vector<uint64_t> &indexes) {
    Shard &shard = *operation.shard;
    const size_t size = element_size(shard.description().parameter_type);
    std::vector<Cuda::Copy> copies;
    std::vector<StagedGet> staged_gets;
    for (const uint64_t index : indexes) {
        if (shard.slices().numel(index) == 0) {
            continue;
        }
        const RemoteSlice from = shard.slice(index);
        const int owner = shard.owner(index);
        if (!job_.on_this_host(owner)) {
            staged_gets.push_back(
                {owner, job_.peer(owner).route.path.get(), from, place(operation, index), minibatch_ + 1});
        } else {
            copies.push_back({from.parameters, place(operation, index), from.numel * size,
                              !shard.is_staged(index) && job_.cuda()->is_other(job_.block(owner).gpu)});
        }
    }
    if (!copies.empty()) {
        fly(operation, [&](Cuda &cuda, cuda::Stream stream) { cuda.get(copies, stream); });
    }
    if (!staged_gets.empty()) {
        std::move(staged_gets.begin(), staged_gets.end(), std::back_inserter(operation.staged_gets));
        job_.cuda()->staged_gets().read_ahead(operation.staged_gets);
    }
}

// Until the copies of all that comes from other hosts are enqueued.
void Context::await_staged_gets(Operation &operation, Job::Wait &wait) {
    if (operation.staged_gets.empty()) {
        return;
    }
    StagedGets &staged_gets = job_.cuda()->staged_gets();
    const auto advance = [&] {
        staged_gets.read(operation.staged_gets);
        if (std::any_of(operation.staged_gets.begin(), operation.staged_gets.end(),
                        [](const StagedGet &fetch) { return fetch.has_arrived(); })) {
            const uint64_t flight = job_.cuda()->pending_work().begin(operation.shard->record(),
                                                                      words_for(operation.call, *operation.shard));
            enqueue(operation.call, [&](Cuda &cuda) {
                for (StagedGet &fetch : operation.staged_gets) {
                    staged_gets.enqueue(fetch, static_cast<cuda::Stream>(operation.stream));
                }
                cuda.pending_work().remove(flight);
            });
        }
    };
    for (StagedGet &fetch : operation.staged_gets) {
        wait.describe([&] { return under_way(operation, fetch.owner); });
        wait.until_seen_served([&] { return fetch.owner; },
                               [&] {
                                   advance();
                                   return fetch.is_enqueued();
                               });
    }
    fly(operation, [](Cuda &, cuda::Stream) {});
    operation.staged_gets.clear();
}

void Context::add_on_gpu(Operation &operation, Job::Wait &wait) {
    Shard &shard = *operation.shard;
    add_directly(operation);
    wait.begin_effects();
    try {
        for (uint64_t i = 1; i < shard.owners(); ++i) {
            const uint64_t index = (shard.own_index() + i) % shard.owners();
            if (shard.slices().numel(index) > 0 && shard.is_staged(index)) {
                add_by_staging_proxy(operation, index, wait);
            }
        }
    } catch (...) {
        fail_halfway(Call::ScatterAdd);
    }
    wait.end_effects();
}

void Context::add_directly(Operation &operation) {
    Shard &shard = *operation.shard;
    std::vector<Addend> addends;
    for (uint64_t i = 0; i < shard.owners(); ++i) {
        const uint64_t index = (shard.own_index() + i) % shard.owners();
        if (shard.slices().numel(index) > 0 && !shard.is_staged(index)) {
            const RemoteSlice to = shard.slice(index);
            addends.push_back({place(operation, index), to.accumulator, to.numel});
        }
    }
    if (addends.empty()) {
        return;
    }
    fly(operation,
        [&](Cuda &cuda, cuda::Stream stream) { cuda.add(shard.description().gradient_type, addends, stream); });
}

// An owner on another host that leaves takes nothing more.
template <class Ready>
void Context::wait_for_staging_proxy(Job::Wait &wait, const Ready &ready) {
    const auto awaited = [this] { return job_.cuda()->awaited_owner().value_or(job_.rank()); };
    wait.until_seen_served(awaited, ready);
}

// What this rank has enqueued and what has come of it.
std::string Context::gpu_work() {
    if (const std::string under_way = job_.cuda()->pending_work().describe(); !under_way.empty()) {
        return under_way;
    }
    const std::optional<int> owner = job_.cuda()->awaited_owner();
    return owner ? say("an addition that ", job_.who(*owner), " is to apply; it ", job_.what(*owner))
                 : "copies through host memory";
}

// As much as there is room for, again and again: the host waits while the GPU has not given up what it was handed.
void Context::add_by_staging_proxy(Operation &operation, uint64_t index, Job::Wait &wait) {
    const RemoteSlice to = operation.shard->host_slice(index);
    const uint64_t stripes = stripe_count(to.numel * element_size(accumulator_type(to.gradient_type)));
    const int owner = operation.shard->owner(index);
    Endpoint *const path = job_.on_this_host(owner) ? nullptr : job_.peer(owner).route.path.get();
    StagingProxy::Addition load{to, path, place(operation, index), 0, minibatch_ + 1};
    wait.describe([&, this] {
        return say("there is no room to carry gradients of shard \"", operation.shard->name(), "\" to ",
                   job_.who(owner), ": ", gpu_work());
    });
    wait_for_staging_proxy(wait, [&] {
        const uint64_t flight =
            job_.cuda()->pending_work().begin(operation.shard->record(), words_for(operation.call, *operation.shard));
        enqueue(operation.call, [&](Cuda &cuda) {
            if (const uint64_t carried =
                    cuda.staging_proxy_to(path).stage(load, static_cast<cuda::Stream>(operation.stream))) {
                load.stripe += carried;
                wait.begin_effects();
            }
            cuda.pending_work().remove(flight);
        });
        return load.stripe == stripes;
    });
}

// By which sync knows when it is done. Before anything is enqueued: until then the call may be interrupted.
uint64_t Context::begin_flight(Call call, const Shard &shard, const std::string &words) {
    PendingWork &pending_work = job_.cuda()->pending_work();
    std::optional<uint64_t> flight = pending_work.begin_with_word(shard.record(), words);
    if (!flight) {
        Job::Wait wait(job_, call_name(call));
        wait.describe([&] {
            return say("too much is on its way on ", job_.cuda()->device().name(), ": ", pending_work.describe());
        });
        wait.until_seen([this] { return job_.rank(); },
                        [&] { return (flight = pending_work.begin_with_word(shard.record(), words)).has_value(); });
    }
    return *flight;
}

// For those who may give up first.
void Context::note_gpu_wait() {
    Cuda &cuda = *job_.cuda();
    if (cuda.awaited_owner() && cuda.pending_work().all_done()) {  // it waits for another rank
        job_.note_gpu_done();
    } else {
        job_.note_gpu_wait(cuda.pending_work().first_record());
    }
}

// What this rank has enqueued is done, and its descriptors are with its peers: then it may arrive.
void Context::land() {
    Cuda *cuda = job_.cuda();
    if (cuda == nullptr) {
        return;
    }
    on_gpu([](Cuda &one) { one.device().check_health(); });  // also where all is done
    Job::Wait wait(job_, call_name(Call::Sync));
    wait.describe(
        [&] { return say(cuda->device().name(), " has not done yet what was enqueued there: ", gpu_work()); });
    wait_for_staging_proxy(wait, [&] {
        note_gpu_wait();
        return cuda->is_idle();
    });
    job_.note_gpu_done();
    const auto behind = [&] { return cuda->lagging_peer().value_or(job_.rank()); };
    wait.describe([&] {
        return say(job_.who(behind()), " has not taken the descriptors of this rank's GPU memory; it ",
                   job_.what(behind()));
    });
    wait.until_seen(behind, [&] { return cuda->progress_ipc(); });
}

// What other ranks added in host memory belongs to this rank's sums, too.
void Context::fold_mirrors() {
    Cuda *cuda = job_.cuda();
    if (cuda == nullptr) {
        return;
    }
    for (const auto &[name, shard] : shards_) {
        if (shard->is_mirrored() && shard->folded <= minibatch_) {
            fold(*shard);
            shard->folded = minibatch_ + 1;
        }
    }
    Job::Wait wait(job_, call_name(Call::Sync));
    wait.describe([&] { return say(cuda->device().name(), " has not done yet ", cuda->pending_work().describe()); });
    wait.until_seen([this] { return job_.rank(); }, [&] { return cuda->pending_work().all_done(); });
}

void Context::fold(Shard &shard) {
    const RemoteSlice mirror = shard.host_slice(shard.own_index());
    if (mirror.accumulator == nullptr) {
        return;
    }
    const RemoteSlice mine = shard.slice(shard.own_index());
    const int32_t type = accumulator_type(mine.gradient_type);
    const uint64_t in_stripe = stripe_elements(mine.gradient_type);
    const std::byte *from = nullptr;
    on_gpu([&](Cuda &cuda) { from = device_pointer(cuda.device(), mirror.accumulator); });
    std::vector<Addend> addends;
    uint64_t end = 0;
    for (uint64_t first = 0; first < mine.numel; first += in_stripe) {
        if (mirror.stripes[first / in_stripe].epoch > minibatch_) {
            const uint64_t at = first * element_size(type);
            const uint64_t numel = std::min(in_stripe, mine.numel - first);
            if (!addends.empty() && end == first) {
                addends.back().numel += numel;
            } else {
                addends.push_back({from + at, mine.accumulator + at, numel});
            }
            end = first + numel;
        }
    }
    const uint64_t flight = begin_flight(
        Call::Sync, shard, say("the adding of what came through host memory to ", words_for(Call::Sync, shard)));
    enqueue(Call::Sync, [&](Cuda &cuda) {
        cuda.add(type, addends, cuda.device().own_stream());
        cuda.pending_work().track(flight, cuda.device().own_stream());
    });
}

// Before this rank leaves: what it has published shall be there. After a sync nothing is under way; after an error, or
// without a last sync, something may be, and what streams still use must not be unmapped.
bool Context::settles_on_gpu() { return job_.cuda() == nullptr || job_.cuda()->drain(kSettleMs); }

}  // namespace odc
