// SPDX-License-Identifier: Apache-2.0
// The end of a minibatch for shards in GPU memory: what was enqueued is done, and what came through host memory is added.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/element_type.h"
#include "bootstrap/peer.h"
#include "core/exact_sums.h"
#include "core/gpu_call.h"
#include "core/gpu_operations.h"
#include "core/wait.h"
#include "transport/cuda/cuda.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

void GpuOperations::before_arrival(const std::vector<Operation *> &started) {
    for (Operation *operation : started) {
        finish(*operation);
    }
    drain();
}

// Waits until what this rank has enqueued is done, and its peers have the handles of its regions.
void GpuOperations::drain() {
    call_gpu(job_, cuda_.device(), [this] { cuda_.device().check_health(); });  // also where all is done
    Job::Wait wait(job_, call_name(Call::Sync));
    wait.describe([this] {
        return formatted("{} has not done yet what was enqueued there: {}", cuda_.device().name(), unfinished_work());
    });
    wait_for_staging(wait, [this] {
        note_wait();
        check_adders();
        return cuda_.is_idle();
    });
    job_.note_device_done();
    const auto behind = [this] { return cuda_.lagging_peer().value_or(job_.rank()); };
    wait.describe([&] {
        return formatted("{} has not taken the descriptors of this rank's GPU memory; it {}", job_.who(behind()),
                         job_.what(behind()));
    });
    wait.until_seen(behind, [this] { return cuda_.progress_ipc(); });
}

// For errors: the enqueued work that is not done, or what it depends on.
std::string GpuOperations::unfinished_work() {
    if (const std::string under_way = cuda_.pending_work().describe(); !under_way.empty()) {
        const std::optional<int> owner = cuda_.awaited_get_owner();
        return owner ? formatted("{}; it waits for a slice of {}, which {}", under_way, job_.who(*owner),
                                 job_.what(*owner))
                     : under_way;
    }
    const std::optional<int> owner = cuda_.awaited_owner();
    return owner ? formatted("an addition that {} is to apply; it {}", job_.who(*owner), job_.what(*owner))
                 : "copies through host memory";
}

// Records what this rank waits for, for the errors of ranks that may give up first.
void GpuOperations::note_wait() {
    const bool awaits_rank = cuda_.awaited_get_owner() || (cuda_.awaited_owner() && cuda_.pending_work().all_done());
    if (awaits_rank) {
        job_.note_device_done();
    } else {
        job_.note_device_wait(cuda_.pending_work().first_record());
    }
}

// Adds what other ranks added in host memory to this rank's sums, then makes f32 of exact ones.
void GpuOperations::after_arrival() {
    for (const Shard *shard : shards_) {
        GpuSliceState *const state = slice_state_of(*shard);
        if (state != nullptr && shard->is_shadowed() && state->reduced < generation()) {
            reduce_shadow(*shard);
            state->reduced = generation();
        }
        if (state != nullptr && shard->is_exact() && state->converting < generation()) {
            convert_exact_sums(*shard, *state);
            state->converting = generation();
        }
    }
    Job::Wait wait(job_, call_name(Call::Sync));
    wait.describe(
        [this] { return formatted("{} has not done yet {}", cuda_.device().name(), cuda_.pending_work().describe()); });
    wait.until_seen([this] { return job_.rank(); }, [this] { return cuda_.pending_work().all_done(); });
    for (Shard *shard : shards_) {
        if (shard->is_exact()) {
            end_exact_sums_of(*shard);
        }
    }
    cuda_.end_minibatch(job_.minibatch());
    const uint64_t full = cuda_.times_full();  // falls when buffers are closed
    const uint64_t before = std::exchange(logged_full_, full);
    if (full > before) {
        job_.log().debug("bounce buffers of GPU memory were all in use {} times in minibatch {}", full - before,
                         job_.minibatch());
    }
}

void GpuOperations::reduce_shadow(const Shard &shard) {
    const RemoteSlice shadow = shard.host_slice(shard.own_index());
    if (shadow.accumulator == nullptr) {
        return;
    }
    const RemoteSlice mine = shard.slice(shard.own_index());
    const uint64_t in_stripe = stripe_elements(mine);
    const std::byte *from = nullptr;
    call_gpu(job_, cuda_.device(), [&] { from = device_pointer(cuda_.device(), shadow.accumulator); });
    std::vector<SliceAddend> addends;
    uint64_t additions = 0;
    for (uint64_t first = 0; first < mine.numel; first += in_stripe) {
        const Stripe &stripe = shadow.stripes[first / in_stripe];
        if (stripe.generation < generation()) {
            continue;
        }
        const uint64_t count = std::min(in_stripe, mine.numel - first);
        if (!addends.empty() && addends.back().first + addends.back().count == first) {
            addends.back().count += count;
        } else {
            addends.push_back({mine, first, count, from + first * sum_size(mine.gradient_type, mine.summation)});
        }
        additions = std::max<uint64_t>(additions, stripe.addends);
    }
    if (!addends.empty()) {
        addends.front().additions = additions;
    }
    const uint64_t work = begin_tracked(
        Call::Sync, shard, formatted("the adding of what came through host memory to shard \"{}\"", shard.name()));
    enqueue(job_, cuda_.device(), Call::Sync, [&] {
        cuda_.add_sums(addends, cuda_.device().own_stream());
        cuda_.pending_work().track(work, cuda_.device().own_stream());
    });
}

void GpuOperations::convert_exact_sums(const Shard &shard, const GpuSliceState &state) {
    RemoteSlice mine = shard.slice(shard.own_index());
    mine.exponent = exponent_for_sums_of(shard);
    const uint64_t work = begin_tracked(Call::Sync, shard,
                                        formatted("the conversion of exact sums of shard \"{}\" to f32", shard.name()));
    enqueue(job_, cuda_.device(), Call::Sync, [&] {
        cuda_.convert_exact_sums(mine, *state.totals, cuda_.device().own_stream());
        cuda_.pending_work().track(work, cuda_.device().own_stream());
    });
}

// Ends sums that the GPU has converted. It alone has counted some of the gradients, so too many of them are noticed only here.
void GpuOperations::end_exact_sums_of(Shard &shard) {
    ExactTotals totals{};
    if (const GpuSliceState *const state = slice_state_of(shard)) {
        std::memcpy(&totals, state->totals->start(), sizeof(totals));
    }
    end_exact_sums(shard, generation(), {same_bits<double>(totals.largest), totals.clamped, totals.additions}, job_,
                   counters_);
}

}  // namespace odc
