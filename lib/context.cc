// SPDX-License-Identifier: Apache-2.0
#include "context.h"

#include <algorithm>

#include "element.h"

namespace odc {

Context::Noted Context::note(Call call, const Shard *shard) {
    return {job_, call, shard != nullptr ? shard->record() : 0, minibatch_};
}

Context::Context(const odc_config &config)
    : job_(join(config)), posts_(job_), peers_(static_cast<size_t>(job_.size())) {}

Context::~Context() {
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

void Context::check_not_arrived(Call call) {
    if (left_) {
        fail(ODC_ERROR_PHASE, call_name(call), ": this rank has left the job (odc_shutdown)");
    }
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
        slice_bytes += made.back()->slice_bytes();
    }
    settle(made);
    std::vector<Shard *> handles;
    for (std::unique_ptr<Shard> &one : made) {
        Shard &shard = *one;
        announce(shard);
        handles.push_back(&shard);
        fresh_.push_back(&shard);
        shards_[shard.name()] = std::move(one);
    }
    totals_.slice_bytes.fetch_add(slice_bytes, std::memory_order_relaxed);
    ring(job_.mine());
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
    std::vector<uint64_t> sizes;
    for (const auto &shard : shards) {
        mirror_if_needed(*shard);
        sizes.push_back(shard->host_bytes());
    }
    const std::vector<Allocation> regions = arena.allocate(sizes);
    std::vector<GpuAllocation> gpu_regions;
    std::vector<uint64_t> records;
    try {
        gpu_regions = allocate_on_gpu(shards);
        for (size_t i = 0; i < shards.size(); ++i) {
            Shard &shard = *shards[i];
            records.push_back(arena.allocate_record(shard.record_bytes()));
            auto &post = *reinterpret_cast<Post *>(arena.record(records[i]));
            shard.settle(post, records[i], regions[i], gpu_regions[i], minibatch_);
            if (shard.on_gpu()) {
                equip(shard);
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
            strip(*shards[i]);
            arena.free_record(records[i], shards[i]->record_bytes());
        }
        std::for_each(regions.begin(), regions.end(), [&](const Allocation &region) { arena.free(region); });
        throw;
    }
}

// The provider may refuse the memory, so before anybody hears of the shard.
void Context::expose(Shard &shard) {
    if (reaches_out(shard)) {
        job_.fabric()->expose(shard.host_slice(shard.own_index()));
    }
}

void Context::conceal(Shard &shard) {
    if (reaches_out(shard)) {
        job_.fabric()->conceal(shard.record());
    }
}

void Context::announce(Shard &shard) {
    posts_.announce(shard);
    if (Fabric *others = job_.fabric()) {
        const Description &d = shard.description();
        others->announce({shard.record(), shard.registered, d.numel, shard.own_numel(), 0, 0, d.parameter_type,
                          d.gradient_type, d.memory, d.name, d.ranks, d.slices});
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
        fail(ODC_ERROR_PHASE, "odc_release_shard: ", job_.cuda()->device().name(), " has not done yet ",
             job_.cuda()->flights().under_way(), "; release shard \"", shard.name(), "\" after odc_minibatch_sync");
    }
    const Noted noted = note(Call::ReleaseShard, &shard);
    std::erase(fresh_, &shard);
    freed_.insert(shard.name());
    totals_.slice_bytes.fetch_sub(shard.slice_bytes(), std::memory_order_relaxed);
    posts_.retire(shard, minibatch_);
    ring(job_.mine());
    job_.tell(ReleasedNotice{shard.record()}, shard.description().ranks);
    conceal(shard);
    strip(shard);
    if (!is_kept_by_mates(shard)) {
        unpin_mirror(shard);
        job_.peer(job_.rank()).arena->free(shard.host_region());
    }
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
    ring(job_.mine());
    tell_published(shard);
}

void Context::tell_published(Shard &shard) {
    const PublishedNotice notice{shard.record(), minibatch_};
    if (job_.fabric() != nullptr && shard.mark != nullptr) {  // on a GPU, and not empty
        job_.fabric()->tell_when(shard.post().published, minibatch_ + 1, notice, shard.description().ranks);
    } else {
        job_.tell(notice, shard.description().ranks);
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
    std::vector<Shard *> opened;
    for (const auto &[name, shard] : shards_) {
        if (shard->published <= minibatch_) {
            open(*shard, stream);
            opened.push_back(shard.get());
        }
    }
    if (opened.empty() && !shards_.empty()) {
        fail(ODC_ERROR_PHASE, "odc_publish_all: every shard is published already in minibatch ", minibatch_);
    }
    ring(job_.mine());
    // What was published before, on a GPU, need not be there yet.
    if (std::none_of(shards_.begin(), shards_.end(), [](const auto &one) { return one.second->on_gpu(); })) {
        job_.tell(AllPublishedNotice{minibatch_});
        return;
    }
    for (Shard *shard : opened) {
        tell_published(*shard);
    }
}

// ---- Gathers and additions ----

bool Context::is_published(Shard &shard, uint64_t index) {
    // The own slice by the order of calls: on a GPU its word may still be to come, and so may what waits for it there.
    if (shard.slices().numel(index) == 0 || index == shard.own_index()) {
        return true;
    }
    Post *post = posts_.find(shard, index);
    if (post == nullptr) {
        return false;
    }
    if (post->published.load(std::memory_order_acquire) > minibatch_ && shard.stands(*post)) {
        return true;
    }
    if (post->released.load(std::memory_order_acquire) != 0 || !shard.stands(*post)) {
        job_.fail_job(ODC_ERROR_MISMATCH, say(job_.who(shard.owner(index)), " released shard \"", shard.name(),
                                              "\", but ", job_.who(job_.rank()), " uses it in minibatch ", minibatch_));
    }
    return false;
}

std::string Context::missing_publish(const Shard &shard, uint64_t index) {
    const int owner = shard.owner(index);
    return say(job_.who(owner), " has not ", shard.linked(index) == nullptr ? "registered" : "published", " shard \"",
               shard.name(), "\" in minibatch ", minibatch_, "; it ", job_.what(owner));
}

void Context::await_publish(Shard &shard, uint64_t index, Job::Wait &wait) {
    if (is_published(shard, index)) {
        return;
    }
    const int64_t begin = now_ns();
    wait.describe([this, &shard, index] { return missing_publish(shard, index); });
    if (shard.on_gpu()) {
        GpuWatch watch(*this);
        wait.until_seen(shard.owner(index), [&] { return is_published(shard, index) || watch.look(); });
    } else {
        wait.until(shard.owner(index), [&] { return is_published(shard, index); });
    }
    const auto waited = static_cast<uint64_t>(now_ns() - begin);
    totals_.publish_wait_ns.fetch_add(waited, std::memory_order_relaxed);
    peers_[static_cast<size_t>(shard.owner(index))].publish_wait_ns.fetch_add(waited, std::memory_order_relaxed);
}

// Where the slice of an owner begins in the caller's buffer.
std::byte *Context::place(const Operation &operation, uint64_t index) const {
    const Shard &shard = *operation.shard;
    const Description &d = shard.description();
    const int32_t type = operation.call == Call::Gather ? d.parameter_type : d.gradient_type;
    return operation.buffer + shard.slices().begin(index) * element_size(type);
}

void Context::get(Operation &operation, uint64_t index) {
    Shard &shard = *operation.shard;
    if (shard.slices().numel(index) == 0) {
        return;
    }
    Path &path = *job_.peer(shard.owner(index)).route.path;
    if (auto transfer = path.start_get(shard.slice(index), place(operation, index), minibatch_ + 1)) {
        operation.travelling.push_back({index, std::move(transfer)});
    }
}

// Whether somebody else sees to it when the owner publishes.
bool Context::expect(Operation &operation, uint64_t index) {
    Shard &shard = *operation.shard;
    if (shard.linked(index) == nullptr) {
        return false;
    }
    Path &path = *job_.peer(shard.owner(index)).route.path;
    auto transfer = path.expect_get(shard.slice(index), place(operation, index), minibatch_ + 1);
    if (transfer) {
        operation.travelling.push_back({index, std::move(transfer)});
        return true;
    }
    return false;
}

void Context::add(Operation &operation, Job::Wait &wait) {
    Shard &shard = *operation.shard;
    int64_t lock_wait_ns = 0;
    wait.begin_effects();
    wait.describe([this, &shard, &wait] {
        return say(job_.who(wait.holder()), " keeps a stripe of shard \"", shard.name(), "\" locked; it ",
                   job_.what(wait.holder()));
    });
    const auto add_to = [&](uint64_t index) {
        Path &path = *job_.peer(shard.owner(index)).route.path;
        if (auto transfer =
                path.start_add(shard.slice(index), place(operation, index), minibatch_ + 1, wait, &lock_wait_ns)) {
            operation.travelling.push_back({index, std::move(transfer)});
        }
    };
    // What travels goes first, and what this thread does itself meanwhile; own slice first there. Round in both cases:
    // at any time the ranks are at different owners.
    for (const bool here : {false, true}) {
        for (uint64_t i = 0; i < shard.owners(); ++i) {
            const uint64_t index = (shard.own_index() + i) % shard.owners();
            if (shard.slices().numel(index) > 0 && job_.on_this_host(shard.owner(index)) == here) {
                add_to(index);
            }
        }
    }
    if (lock_wait_ns > 0) {
        totals_.lock_wait_ns.fetch_add(static_cast<uint64_t>(lock_wait_ns), std::memory_order_relaxed);
    }
    wait.end_effects();
}

void Context::begin(const Operation &operation) {
    const Call call = operation.call;
    const Shard &shard = *operation.shard;
    check_not_arrived(call);
    if (shard.own_numel() > 0 && shard.published <= minibatch_) {
        fail(ODC_ERROR_PHASE, call_name(call), ": publish this rank's slice of shard \"", shard.name(),
             "\" in minibatch ", minibatch_, " first");
    }
    job_.check();
}

void Context::count(const Operation &operation) {
    const Description &d = operation.shard->description();
    if (operation.call == Call::Gather) {
        totals_.gather_calls.fetch_add(1, std::memory_order_relaxed);
        totals_.gather_bytes.fetch_add(d.numel * element_size(d.parameter_type), std::memory_order_relaxed);
    } else {
        totals_.scatter_add_calls.fetch_add(1, std::memory_order_relaxed);
        totals_.scatter_add_bytes.fetch_add(d.numel * element_size(d.gradient_type), std::memory_order_relaxed);
    }
}

void Context::start(Operation &operation) {
    begin(operation);
    if (operation.shard->on_gpu()) {
        start_on_gpu(operation);
    } else {
        start_on_host(operation);
    }
    count(operation);
}

void Context::start_on_host(Operation &operation) {
    const Call call = operation.call;
    Shard &shard = *operation.shard;
    if (job_.cuda() != nullptr && shard.description().numel > 0) {
        CudaDevice::check_host_buffer(operation.buffer,
                                      say(call_name(call), ": the buffer for shard \"", shard.name(), "\""));
    }
    operation.travelling.reserve(shard.owners());
    bool all_ready = true;
    std::vector<uint64_t> here;
    for (uint64_t i = 0; i < shard.owners(); ++i) {
        const uint64_t index = (shard.own_index() + i) % shard.owners();
        const bool ready = is_published(shard, index);
        all_ready = all_ready && ready;
        if (call == Call::ScatterAdd || (!ready && !expect(operation, index))) {
            operation.left.push_back(index);
        } else if (!ready) {
            continue;
        } else if (job_.on_this_host(shard.owner(index))) {
            here.push_back(index);
        } else {
            get(operation, index);
        }
    }
    // What travels is on its way; meanwhile this thread copies.
    for (const uint64_t index : here) {
        get(operation, index);
    }
    if (call == Call::ScatterAdd && all_ready) {
        Job::Wait wait(job_, call_name(call));
        add(operation, wait);
        operation.left.clear();
    }
}

void Context::finish(Operation &operation) {
    Job::Wait wait(job_, call_name(operation.call));
    if (operation.shard->on_gpu()) {
        finish_on_gpu(operation, wait);
        return;
    }
    if (operation.call == Call::Gather) {
        while (!operation.left.empty()) {
            await_publish(*operation.shard, operation.left.back(), wait);
            get(operation, operation.left.back());
            operation.left.pop_back();
        }
    } else {
        for (const uint64_t index : operation.left) {
            await_publish(*operation.shard, index, wait);
        }
        if (!operation.left.empty()) {
            add(operation, wait);
        }
        operation.left.clear();
    }
    await_transfers(operation, wait);
}

std::string Context::under_way(const Operation &operation, int owner) {
    return say(operation.call == Call::Gather ? "the slice of " : "an addition to ", job_.who(owner), " of shard \"",
               operation.shard->name(), "\" is on its way; it ", job_.what(owner));
}

void Context::await_transfers(Operation &operation, Job::Wait &wait) {
    while (!operation.travelling.empty()) {
        const auto &[index, transfer] = operation.travelling.back();
        const int owner = transfer->owner();
        await_publish(*operation.shard, index, wait);
        wait.describe([&, owner] { return under_way(operation, owner); });
        wait.until_served(owner, [&transfer = *transfer] { return transfer.done(); });
        operation.travelling.pop_back();
    }
}

// After an error: returns when nothing touches the caller's buffer any more. What has left for a peer cannot be called
// back: a slow one is awaited; from one that is lost it does not come, so the connections are closed, and with them the
// job.
void Context::give_up(Operation &operation) {
    constexpr int64_t kLostNs = 1'000'000'000;
    const Patience patience = job_.patience();
    std::vector<std::shared_ptr<Transfer>> travelling;
    for (const auto &[index, transfer] : operation.travelling) {
        travelling.push_back(transfer);
    }
    for (const Fetch &fetch : operation.fetches) {
        for (const Fetch::Piece &piece : fetch.pieces) {
            travelling.push_back(piece.transfer);
        }
    }
    for (const auto &transfer : travelling) {
        job_.peer(transfer->owner()).route.path->cancel(transfer);
    }
    for (const auto &transfer : travelling) {
        const int owner = transfer->owner();
        for (int64_t lost_ns = 0; !transfer->settled(); job_.sleep(owner)) {
            if (job_.serves(owner) && !patience.over()) {
                lost_ns = 0;
            } else if (lost_ns == 0) {
                lost_ns = now_ns();
                job_.learn();
            } else if (now_ns() - lost_ns > kLostNs) {
                job_.abort(say(job_.who(job_.rank()), " gave up ", call_name(operation.call), ", and ", job_.who(owner),
                               " does not answer"));
            }
        }
    }
    operation.travelling.clear();
    for (Fetch &fetch : operation.fetches) {
        job_.cuda()->fetches().drop(fetch);
    }
    operation.fetches.clear();
}

void Context::gather(Shard &shard, void *full, void *stream) {
    const Noted noted = note(Call::Gather, &shard);
    Operation operation{Call::Gather, &shard, static_cast<std::byte *>(full), stream, {}, {}};
    try {
        start(operation);
        finish(operation);
    } catch (...) {
        give_up(operation);
        job_.check();
        throw;
    }
}

void Context::scatter_add(Shard &shard, const void *full, void *stream) {
    const Noted noted = note(Call::ScatterAdd, &shard);
    Operation operation{Call::ScatterAdd, &shard, static_cast<std::byte *>(const_cast<void *>(full)), stream, {}, {}};
    try {
        start(operation);
        finish(operation);
    } catch (const Error &error) {
        if (error.status() == ODC_ERROR_INTERRUPTED && !operation.travelling.empty()) {
            job_.abort(say(job_.who(job_.rank()), " stopped halfway, so the sums are incomplete: ", error.what()));
        }
        give_up(operation);
        job_.check();
        throw;
    } catch (...) {
        give_up(operation);
        throw;
    }
}

uint64_t Context::keep(Operation operation) {
    try {
        start(operation);
        const std::lock_guard lock(operations_mutex_);
        operations_.emplace(last_operation_ + 1, std::move(operation));
        return ++last_operation_;
    } catch (...) {
        give_up(operation);
        job_.check();
        throw;
    }
}

uint64_t Context::gather_start(Shard &shard, void *full, void *stream) {
    const Noted noted = note(Call::Gather, &shard);
    return keep({Call::Gather, &shard, static_cast<std::byte *>(full), stream, {}, {}});
}

uint64_t Context::scatter_add_start(Shard &shard, const void *full, void *stream) {
    const Noted noted = note(Call::ScatterAdd, &shard);
    return keep({Call::ScatterAdd, &shard, static_cast<std::byte *>(const_cast<void *>(full)), stream, {}, {}});
}

void Context::wait(uint64_t number) {
    check_not_arrived(Call::Wait);
    decltype(operations_)::node_type entry;
    {
        const std::lock_guard lock(operations_mutex_);
        entry = operations_.extract(number);
        if (!entry) {
            if (number > 0 && number <= synced_operations_) {
                return;
            }
            fail(ODC_ERROR_ARGUMENT, "odc_wait: there is no operation ", number,
                 number > 0 && number <= last_operation_ ? " any more; each is waited for once" : "");
        }
    }
    Operation &operation = entry.mapped();
    const Noted noted = note(Call::Wait, operation.shard);
    try {
        job_.check();
        finish(operation);
    } catch (const Error &error) {
        if (error.status() > ODC_ERROR_PEER_LOST) {  // no job error: the call may be made again
            const std::lock_guard lock(operations_mutex_);
            operations_.insert(std::move(entry));
        } else {
            give_up(operation);
        }
        throw;
    } catch (...) {
        give_up(operation);
        throw;
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
            job_.packets_sent()};
}

odc_peer_stats Context::peer_stats(int rank) const {
    const PeerTimes &times = peers_[static_cast<size_t>(rank)];
    return {sizeof(odc_peer_stats), times.publish_wait_ns.load(std::memory_order_relaxed),
            times.sync_late_ns.load(std::memory_order_relaxed), times.sync_last.load(std::memory_order_relaxed)};
}

}  // namespace odc
