// SPDX-License-Identifier: Apache-2.0
#include "core/gpu_operations.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/counters.h"
#include "base/element_type.h"
#include "bootstrap/peer.h"
#include "core/exact_sums.h"
#include "core/gpu_call.h"
#include "core/remote_memory.h"
#include "core/shard_directory.h"
#include "core/wait.h"
#include "transport/cuda/copier.h"
#include "transport/cuda/cuda.h"
#include "transport/cuda/owner_add.h"
#include "transport/cuda/staged_add.h"
#include "transport/cuda/staged_addition.h"
#include "transport/cuda/staged_get.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

constexpr int64_t kDrainMs = 2'000;  // for what is on its way when a context ends

std::string description_of(Call call, const Shard &shard) {
    return formatted("{} of shard \"{}\"", call_name(call), shard.name());
}

// Slices of other hosts that a gather reads through bounce buffers.
struct StagedGetState : EngineState {
    std::vector<StagedGet> gets;
};

StagedGetState *staged_gets_of(const Operation &operation) {
    return static_cast<StagedGetState *>(operation.engine_state.get());
}

cuda::Stream stream_of(const Operation &operation) { return static_cast<cuda::Stream>(operation.stream); }

}  // namespace

GpuOperations::GpuOperations(Job &job, ShardDirectory &directory, RemoteMemory &remote_memory,
                             std::unique_ptr<Cuda> &cuda, Counters &counters)
    : job_(job), directory_(directory), owned_cuda_(cuda), cuda_(*cuda), counters_(counters),
      memory_(job, remote_memory, *cuda) {
    // In every wait: notices that this rank's GPU has failed, and takes the regions that local peers hand over.
    const auto while_waiting = [this] {
        call_gpu(job_, cuda_.device(), [this] {
            cuda_.progress_ipc();
            cuda_.device().check_health();
        });
        check_owner_add();
    };
    // Completes what this rank has gathered, and what it has published, which peers may still read.
    const auto before_leaving = [this] {
        if (!job_.has_failed()) {
            await_gets();
        }
        cuda_.drain(kDrainMs);
    };
    job_.set_hooks({while_waiting, before_leaving});
}

// After a sync nothing is pending; after an error, or without a last sync, something may be.
GpuOperations::~GpuOperations() {
    job_.set_hooks({});
    cuda_.stop_adding_for_others();  // the slices are unmapped soon
    if (!cuda_.drain(kDrainMs)) {
        leak();
    }
}

// Leaks the CUDA state, the words that streams write and the shadows, of other ranks too: the GPU may still write to them.
void GpuOperations::leak() {
    struct Leaked {
        std::unique_ptr<Cuda> cuda;
        std::vector<std::shared_ptr<Arena>> arenas;
    };
    static std::mutex mutex;
    static auto *const leaked = new std::vector<Leaked>;
    const std::lock_guard lock(mutex);
    leaked->push_back({std::move(owned_cuda_), {}});
    for (int rank = 0; rank < job_.size(); ++rank) {
        leaked->back().arenas.push_back(job_.peer(rank).arena);
    }
}

uint64_t GpuOperations::pinned_bytes() const { return cuda_.pinned_bytes(); }

// ---- Enqueuing ----

// Enqueues on the operation's stream, behind the publish of the own slice, which may be pending on another one. Sync waits for it.
template <class Body>
void GpuOperations::enqueue_tracked(const Operation &operation, Body body) {
    const Shard &shard = *operation.shard;
    const uint64_t work = begin_tracked(operation.call(), shard, description_of(operation.call(), shard));
    enqueue(job_, cuda_.device(), operation.call(), [&] {
        const cuda::Stream stream = stream_of(operation);
        const GpuSliceState *const state = slice_state_of(shard);
        if (state != nullptr && shard.record().published.load(std::memory_order_acquire) < generation()) {
            cuda_.wait_event(state->published, stream);
        }
        body(stream);
        cuda_.pending_work().track(work, stream);
    });
}

