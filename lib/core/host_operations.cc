// SPDX-License-Identifier: Apache-2.0
#include "core/host_operations.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/counters.h"
#include "base/element_type.h"
#include "bootstrap/peer.h"
#include "core/exact_sums.h"
#include "core/foreign_slices.h"
#include "core/node_cache.h"
#include "core/node_sums.h"
#include "core/remote_memory.h"
#include "core/shard_directory.h"
#include "core/wait.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

// Zeroes the stripes of this rank's accumulator that nobody added to in the minibatch of `generation`.
void clear_untouched(const RemoteSlice &mine, uint64_t generation) {
    const uint64_t bytes = mine.numel * element_size(accumulator_type(mine.gradient_type));
    for (uint64_t i = 0; mine.stripes != nullptr && i < stripe_count(bytes); ++i) {
        if (mine.stripes[i].generation < generation) {
            const uint64_t begin = i * kStripeBytes;
            std::memset(mine.accumulator + begin, 0, std::min(kStripeBytes, bytes - begin));
        }
    }
}

}  // namespace

HostOperations::HostOperations(Job &job, ShardDirectory &directory, RemoteMemory &remote_memory, Counters &counters,
                               const NodeCacheShare &cache, CheckBuffer check)
    : job_(job), directory_(directory), remote_memory_(remote_memory), counters_(counters),
      cache_(std::make_unique<NodeCache>(job, directory, counters, cache)),
      sums_(std::make_unique<NodeSums>(job, directory, counters)), check_buffer_(check) {}

HostOperations::~HostOperations() = default;

// ---- Shards ----

// Divides the node cache's room among these shards, entries before partial sums.
HostOperations::Holdings HostOperations::plan_held(const std::vector<Shard *> &shards) {
    Holdings held;
    uint64_t room = cache_->room();
    const auto take = [&](Shard::Held Holdings::*kind, const Shard::Held &taken) {
        room -= taken.bytes;
        (held.*kind).add(taken);
        return taken;
    };
    for (Shard *shard : shards) {
        find_holders(job_, *shard);
        shard->hold(take(&Holdings::entries, cache_->plan(*shard, room)), {});
    }
    for (Shard *shard : shards) {
        shard->hold(shard->entries(), take(&Holdings::sums, sums_->plan(*shard, room)));
    }
    return held;
}

void HostOperations::tell_of_room(const std::vector<Shard *> &shards, const Holdings &held) {
    constexpr uint64_t kEnough = ~uint64_t{0};
    Holdings all;
    for (const Shard *shard : shards) {
        all.entries.add(cache_->plan(*shard, kEnough));
        all.sums.add(sums_->plan(*shard, kEnough));
    }
    if (held.bytes() == all.bytes()) {
        return;
    }
    // With `auto` nobody asked for more. Later shards are likely to find no room either, so only the first such call warns.
    const bool warns = cache_->has_given_size() && !std::exchange(warned_of_room_, true);
    job_.log().line(
        warns ? ODC_LOG_WARN : ODC_LOG_INFO,
        "has room in the node cache for {} of {} slices of other hosts and {} of {} partial sums ({} of {} bytes); the ranks "
        "of its host read and add to the others each for itself; set ODC_NODE_CACHE to more bytes",
        held.entries.count, all.entries.count, held.sums.count, all.sums.count, held.bytes(), all.bytes());
}

// Slices come first: if there is no memory, or there are no addresses, for entries and partial sums, too, these shards get none of
// them. As many as fit would leave nothing for slices that are registered later.
std::vector<Allocation> HostOperations::allocate(const std::vector<Shard *> &shards) {
    Arena &arena = *job_.peer(job_.rank()).arena;
    const auto sizes = [&] {
        std::vector<uint64_t> all;
        for (const Shard *shard : shards) {
            all.push_back(shard->host_bytes());
        }
        return all;
    };
    const Holdings held = cache_->is_on() ? plan_held(shards) : Holdings{};
    std::string why;
    try {
        std::vector<Allocation> allocations = arena.allocate(sizes());
        tell_of_room(shards, held);
        return allocations;
    } catch (const Error &error) {
        if (held.bytes() == 0) {
            throw;
        }
        why = error.what();
    }
    for (Shard *shard : shards) {
        shard->hold({}, {});
    }
    std::vector<Allocation> allocations = arena.allocate(sizes());
    // Later shards are likely to find no memory either, so only the first such call warns.
    const odc_log_level level = std::exchange(warned_of_entries_, true) ? ODC_LOG_INFO : ODC_LOG_WARN;
    job_.log().line(
        level,
        "holds nothing of {} shards for the node cache, so the ranks of its host read and add slices each for itself: "
        "{} bytes cannot be had ({}); free memory, or let ODC_NODE_CACHE be less",
        shards.size(), held.bytes(), why);
    return allocations;
}

