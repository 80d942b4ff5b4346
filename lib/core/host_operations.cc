// SPDX-License-Identifier: Apache-2.0
// Gathers and additions: what each owner's slice waits for, and how an operation ends.
#include <algorithm>

#include "base/element_type.h"
#include "core/context.h"

namespace odc {

bool Context::is_published(Shard &shard, uint64_t index) {
    // The own slice by the order of calls: on a GPU its word may still be to come, and so may what waits for it there.
    if (shard.slices().numel(index) == 0 || index == shard.own_index()) {
        return true;
    }
    ShardRecord *post = directory_.find(shard, index);
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
    const bool registered = shard.linked(index) != nullptr;
    return say(job_.who(owner), " has not ", registered ? "published" : "registered", " shard \"", shard.name(),
               "\" in minibatch ", minibatch_,
               registered && shard.on_gpu() ? ", or the stream that does it has not come so far" : "", "; it ",
               job_.what(owner));
}

void Context::await_publish(Shard &shard, uint64_t index, Job::Wait &wait) {
    if (is_published(shard, index)) {
        return;
    }
    const int64_t begin = now_ns();
    wait.describe([this, &shard, index] { return missing_publish(shard, index); });
    if (shard.on_gpu()) {
        wait.until_seen([&] { return shard.owner(index); }, [&] { return is_published(shard, index); });
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
    Endpoint &path = *job_.peer(shard.owner(index)).route.path;
    if (auto request = path.start_get(shard.slice(index), place(operation, index), minibatch_ + 1).request) {
        operation.pending.push_back({index, std::move(request)});
    }
}

// Whether somebody else sees to it when the owner publishes.
bool Context::expect(Operation &operation, uint64_t index) {
    Shard &shard = *operation.shard;
    if (shard.linked(index) == nullptr) {
        return false;
    }
    Endpoint &path = *job_.peer(shard.owner(index)).route.path;
    StartedGet get = path.start_get(shard.slice(index), place(operation, index), minibatch_ + 1);
    if (get.request) {
        operation.pending.push_back({index, std::move(get.request)});
    }
    return get.begun;
}

void Context::add(Operation &operation, Job::Wait &wait) {
    Shard &shard = *operation.shard;
    wait.begin_effects();
    wait.describe([this, &shard, &wait] {
        return say(job_.who(wait.holder()), " keeps a stripe of shard \"", shard.name(), "\" locked; it ",
                   job_.what(wait.holder()));
    });
    const auto add_to = [&](uint64_t index) {
        Endpoint &path = *job_.peer(shard.owner(index)).route.path;
        if (auto request = path.start_add(shard.slice(index), place(operation, index), minibatch_ + 1, wait)) {
            operation.pending.push_back({index, std::move(request)});
        }
    };
    // What travels goes first, and what this thread does itself meanwhile; own slice first there. Round in both cases:
    // at any time the ranks are at different owners.
    try {
        for (const bool here : {false, true}) {
            for (uint64_t i = 0; i < shard.owners(); ++i) {
                const uint64_t index = (shard.own_index() + i) % shard.owners();
                if (shard.slices().numel(index) > 0 && job_.on_this_host(shard.owner(index)) == here) {
                    add_to(index);
                }
            }
        }
    } catch (...) {
        fail_halfway(Call::ScatterAdd);
    }
    if (wait.waited_ns() > 0) {
        totals_.lock_wait_ns.fetch_add(static_cast<uint64_t>(wait.waited_ns()), std::memory_order_relaxed);
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
    job_.check_peers();
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
    operation.pending.reserve(shard.owners());
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
    if (operation.call == Call::Gather || operation.kept) {
        await_transfers(operation, wait);
        return;
    }
    wait.begin_effects();  // what travels will be added
    try {
        await_transfers(operation, wait);
    } catch (...) {
        fail_halfway(operation.call);
    }
}

std::string Context::under_way(const Operation &operation, int owner) {
    return say(operation.call == Call::Gather ? "the slice of " : "an addition to ", job_.who(owner), " of shard \"",
               operation.shard->name(), "\" is on its way; it ", job_.what(owner));
}

void Context::await_transfers(Operation &operation, Job::Wait &wait) {
    while (!operation.pending.empty()) {
        const auto &[index, request] = operation.pending.back();
        const int owner = request->owner();
        await_publish(*operation.shard, index, wait);
        wait.describe([&, owner] { return under_way(operation, owner); });
        wait.until_served(owner, [&request = *request] { return request.is_complete(); });
        operation.pending.pop_back();
    }
}

// After an error: returns when nothing touches the caller's buffer any more. What has left for a peer cannot be called
// back: a slow one is awaited; from one that is lost it does not come, so the connections are closed, and with them the
// job.
void Context::settle(Operation &operation) {
    settle(operation, [] {});
}

// `look` may throw: then it is to be settled again.
template <class Look>
void Context::settle(Operation &operation, const Look &look) {
    constexpr int64_t kLostNs = 1'000'000'000;
    const Deadline deadline = job_.deadline();
    std::vector<std::shared_ptr<Request>> pending;
    for (const auto &[index, request] : operation.pending) {
        pending.push_back(request);
    }
    for (const StagedGet &fetch : operation.staged_gets) {
        for (const StagedGet::Piece &piece : fetch.pieces) {
            pending.push_back(piece.request);
        }
    }
    for (const auto &request : pending) {
        request->cancel();
    }
    for (const auto &request : pending) {
        const int owner = request->owner();
        for (int64_t lost_ns = 0; request->is_pending(); job_.sleep(owner)) {
            look();
            if (job_.serves(owner) && !deadline.over()) {
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
    operation.pending.clear();
    for (StagedGet &fetch : operation.staged_gets) {
        job_.cuda()->staged_gets().release(fetch);
    }
}

void Context::give_up(Operation &operation) {
    settle(operation);
    operation.staged_gets.clear();
}

// In a catch. True: it is to be waited for again, and keeps no staging that others need until then. False: the job has
// failed, and it is given up.
bool Context::leave_unfinished(Operation &operation) {
    if (job_.has_failed()) {
        give_up(operation);
        return false;
    }
    if (!operation.staged_gets.empty()) {
        settle(operation);
    }
    return true;
}

void Context::gather(Shard &shard, void *full, void *stream) {
    const Noted noted = note(Call::Gather, &shard);
    Operation operation{Call::Gather, &shard, static_cast<std::byte *>(full), stream, {}, {}};
    try {
        start(operation);
        finish(operation);
    } catch (...) {
        give_up(operation);
        rethrow();
    }
}

void Context::scatter_add(Shard &shard, const void *full, void *stream) {
    const Noted noted = note(Call::ScatterAdd, &shard);
    Operation operation{Call::ScatterAdd, &shard, static_cast<std::byte *>(const_cast<void *>(full)), stream, {}, {}};
    try {
        start(operation);
        finish(operation);
    } catch (...) {
        give_up(operation);
        rethrow();
    }
}

uint64_t Context::keep(Operation begun) {
    decltype(operations_) place;  // made before it starts: what has been added cannot be taken back
    Operation &operation = place.emplace(0, std::move(begun)).first->second;
    operation.kept = true;
    try {
        start(operation);
        const std::lock_guard lock(operations_mutex_);
        auto entry = place.extract(place.begin());
        entry.key() = ++last_operation_;
        operations_.insert(std::move(entry));
        return last_operation_;
    } catch (...) {
        give_up(operation);
        rethrow();
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

// Also while a reduction, or a sync that has arrived, is unfinished, and after this rank has left: the caller's buffer must
// come back.
void Context::wait(uint64_t number) {
    decltype(operations_)::node_type entry;
    uint64_t last = 0;
    {
        const std::lock_guard lock(operations_mutex_);
        entry = operations_.extract(number);
        last = last_operation_;
    }
    const auto put_back = [&] {
        const std::lock_guard lock(operations_mutex_);
        operations_.insert(std::move(entry));
    };
    if (left_ && entry) {
        const Deadline deadline = job_.deadline();
        try {
            settle(entry.mapped(), [&] { deadline.check_interrupted("odc_wait"); });
        } catch (...) {
            put_back();
            throw;
        }
    }
    check_not_left(Call::Wait);
    if (!entry) {
        if (number > 0 && number <= synced_operations_) {
            return;
        }
        fail(ODC_ERROR_ARGUMENT, "odc_wait: there is no operation ", number,
             number > 0 && number <= last ? " any more; each is waited for once" : "");
    }
    Operation &operation = entry.mapped();
    const Noted noted = note(Call::Wait, operation.shard);
    try {
        job_.check();
        finish(operation);
    } catch (...) {
        if (leave_unfinished(operation)) {
            put_back();
        }
        rethrow();
    }
}

}  // namespace odc