// Begins pending work with a completion word. Called before anything is enqueued: until then the call may be interrupted.
uint64_t GpuOperations::begin_tracked(Call call, const Shard &shard, const std::string &description) {
    PendingWork &pending_work = cuda_.pending_work();
    std::optional<uint64_t> work = pending_work.begin_with_word(shard.record_offset(), description);
    if (!work) {
        Job::Wait wait(job_, call_name(call));
        wait.describe([&] {
            return formatted("too much is on its way on {}: {}", cuda_.device().name(), pending_work.describe());
        });
        wait.until_seen(
            [this] { return job_.rank(); },
            [&] { return (work = pending_work.begin_with_word(shard.record_offset(), description)).has_value(); });
    }
    return *work;
}

// ---- Shards ----

void GpuOperations::attach(const std::vector<Shard *> &shards) {
    shards_.reserve(shards_.size() + shards.size());
    memory_.attach(shards);
    shards_.insert(shards_.end(), shards.begin(), shards.end());
}

std::string GpuOperations::still_enqueued() {
    return cuda_.is_idle() ? "" : formatted("{} has not done yet {}", cuda_.device().name(), unfinished_work());
}

void GpuOperations::detach(Shard &shard) {
    std::erase(shards_, &shard);
    memory_.detach(shard);
}

// ---- Publishing ----

void GpuOperations::check_stream(void *stream) const {
    if (!shards_.empty()) {
        call_gpu(job_, cuda_.device(), [&] { cuda_.device().checked_stream(stream, call_name(Call::Publish)); });
    }
}

void GpuOperations::publish(Shard &shard, void *stream) {
    check_staging();
    const RemoteSlice mine = shard.slice(shard.own_index());
    const RemoteSlice shadow = shard.host_slice(shard.own_index());
    call_gpu(job_, cuda_.device(), [&] { cuda_.device().checked_stream(stream, call_name(Call::Publish)); });
    const GpuSliceState *const state = slice_state_of(shard);
    if (state == nullptr) {
        return;
    }
    if (shard.is_exact()) {
        publish_vote(shard, generation());
    }
    const uint64_t work = cuda_.pending_work().begin(shard.record_offset(), description_of(Call::Publish, shard));
    enqueue(job_, cuda_.device(), Call::Publish, [&] {
        cuda_.publish({mine.accumulator, shard.device_sum_bytes(), mine.parameters, shadow.parameters,
                       mine.numel * element_size(mine.parameter_type), state->published, state->word, generation()},
                      static_cast<cuda::Stream>(stream));
        cuda_.pending_work().track(work, shard.record().published, generation());
    });
}

void GpuOperations::tell_published(Shard &shard) {
    if (!has_remote_owner(job_, shard)) {
        return;
    }
    const PublishedMessage message = published_message(job_, shard);
    if (slice_state_of(shard) != nullptr) {
        job_.channel().tell_when(shard.record().published, generation(), message, shard.description().ranks);
    } else {
        job_.channel().tell(message, shard.description().ranks);
    }
}

// ---- Operations ----

void GpuOperations::check_buffer(const Operation &operation) {
    const Shard &shard = *operation.shard;
    if (shard.description().numel == 0) {
        return;
    }
    const auto *gather = std::get_if<Operation::Gather>(&operation.kind);
    cuda_.device().check_buffer(
        gather != nullptr ? gather->to : std::get<Operation::ScatterAdd>(operation.kind).from,
        formatted("{}: the buffer for shard \"{}\"", call_name(operation.call()), shard.name()));
}

void GpuOperations::start(Operation &operation) {
    check_staging();
    Shard &shard = *operation.shard;
    call_gpu(job_, cuda_.device(), [&] {
        cuda_.device().checked_stream(operation.stream, call_name(operation.call()));
        check_buffer(operation);
        cuda_.progress_ipc();
    });
    std::vector<uint64_t> published;
    std::vector<uint64_t> unpublished;
    for (uint64_t i = 0; i < shard.owners(); ++i) {
        const uint64_t index = (shard.own_index() + i) % shard.owners();
        (directory_.is_published(shard, index) ? published : unpublished).push_back(index);
    }
    if (auto *gather = std::get_if<Operation::Gather>(&operation.kind)) {
        gather->unread = std::move(unpublished);
        get(operation, published);
    } else if (unpublished.empty()) {
        Job::Wait wait(job_, call_name(Call::ScatterAdd));
        add(operation, std::get<Operation::ScatterAdd>(operation.kind), wait);
    }
}