void HostOperations::attach(const std::vector<Shard *> &shards) {
    Arena &arena = *job_.peer(job_.rank()).arena;
    shards_.reserve(shards_.size() + shards.size());
    const std::vector<Allocation> allocations = allocate(shards);
    size_t registered = 0;
    try {
        for (size_t i = 0; i < shards.size(); ++i) {
            Shard &shard = *shards[i];
            shard.set_memory(allocations[i], {});
            if (has_remote_owner(job_, shard)) {
                remote_memory_.register_memory(shard.slice(shard.own_index()));
            }
            registered = i + 1;
        }
    } catch (...) {
        for (size_t i = 0; i < shards.size(); ++i) {
            if (i < registered && has_remote_owner(job_, *shards[i])) {
                remote_memory_.deregister_memory(shards[i]->record_offset());
            }
            arena.free(allocations[i]);
        }
        throw;
    }
    for (const Shard *shard : shards) {
        cache_->took(*shard);
    }
    shards_.insert(shards_.end(), shards.begin(), shards.end());
}

void HostOperations::detach(Shard &shard) {
    std::erase(shards_, &shard);
    cache_->forget(shard);
    if (has_remote_owner(job_, shard)) {
        remote_memory_.deregister_memory(shard.record_offset());
    }
    job_.peer(job_.rank()).arena->free(shard.host_region());
}

std::optional<Shard::Bases> HostOperations::map(const Shard &shard, int rank, const ShardRecord &record) {
    std::byte *const base = record.segment.bytes > 0 ? job_.peer(rank).arena->map(record.segment) : nullptr;
    return shard.bases_of(record, base, nullptr);
}

void HostOperations::unmap(const Shard &shard, uint64_t index) {
    if (std::byte *const base = shard.bases(index).host) {
        job_.peer(shard.owner(index)).arena->unmap(base);
    }
}

// ---- A minibatch ----

void HostOperations::check_stream(void *stream) const {
    if (stream != nullptr && check_buffer_ == nullptr) {
        fail(ODC_ERROR_UNSUPPORTED, "a stream is given for odc_publish_all, but this rank has no GPU: pass NULL");
    }
}

// The caller has written the slice already: no stream is involved.
void HostOperations::publish(Shard &shard, void *) {
    if (shard.is_exact()) {
        publish_vote(shard, generation());
    }
    shard.record().published.store(generation(), std::memory_order_release);
}

void HostOperations::tell_published(Shard &shard) {
    if (has_remote_owner(job_, shard)) {
        job_.channel().tell(published_message(job_, shard), shard.description().ranks);
    }
}

void HostOperations::read_ahead(Shard &shard) { cache_->read_ahead(shard); }

// Additions that wait for a publish are made, and this rank is counted in, when they are waited for or in the sync.
void HostOperations::end_additions(Shard &shard, const std::vector<Operation *> &started) {
    shard.finished = generation();
    const bool all_added = std::all_of(started.begin(), started.end(), [](const Operation *addition) {
        return std::get<Operation::ScatterAdd>(addition->kind).added;
    });
    if (all_added) {
        sums_->finish(shard, Call::Finish);
    }
}

void HostOperations::before_arrival(const std::vector<Operation *> &started) {
    for (Operation *operation : started) {
        finish(*operation);
    }
    Job::Wait wait(job_, call_name(Call::Sync));
    sums_->end(shards_, wait);
    cache_->end_reads(wait);
}

void HostOperations::after_arrival() {
    for (Shard *shard : shards_) {
        if (shard->is_exact()) {
            finish_exact_sums(*shard, generation(), job_, counters_);
        } else {
            clear_untouched(shard->slice(shard->own_index()), generation());
        }
    }
}

