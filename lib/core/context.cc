// SPDX-License-Identifier: Apache-2.0
#include "core/context.h"

#include <algorithm>

#include "base/element_type.h"

namespace odc {

namespace {

// Of one call. With stripes and alignment it stays below 2^64.
constexpr uint64_t kMostSliceBytes = uint64_t{1} << 62;

}  // namespace

Context::Noted Context::note(Call call, const Shard *shard) {
    if (job_.log().on(ODC_LOG_TRACE)) {
        job_.log().trace("calls ", call_name(call), shard != nullptr ? say(" of shard \"", shard->name(), '"') : "");
    }
    return {job_, call, shard != nullptr ? shard->record() : 0, minibatch_};
}

Context::Context(const odc_config &config, Log &log)
    : job_(join(config, log)), sync_tree_(job_, &ControlBlock::synced, &ControlBlock::sync_tree),
      reduction_tree_(job_, &ControlBlock::reduced, &ControlBlock::reduction_tree), directory_(job_),
      peers_(static_cast<size_t>(job_.size())) {
    find_arrival_times();
}

Context::~Context() {
    if (Cuda *cuda = job_.cuda()) {
        cuda->stop_gdr_add();  // what is unmapped soon
    }
    const bool settled = settles_on_gpu();
    job_.leave(minibatch_);
    if (!settled) {
        job_.leak_cuda();
    }
}

void Context::shutdown() {
    if (left_) {
        fail(ODC_ERROR_PHASE, "odc_shutdown: this rank has left the job already");
    }
    left_ = true;
    job_.log().info("leaves the job in minibatch ", minibatch_);
    const Noted noted = note(Call::Shutdown, nullptr);
    settles_on_gpu();
    job_.leave(minibatch_);
    job_.flush();
}

void Context::abort(const char *text) {
    if (left_) {
        fail(ODC_ERROR_PHASE, "odc_abort: this rank has left the job");
    }
    const Noted noted = note(Call::Abort, nullptr);
    job_.abort(say(job_.who(job_.rank()), " aborted the job in minibatch ", minibatch_, ": ",
                   text != nullptr && text[0] != '\0' ? text : "no reason given"));
}

// ---- Phases ----

void Context::check_not_left(Call call) const {
    if (left_) {
        fail(ODC_ERROR_PHASE, call_name(call), ": this rank has left the job (odc_shutdown)");
    }
}

void Context::check_not_arrived(Call call) {
    check_not_left(call);
    if (job_.mine().arrived.load(std::memory_order_relaxed) > minibatch_ && call != Call::Sync) {
        job_.check();
        fail(ODC_ERROR_PHASE, call_name(call), ": odc_minibatch_sync of minibatch ", minibatch_,
             " was interrupted; finish it by calling it again");
    }
    if (job_.mine().reductions.load(std::memory_order_relaxed) > reductions_ && call != Call::AllReduce) {
        job_.check();
        fail(ODC_ERROR_PHASE, call_name(call), ": odc_all_reduce of minibatch ", minibatch_,
             " was interrupted; finish it by calling it again");
    }
}

// ---- Shards ----

std::vector<Shard *> Context::register_shards(std::vector<Description> descriptions) {
    check_not_arrived(Call::RegisterShard);
    job_.check();
    const Noted noted = note(Call::RegisterShard, nullptr);
    check_new(descriptions);
    std::vector<std::unique_ptr<Shard>> made;
    uint64_t slice_bytes = 0;
    for (Description &one : descriptions) {
        made.push_back(std::make_unique<Shard>(std::move(one), job_.rank(), job_.size()));
        slice_bytes += made.back()->slice_bytes();  // each at most 2^62
        if (slice_bytes > kMostSliceBytes) {
            fail(ODC_ERROR_ARGUMENT, "the ", descriptions.size(), " shards of one odc_register_shards, up to \"",
                 made.back()->name(), "\", are together larger than any memory");
        }
    }
    std::vector<Shard *> handles;
    std::map<std::string, std::unique_ptr<Shard>> places;
    for (const std::unique_ptr<Shard> &one : made) {
        handles.push_back(one.get());
        places.emplace(one->name(), nullptr);
    }
    fresh_.reserve(fresh_.size() + made.size());
    directory_.expect(minibatch_);
    settle(made);
    // From here nothing allocates: peers see the shards, which cannot be taken back.
    for (std::unique_ptr<Shard> &one : made) {
        job_.log().debug("registers shard \"", one->name(), "\", here ", one->slice_bytes(), " bytes");
        directory_.announce(*one);
        fresh_.push_back(one.get());
        places.find(one->name())->second = std::move(one);
    }
    shards_.merge(places);
    totals_.slice_bytes.fetch_add(slice_bytes, std::memory_order_relaxed);
    ring(job_.mine());
    announce_elsewhere(handles);
    return handles;
}

void Context::check_new(const std::vector<Description> &descriptions) {
    std::map<std::string_view, int> names;
    for (const Description &one : descriptions) {
        if (shards_.count(one.name) != 0 || names[one.name]++ != 0) {
            fail(ODC_ERROR_ARGUMENT, "shard \"", one.name,
                 "\" is registered already; release it first, or choose another name");
        }
        if (freed_.count(one.name) != 0) {
            fail(ODC_ERROR_PHASE, "the name of shard \"", one.name, "\" was released in this minibatch (", minibatch_,
                 "); it may be used again in the next");
        }
        check_gpu_routes(one);
    }
}

// Gives all of them their memory, or none.
void Context::settle(const std::vector<std::unique_ptr<Shard>> &shards) {
    Arena &arena = *job_.peer(job_.rank()).arena;
    std::set<size_t> kept;  // which of them were mirrors before
    const std::vector<Allocation> regions = allocate_on_host(shards, kept);
    std::vector<GpuAllocation> gpu_regions;
    std::vector<uint64_t> records;
    try {
        gpu_regions = allocate_on_gpu(shards);
        for (size_t i = 0; i < shards.size(); ++i) {
            Shard &shard = *shards[i];
            records.push_back(arena.allocate_record(shard.record_bytes()));
            auto &post = *reinterpret_cast<ShardRecord *>(arena.record(records[i]));
            shard.settle(post, records[i], regions[i], gpu_regions[i], minibatch_);
            if (shard.on_gpu()) {
                attach_gpu(shard);
            }
            expose(shard);
        }
        offer(shards);
        drop(gpu_regions);
    } catch (...) {
        drop(gpu_regions);
        for (size_t i = 0; i < records.size(); ++i) {
            conceal(*shards[i]);
            unpin_mirror(*shards[i]);
            detach_gpu(*shards[i]);
            arena.free_record(records[i], shards[i]->record_bytes());
        }
        for (size_t i = 0; i < shards.size(); ++i) {  // nobody has seen the new ones
            kept.count(i) != 0 ? give_back(*shards[i], regions[i]) : arena.free(regions[i]);
        }
        throw;
    }
}

std::vector<Allocation> Context::allocate_on_host(const std::vector<std::unique_ptr<Shard>> &shards,
                                                  std::set<size_t> &kept) {
    std::vector<uint64_t> sizes;
    std::vector<Allocation> regions(shards.size());
    for (size_t i = 0; i < shards.size(); ++i) {
        mirror_if_needed(*shards[i]);
        sizes.push_back(shards[i]->host_bytes());
        const auto found = is_kept_by_mates(*shards[i]) ? kept_mirrors_.find(sizes[i]) : kept_mirrors_.end();
        if (found != kept_mirrors_.end()) {
            kept.insert(i);
            regions[i] = found->second;
            kept_mirrors_.erase(found);
            sizes[i] = 0;
        }
    }
    try {
        const std::vector<Allocation> fresh = job_.peer(job_.rank()).arena->allocate(sizes);
        for (size_t i = 0; i < shards.size(); ++i) {
            regions[i] = kept.count(i) != 0 ? regions[i] : fresh[i];
        }
    } catch (...) {
        for (const size_t i : kept) {
            give_back(*shards[i], regions[i]);
        }
        throw;
    }
    return regions;
}

void Context::give_back(const Shard &shard, const Allocation &region) {
    if (is_kept_by_mates(shard)) {
        kept_mirrors_.emplace(shard.host_bytes(), region);
    } else {
        job_.peer(job_.rank()).arena->free(region);
    }
}

// The provider may refuse the memory, so before anybody hears of the shard.
void Context::expose(Shard &shard) {
    if (reaches_out(shard)) {
        const uint64_t own = shard.own_index();
        job_.fabric()->register_slice(nics_reach_gpu() ? shard.slice(own) : shard.host_slice(own));
    }
}

void Context::conceal(Shard &shard) {
    if (reaches_out(shard)) {
        job_.fabric()->deregister_slice(shard.record());
    }
}

void Context::announce_elsewhere(const std::vector<Shard *> &shards) {
    Fabric *const others = job_.fabric();
    if (others == nullptr) {
        return;
    }
    try {
        for (const Shard *shard : shards) {
            const Description &d = shard->description();
            others->announce({shard->record(), shard->registered, d.numel, shard->own_numel(), 0, 0, d.parameter_type,
                              d.gradient_type, d.memory, d.name, d.ranks, d.slices});
        }
    } catch (...) {
        fail_halfway(Call::RegisterShard);
    }
}

bool Context::reaches_out(const Shard &shard) {
    for (uint64_t index = 0; index < shard.owners(); ++index) {
        if (!job_.on_this_host(shard.owner(index))) {
            return true;
        }
    }
    return false;
}

void Context::release(Shard &shard) {
    check_not_arrived(Call::ReleaseShard);
    if (shard.published > minibatch_) {
        fail(ODC_ERROR_PHASE, "odc_release_shard: shard \"", shard.name(), "\" is published in minibatch ", minibatch_,
             "; release it after odc_minibatch_sync");
    }
    {
        const std::lock_guard lock(operations_mutex_);
        for (const auto &[number, operation] : operations_) {
            if (operation.shard == &shard) {
                fail(ODC_ERROR_PHASE, "odc_release_shard: operation ", number, " on shard \"", shard.name(),
                     "\" is started; wait for it first");
            }
        }
    }
    if (shard.on_gpu() && !job_.cuda()->is_idle()) {
        fail(ODC_ERROR_PHASE, "odc_release_shard: ", job_.cuda()->device().name(), " has not done yet ", gpu_work(),
             "; release shard \"", shard.name(), "\" after odc_minibatch_sync");
    }
    const Noted noted = note(Call::ReleaseShard, &shard);
    std::erase(fresh_, &shard);
    freed_.insert(shard.name());
    totals_.slice_bytes.fetch_sub(shard.slice_bytes(), std::memory_order_relaxed);
    directory_.retire(shard, minibatch_);
    ring(job_.mine());
    job_.tell(ReleasedMessage{shard.record()}, shard.description().ranks);
    conceal(shard);
    unpin_mirror(shard);
    detach_gpu(shard);
    give_back(shard, shard.host_region());
    shards_.erase(shards_.find(shard.name()));
}

void Context::publish(Shard &shard, void *stream) {
    check_not_arrived(Call::Publish);
    job_.check();
    if (shard.published > minibatch_) {
        fail(ODC_ERROR_PHASE, "odc_publish: shard \"", shard.name(), "\" is published already in minibatch ",
             minibatch_);
    }
    const Noted noted = note(Call::Publish, &shard);
    open(shard, stream);
    try {
        ring(job_.mine());
        tell_published(shard);
    } catch (...) {
        fail_halfway(Call::Publish);
    }
}

void Context::fail_halfway(Call call) {
    std::string words = "out of memory";  // short enough to need none
    try {
        throw;
    } catch (const Error &error) {
        try {
            words = say(job_.who(job_.rank()), " stopped halfway in ", call_name(call), ": ", error.what());
        } catch (const std::bad_alloc &) {
        }
    } catch (const std::exception &) {
    } catch (...) {  // pthread_exit in a callback
        job_.abort(say(job_.who(job_.rank()), " stopped halfway in ", call_name(call), ": its thread ended"));
        throw;
    }
    try {
        job_.abort(words);
    } catch (const std::bad_alloc &) {  // it is kept, whoever could not be told
    }
    job_.check();
    throw std::logic_error("an abort was not kept");
}

void Context::rethrow() {
    try {
        throw;
    } catch (const std::exception &) {  // what pthread_exit throws must go on
        job_.check();
        throw;
    }
}

void Context::tell_published(Shard &shard) {
    if (!reaches_out(shard)) {
        return;
    }
    const PublishedMessage message{shard.record(), minibatch_};
    if (shard.mark != nullptr) {  // on a GPU, and not empty
        job_.fabric()->tell_when(shard.post().published, minibatch_ + 1, message, shard.description().ranks);
    } else {
        job_.tell(message, shard.description().ranks);
    }
}

void Context::open(Shard &shard, void *stream) {
    if (shard.on_gpu()) {
        open_on_gpu(shard, stream);
    } else {
        shard.post().published.store(minibatch_ + 1, std::memory_order_release);
    }
    shard.published = minibatch_ + 1;
    job_.mine().opened.store(minibatch_ + 1, std::memory_order_release);
}

void Context::publish_all(void *stream) {
    check_not_arrived(Call::Publish);
    job_.check();
    const Noted noted = note(Call::Publish, nullptr);
    check_stream(stream);
    std::vector<Shard *> closed;
    for (const auto &[name, shard] : shards_) {
        if (shard->published <= minibatch_) {
            closed.push_back(shard.get());
        }
    }
    if (closed.empty() && !shards_.empty()) {
        fail(ODC_ERROR_PHASE, "odc_publish_all: every shard is published already in minibatch ", minibatch_);
    }
    if (closed.empty()) {
        return;
    }
    open(*closed.front(), stream);
    try {
        for (size_t i = 1; i < closed.size(); ++i) {
            open(*closed[i], stream);
        }
        ring(job_.mine());
        tell_all_published(closed);
    } catch (...) {
        fail_halfway(Call::Publish);
    }
}

void Context::tell_all_published(const std::vector<Shard *> &opened) {
    // What was published before, on a GPU, need not be there yet.
    if (std::none_of(shards_.begin(), shards_.end(), [](const auto &one) { return one.second->on_gpu(); })) {
        job_.tell(AllPublishedMessage{minibatch_});
        return;
    }
    for (Shard *shard : opened) {
        tell_published(*shard);
    }
}

// ---- Statistics ----

odc_stats Context::stats() const {
    const auto value = [](const std::atomic<uint64_t> &counter) { return counter.load(std::memory_order_relaxed); };
    return {sizeof(odc_stats),
            value(totals_.gather_calls),
            value(totals_.gather_bytes),
            value(totals_.scatter_add_calls),
            value(totals_.scatter_add_bytes),
            value(totals_.syncs),
            value(totals_.publish_wait_ns),
            value(totals_.sync_wait_ns),
            value(totals_.lock_wait_ns),
            value(totals_.slice_bytes),
            job_.packets_sent(),
            job_.cuda() != nullptr ? job_.cuda()->pinned_bytes() : 0};
}

odc_peer_stats Context::peer_stats(int rank) const {
    const PeerTimes &times = peers_[static_cast<size_t>(rank)];
    return {sizeof(odc_peer_stats), times.publish_wait_ns.load(std::memory_order_relaxed),
            times.sync_late_ns.load(std::memory_order_relaxed), times.sync_last.load(std::memory_order_relaxed)};
}

}  // namespace odc