void GpuOperations::finish(Operation &operation) {
    try {
        check_staging();
        if (auto *gather = std::get_if<Operation::Gather>(&operation.kind)) {
            finish_gather(operation, *gather);
        } else {
            finish_addition(operation, std::get<Operation::ScatterAdd>(operation.kind));
        }
    } catch (...) {  // until it is finished again, others need the bounce buffers
        cancel_staged_gets(operation, [] {});
        throw;
    }
}

void GpuOperations::cancel(Operation &operation, const std::function<void()> &look) {
    cancel_staged_gets(operation, look);
    operation.engine_state.reset();
}

// ---- Gathers ----

void GpuOperations::get(Operation &operation, const std::vector<uint64_t> &indexes) {
    const Shard &shard = *operation.shard;
    const size_t size = element_size(shard.description().parameter_type);
    std::vector<Copy> copies;
    std::vector<StagedGet> staged;
    for (const uint64_t index : indexes) {
        if (shard.slices().numel(index) == 0) {
            continue;
        }
        const RemoteSlice from = shard.slice(index);
        const int owner = shard.owner(index);
        if (!job_.on_this_host(owner)) {
            staged.push_back({owner, &job_.block(owner).doorbell, &job_.endpoint_to(owner), from,
                              operation.target(index), generation()});
        } else {
            copies.push_back({from.parameters, operation.target(index), from.numel * size,
                              !shard.is_staged(index) && cuda_.is_other(job_.block(owner).gpu)});
        }
    }
    if (!copies.empty()) {
        enqueue_tracked(operation, [&](cuda::Stream stream) { cuda_.get(copies, stream); });
    }
    if (!staged.empty()) {
        if (operation.engine_state == nullptr) {
            operation.engine_state = std::make_unique<StagedGetState>();
        }
        std::vector<StagedGet> &gets = staged_gets_of(operation)->gets;
        std::move(staged.begin(), staged.end(), std::back_inserter(gets));
        cuda_.staged_gets().read_ahead(gets);
    }
}

// Begins to read those of `unread` that are published by now.
void GpuOperations::get_published(Operation &operation, Operation::Gather &gather) {
    std::vector<uint64_t> published;
    for (const uint64_t index : gather.unread) {
        if (directory_.is_published(*operation.shard, index)) {
            published.push_back(index);
        }
    }
    get(operation, published);
    std::erase_if(gather.unread, [&](uint64_t index) {
        return std::find(published.begin(), published.end(), index) != published.end();
    });
}

void GpuOperations::finish_gather(Operation &operation, Operation::Gather &gather) {
    if (!gather.unread.empty() || staged_gets_of(operation) != nullptr) {  // the stream may be captured by now
        call_gpu(job_, cuda_.device(),
                 [&] { cuda_.device().checked_stream(operation.stream, call_name(Call::Gather)); });
    }
    Job::Wait wait(job_, call_name(Call::Gather));
    await_staged_gets(operation, wait);
    while (!gather.unread.empty()) {
        directory_.await_published(*operation.shard, gather.unread.front(), wait);
        get_published(operation, gather);
        await_staged_gets(operation, wait);
    }
}

// Waits until the copies of all slices from other hosts are enqueued, for which they need not have arrived, but have slots.
void GpuOperations::await_staged_gets(Operation &operation, Job::Wait &wait) {
    if (staged_gets_of(operation) == nullptr) {
        return;
    }
    for (StagedGet &get : staged_gets_of(operation)->gets) {
        wait.describe([&] {
            return get.pieces.empty() ? formatted("no bounce buffer is free for the slice of {} of shard \"{}\": {}",
                                                  job_.who(get.owner), operation.shard->name(), unfinished_work())
                                      : operation.in_flight_text(job_, get.owner);
        });
        wait.until_seen_served([&] { return get.owner; },
                               [&] {
                                   enqueue_staged_gets(operation);
                                   return get.is_enqueued();
                               });
    }
    enqueue_tracked(operation, [](cuda::Stream) {});
    operation.engine_state.reset();
}