// ---- Gathers and additions ----

void HostOperations::get(Operation &operation, uint64_t index) {
    const Shard &shard = *operation.shard;
    if (shard.slices().numel(index) > 0 && !get_once_published(operation, index)) {
        fail(ODC_ERROR_INTERNAL, "the transport to rank {} does not begin to read a slice that is published",
             shard.owner(index));
    }
}

// Begins to read the slice, now or as soon as its owner publishes; false if only a later call can.
bool HostOperations::get_once_published(Operation &operation, uint64_t index) {
    const Shard &shard = *operation.shard;
    if (shard.linked(index) == nullptr) {
        return false;
    }
    StartedGet started =
        job_.endpoint_to(shard.owner(index)).start_get(shard.slice(index), operation.target(index), generation(), {});
    if (started.request) {
        operation.in_flight.push_back({index, std::move(started.request)});
    }
    return started.begun;
}

void HostOperations::check_buffer(const Operation &operation) const {
    const Shard &shard = *operation.shard;
    if (check_buffer_ == nullptr || shard.description().numel == 0) {
        return;
    }
    const auto *gather = std::get_if<Operation::Gather>(&operation.kind);
    check_buffer_(gather != nullptr ? gather->to : std::get<Operation::ScatterAdd>(operation.kind).from,
                  formatted("{}: the buffer for shard \"{}\"", call_name(operation.call()), shard.name()));
}

void HostOperations::start(Operation &operation) {
    check_buffer(operation);
    operation.in_flight.reserve(operation.shard->owners());  // what has begun is kept, whatever memory is left
    if (auto *gather = std::get_if<Operation::Gather>(&operation.kind)) {
        start_gather(operation, *gather);
        return;
    }
    Shard &shard = *operation.shard;
    bool all_published = true;
    for (uint64_t i = 0; i < shard.owners(); ++i) {  // all are asked, as a released one is an error
        all_published = directory_.is_published(shard, (shard.own_index() + i) % shard.owners()) && all_published;
    }
    if (all_published) {
        Job::Wait wait(job_, call_name(Call::ScatterAdd));
        add(operation, wait);
    }
}

void HostOperations::start_gather(Operation &operation, Operation::Gather &gather) {
    Shard &shard = *operation.shard;
    // While this thread copies on this host, the progress threads read from others.
    for (const bool here : {false, true}) {
        for (uint64_t i = 0; i < shard.owners(); ++i) {
            const uint64_t index = (shard.own_index() + i) % shard.owners();
            if (job_.on_this_host(shard.owner(index)) == here && !begin_get(operation, gather, index)) {
                gather.unread.push_back(index);
            }
        }
    }
    std::erase_if(gather.cached, [&](uint64_t index) { return cache_->copy(shard, index, operation.target(index)); });
}

void HostOperations::finish_gather(Operation &operation, Operation::Gather &gather, Job::Wait &wait) {
    Shard &shard = *operation.shard;
    for (begin_gets(operation, gather); !gather.unread.empty(); begin_gets(operation, gather)) {
        const uint64_t index = gather.unread.back();
        const bool awaits_holder = cache_->caches(shard, index) && shard.linked(index) != nullptr;
        directory_.await_published(shard, awaits_holder ? cache_->holder(shard, index) : index, wait);
    }
    for (; gather.copied < gather.cached.size(); ++gather.copied) {
        const uint64_t index = gather.cached[gather.copied];
        if (!cache_->await_and_copy(shard, index, operation.target(index), wait)) {
            get(operation, index);
        }
    }
    await_in_flight(operation, wait);
}

