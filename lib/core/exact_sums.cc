// SPDX-License-Identifier: Apache-2.0
#include "core/exact_sums.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "base/log.h"
#include "core/job.h"
#include "memory/exact_kernels.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

// Converts the sums to f32 in place. An f32 is half as long as a sum, so going from the first stripe to the last never
// overwrites a sum that has not been read.
ConvertedSums convert(const RemoteSlice &mine, int exponent, uint64_t generation) {
    ConvertedSums converted;
    const uint64_t each = stripe_elements(mine);
    for (uint64_t i = 0; i < stripe_count(mine); ++i) {
        const uint64_t first = i * each;
        const uint64_t count = std::min(each, mine.numel - first);
        std::byte *const to = mine.accumulator + first * sizeof(float);
        if (mine.stripes[i].generation < generation) {
            std::memset(to, 0, count * sizeof(float));
        } else {
            const auto *sums = reinterpret_cast<const int64_t *>(mine.accumulator) + first;
            converted.largest = std::max(converted.largest, exact_sums_to_f32(to, sums, count, exponent));
            converted.additions = std::max<uint64_t>(converted.additions, mine.stripes[i].addends);
        }
    }
    return converted;
}

// A vote depends on elements only, not on how the shard is divided, so the largest vote is the same for every division.
ExponentVote next_vote(double largest, uint64_t clamped, int exponent) {
    std::optional<int> asked;
    if (largest > 0) {
        int above = 0;  // largest < 2^above
        if (std::frexp(largest, &above) == 0.5) {
            --above;  // largest = 2^above
        }
        const int wanted = above + exponent - kExactBits + kHeadroom;
        asked = std::max(wanted, std::min(exponent - 1, wanted + kMostExcess));
    }
    if (clamped > 0) {
        asked = std::max(asked.value_or(kLeastExponent), exponent + kHeadroom);
    }
    return asked ? ExponentVote::of(*asked) : ExponentVote::keeping(exponent);
}

}  // namespace

void publish_vote(Shard &shard, uint64_t generation) {
    shard.record().votes[generation % 2].store(shard.exact.vote.word(), std::memory_order_relaxed);
}

namespace {

// The own slice's vote counts once odc_publish was called, as in ShardDirectory: on a device its word may come later.
bool has_vote(const Shard &shard, uint64_t index, const ShardRecord &record, uint64_t generation) {
    const uint64_t published =
        index == shard.own_index() ? shard.published : record.published.load(std::memory_order_acquire);
    return published >= generation && shard.stands(record);
}

}  // namespace

int exponent_of(const Shard &shard, uint64_t generation) {
    ExponentVote largest = ExponentVote::keeping(kLeastExponent);
    for (uint64_t index = 0; index < shard.owners(); ++index) {
        const ShardRecord *record = shard.linked(index);
        if (shard.slices().numel(index) > 0 && record != nullptr && has_vote(shard, index, *record, generation)) {
            largest = largest_of(
                largest, ExponentVote::from_word(record->votes[generation % 2].load(std::memory_order_relaxed)));
        }
    }
    return largest.exponent();
}

void finish_exact_sums(Shard &shard, uint64_t generation, Job &job, Counters &counters) {
    if (shard.exact.converted == generation) {
        return;
    }
    const RemoteSlice mine = shard.slice(shard.own_index());
    const ConvertedSums converted =
        mine.stripes != nullptr ? convert(mine, exponent_of(shard, generation), generation) : ConvertedSums{};
    end_exact_sums(shard, generation, converted, job, counters);
}

void end_exact_sums(Shard &shard, uint64_t generation, const ConvertedSums &converted, Job &job, Counters &counters) {
    ExactState &state = shard.exact;
    if (state.converted == generation) {
        return;
    }
    if (converted.additions > kMostExactAddends) {
        job.fail_job(ODC_ERROR_ABORTED,
                     formatted("{}: shard \"{}\" has been given more than {} gradients in this minibatch, which is the "
                               "most that exact sums (ODC_SUM_EXACT) take: let each rank sum its microbatches' "
                               "gradients, and add once",
                               job.who(job.rank()), shard.name(), kMostExactAddends));
    }
    const int exponent = exponent_of(shard, generation);
    const uint64_t counted = shard.record().clamped.load(std::memory_order_relaxed);
    const uint64_t clamped = converted.clamped + counted - state.clamped;
    state.vote = next_vote(converted.largest, clamped, exponent);
    state.clamped = counted;
    state.converted = generation;
    counters.clamped_addends.add(clamped);
    if (clamped > 0) {
        job.log().warn(
            "shard \"{}\": {} elements of gradients were not below 2^{}, the `largest` of this minibatch's exact "
            "sums, and were added as the value just below it; in the next it is 2^{} or more",
            shard.name(), clamped, exponent, state.vote.exponent());
    }
}

float largest_of(const Shard &shard) {
    if (!shard.is_exact()) {
        return 0;
    }
    const float largest = std::ldexp(1.0F, shard.exact.vote.exponent());
    return shard.exact.vote.keeps() ? -largest : largest;
}

}  // namespace odc