// Requests pieces while there is room for them, and enqueues their copies; not from who is known not to serve any more.
void GpuOperations::enqueue_staged_gets(Operation &operation) {
    std::vector<StagedGet> &gets = staged_gets_of(operation)->gets;
    StagedGets &staged_gets = cuda_.staged_gets();
    staged_gets.read(gets);
    const auto is_ready = [&](const StagedGet &get) { return job_.serves(get.owner) && staged_gets.is_ready(get); };
    if (std::none_of(gets.begin(), gets.end(), is_ready)) {
        return;
    }
    const int64_t deadline_ns = deadline_after(job_.timeout_ms());
    const Shard &shard = *operation.shard;
    const uint64_t work = cuda_.pending_work().begin(shard.record_offset(), description_of(Call::Gather, shard));
    enqueue(job_, cuda_.device(), Call::Gather, [&] {
        for (StagedGet &get : gets) {
            if (is_ready(get)) {
                staged_gets.enqueue(get, stream_of(operation), deadline_ns);
            }
        }
        cuda_.pending_work().remove(work);
    });
}

// Cancels the pending reads; their pieces can be requested again.
void GpuOperations::cancel_staged_gets(Operation &operation, const std::function<void()> &look) {
    StagedGetState *const state = staged_gets_of(operation);
    if (state == nullptr) {
        return;
    }
    std::vector<std::shared_ptr<Request>> requests;
    for (const StagedGet &get : state->gets) {
        for (const StagedGet::Piece &piece : get.pieces) {
            requests.push_back(piece.request);
        }
    }
    job_.cancel(requests, Call::Gather, look);
    for (StagedGet &get : state->gets) {
        cuda_.staged_gets().release(get);
    }
}

// ---- Additions ----

void GpuOperations::finish_addition(Operation &operation, Operation::ScatterAdd &addition) {
    if (addition.added) {
        return;
    }
    Shard &shard = *operation.shard;
    // The stream may be captured by now.
    call_gpu(job_, cuda_.device(),
             [&] { cuda_.device().checked_stream(operation.stream, call_name(Call::ScatterAdd)); });
    Job::Wait wait(job_, call_name(Call::ScatterAdd));
    for (uint64_t i = 0; i < shard.owners(); ++i) {
        directory_.await_published(shard, (shard.own_index() + i) % shard.owners(), wait);
    }
    add(operation, addition, wait);
}

void GpuOperations::add(Operation &operation, Operation::ScatterAdd &addition, Job::Wait &wait) {
    const Shard &shard = *operation.shard;
    add_directly(operation);
    wait.begin_effects();
    try {
        for (uint64_t i = 1; i < shard.owners(); ++i) {
            const uint64_t index = (shard.own_index() + i) % shard.owners();
            if (shard.slices().numel(index) > 0 && (shard.is_staged(index) || owner_add_to(shard, index) != nullptr)) {
                add_in_pieces(operation, index, wait);
            }
        }
    } catch (...) {
        job_.fail_halfway(Call::ScatterAdd);
    }
    wait.end_effects();
    addition.added = true;
}

// NULL: this rank's GPU adds, or a host.
OwnerAddSource *GpuOperations::owner_add_to(const Shard &shard, uint64_t index) {
    return OwnerAdd::takes(shard.description().gradient_type) && !shard.is_staged(index)
               ? cuda_.owner_add().source_to(shard.owner(index))
               : nullptr;
}

int GpuOperations::exponent_for_sums_of(const Shard &shard) const {
    return shard.is_exact() ? exponent_of(shard, generation()) : 0;
}

void GpuOperations::add_directly(Operation &operation) {
    const Shard &shard = *operation.shard;
    const int exponent = exponent_for_sums_of(shard);
    std::vector<SliceAddend> addends;
    auto scope = AddScope::OwnGpu;
    for (uint64_t i = 0; i < shard.owners(); ++i) {
        const uint64_t index = (shard.own_index() + i) % shard.owners();
        if (shard.slices().numel(index) > 0 && !shard.is_staged(index) && owner_add_to(shard, index) == nullptr) {
            if (cuda_.is_other(job_.block(shard.owner(index)).gpu)) {
                scope = AddScope::SeveralGpus;
            }
            RemoteSlice to = shard.slice(index);
            to.exponent = exponent;
            addends.push_back({to, 0, to.numel, operation.gradient(index), 1});
        }
    }
    if (!addends.empty()) {
        enqueue_tracked(operation, [&](cuda::Stream stream) { cuda_.add(addends, scope, stream); });
    }
}