// Begins to read all that it can now, so that those reads proceed while this rank waits for the rest.
void HostOperations::begin_gets(Operation &operation, Operation::Gather &gather) {
    for (size_t i = gather.unread.size(); i-- > 0;) {
        if (begin_get(operation, gather, gather.unread[i])) {
            gather.unread.erase(gather.unread.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
}

// Begins to read the slice, from the node cache or its owner; false if only a later call can.
bool HostOperations::begin_get(Operation &operation, Operation::Gather &gather, uint64_t index) {
    Shard &shard = *operation.shard;
    const bool published = directory_.is_published(shard, index);  // links its record
    if (cache_->caches(shard, index)) {
        // Whether the slice has an entry is known once its holder has published; and its owner must have registered the shard.
        if (shard.linked(index) == nullptr || !directory_.is_published(shard, cache_->holder(shard, index))) {
            return false;
        }
        if (cache_->has_entry(shard, index)) {
            cache_->want(shard, index);
            gather.cached.push_back(index);
            return true;
        }
    }
    if (!published) {
        return get_once_published(operation, index);
    }
    get(operation, index);
    return true;
}

void HostOperations::add(Operation &operation, Job::Wait &wait) {
    Shard &shard = *operation.shard;
    wait.begin_effects();
    wait.describe([this, &shard, &wait] {
        return formatted("{} is still adding to the same part of shard \"{}\"; it {}", job_.who(wait.holder()),
                         shard.name(), job_.what(wait.holder()));
    });
    const int exponent = shard.is_exact() ? exponent_of(shard, generation()) : 0;
    const auto adds_here = [&](uint64_t index) {
        return job_.on_this_host(shard.owner(index)) || sums_->takes(shard, index);
    };
    const auto add_to = [&](uint64_t index) {
        const bool is_partial = sums_->takes(shard, index);
        RemoteSlice to = is_partial ? sums_->sum(shard, index) : shard.slice(index);
        to.exponent = exponent;
        Endpoint &endpoint = job_.endpoint_to(shard.owner(is_partial ? foreign_slice(shard, index)->holder : index));
        if (auto request = endpoint.start_add(to, operation.gradient(index), generation(), wait)) {
            operation.in_flight.push_back({index, std::move(request)});
        }
    };
    // Post the additions to other hosts first, then add on this thread, to partial sums too, own slice first. Each rank begins
    // at its own index, so that at any time the ranks are at different owners.
    try {
        for (const bool here : {false, true}) {
            for (uint64_t i = 0; i < shard.owners(); ++i) {
                const uint64_t index = (shard.own_index() + i) % shard.owners();
                if (shard.slices().numel(index) > 0 && adds_here(index) == here) {
                    add_to(index);
                }
            }
        }
    } catch (...) {
        job_.fail_halfway(Call::ScatterAdd);
    }
    if (wait.waited_ns() > 0) {
        counters_.lock_wait_ns.add(static_cast<uint64_t>(wait.waited_ns()));
    }
    wait.end_effects();
    std::get<Operation::ScatterAdd>(operation.kind).added = true;
}

void HostOperations::finish(Operation &operation) {
    Shard &shard = *operation.shard;
    Job::Wait wait(job_, call_name(operation.call()));
    if (auto *gather = std::get_if<Operation::Gather>(&operation.kind)) {
        finish_gather(operation, *gather, wait);
        return;
    }
    if (!std::get<Operation::ScatterAdd>(operation.kind).added) {
        for (uint64_t i = 0; i < shard.owners(); ++i) {
            directory_.await_published(shard, (shard.own_index() + i) % shard.owners(), wait);
        }
        add(operation, wait);
    }
    if (operation.started_only) {
        await_in_flight(operation, wait);
        return;
    }
    wait.begin_effects();  // sent additions cannot be taken back
    try {
        await_in_flight(operation, wait);
    } catch (...) {
        job_.fail_halfway(Call::ScatterAdd);
    }
}

void HostOperations::await_in_flight(Operation &operation, Job::Wait &wait) {
    while (!operation.in_flight.empty()) {
        const auto &[index, request] = operation.in_flight.back();
        const int owner = request->owner();
        directory_.await_published(*operation.shard, index, wait);
        wait.describe([&, owner] { return operation.in_flight_text(job_, owner); });
        wait.until_served(owner, [&request = *request] { return request.is_complete(); });
        operation.in_flight.pop_back();
    }
}

void HostOperations::cancel(Operation &operation, const std::function<void()> &look) {
    std::vector<std::shared_ptr<Request>> requests;
    for (const auto &[index, request] : operation.in_flight) {
        requests.push_back(request);
    }
    job_.cancel(requests, operation.call(), look);
    operation.in_flight.clear();
}

}  // namespace odc