// Waits until `ready()`. Fails the job if staging has failed, or if the owner that it waits for is gone.
void GpuOperations::wait_for_staging(Job::Wait &wait, const std::function<bool()> &ready) {
    const auto awaited = [this] { return cuda_.awaited_owner().value_or(job_.rank()); };
    wait.until_seen_served(awaited, [&] {
        check_staging();
        return ready();
    });
    check_staging();  // again, for what failed after the last check
}

void GpuOperations::check_owner_add() {
    if (const std::optional<Error> error = cuda_.owner_add().error()) {
        job_.fail_job(error->status(), formatted("{} cannot add gradients that other ranks have copied to its GPU: {}",
                                                 job_.who(job_.rank()), error->what()));
    }
}

// An owner that has left may have ended its thread.
void GpuOperations::check_adders() {
    const std::optional<int> owner = cuda_.owner_add().awaited_owner();
    const ControlBlock *const block = owner ? &job_.block(*owner) : nullptr;
    if (owner && block->state.load(std::memory_order_acquire) == RankState::Left &&
        cuda_.owner_add().awaited_owner() == owner) {  // it had not added before it left
        job_.fail_job(ODC_ERROR_PEER_LOST,
                      formatted("{} left in minibatch {} before it had added gradients of {}", job_.who(*owner),
                                block->left_minibatch.load(), job_.who(job_.rank())));
    }
}

void GpuOperations::check_staging() {
    check_owner_add();
    if (const std::optional<Error> error = cuda_.staging_error()) {
        job_.fail_job(error->status(), formatted("{} stopped halfway in {}: {}", job_.who(job_.rank()),
                                                 call_name(Call::ScatterAdd), error->what()));
    }
    const std::optional<int> owner = cuda_.failed_get_owner();
    if (!owner) {
        return;
    }
    job_.learn();  // the cause, if it is another rank's end
    job_.check();
    const ControlBlock &block = job_.block(*owner);
    const std::string me = job_.who(job_.rank());
    if (serves(block.state.load(std::memory_order_acquire))) {
        job_.fail_job(ODC_ERROR_TIMEOUT, formatted("{} did not receive a slice of {} by the deadline; it {}", me,
                                                   job_.who(*owner), job_.what(*owner)));
    }
    job_.fail_job(ODC_ERROR_PEER_LOST, formatted("{} left in minibatch {} before {} had received its slice",
                                                 job_.who(*owner), block.left_minibatch.load(), me));
}

// Waits for the slices of other hosts for which streams wait.
void GpuOperations::await_gets() {
    Job::Wait wait(job_, call_name(Call::Shutdown));
    wait.describe([this] { return unfinished_work(); });
    wait_for_staging(wait, [this] { return !cuda_.awaited_get_owner(); });
}

// While no slot is free, the host waits for the GPUs.
void GpuOperations::add_in_pieces(Operation &operation, uint64_t index, Job::Wait &wait) {
    const Shard &shard = *operation.shard;
    OwnerAddSource *const source = owner_add_to(shard, index);
    RemoteSlice to = source != nullptr ? shard.slice(index) : shard.host_slice(index);
    to.exponent = exponent_for_sums_of(shard);
    const uint64_t stripes = stripe_count(to);
    const int owner = shard.owner(index);
    Endpoint *const endpoint = job_.on_this_host(owner) ? nullptr : &job_.endpoint_to(owner);
    StagedAddition part{to, endpoint, operation.gradient(index), 0, generation()};
    wait.describe([&, this] {
        return formatted("no {} is free for gradients of shard \"{}\" to {}: {}",
                         source != nullptr ? "slot in its GPU's memory" : "bounce buffer", shard.name(),
                         job_.who(owner), unfinished_work());
    });
    wait_for_staging(wait, [&] {
        check_adders();
        const uint64_t work =
            cuda_.pending_work().begin(shard.record_offset(), description_of(Call::ScatterAdd, shard));
        enqueue(job_, cuda_.device(), Call::ScatterAdd, [&] {
            const cuda::Stream stream = stream_of(operation);
            const uint64_t staged =
                source != nullptr ? source->stage(part, stream) : cuda_.staging_proxy_to(endpoint).stage(part, stream);
            if (staged > 0) {
                part.stripe += staged;
                wait.begin_effects();
            }
            cuda_.pending_work().remove(work);
        });
        return part.stripe == stripes;
    });
}

}  // namespace odc
