// SPDX-License-Identifier: Apache-2.0
#include "bench/claim.h"

#include "cli/exit.h"
#include "rank/context.h"

#include <fmt/format.h>

#include <atomic>
#include <memory>

namespace odc_tool {

namespace {

constexpr uint64_t kItems = 0xffffffff;  // more than a timing takes

MedianInterval per_second(const MedianInterval &seconds, int ranks) {
    return {ranks / seconds.median, ranks / seconds.high, ranks / seconds.low};
}

}  // namespace

Contestant claims(odc_context *context) {
    const auto made = std::make_shared<size_t>();
    return {[made] { *made = 0; },
            [context, made] {
                uint64_t item = 0;
                check(odc_claim(context, kItems, &item));
                ++*made;
            },
            [context, made] {
                size_t recorded = 0;
                check(odc_get_claims(context, odc_minibatch(context), nullptr, 0, &recorded));
                if (recorded != *made) {
                    throw Exit{1, fmt::format("{} items were claimed, but {} are recorded", *made, recorded)};
                }
                check(odc_minibatch_sync(context));
            }};
}

ClaimResult race_claims(Group &group, odc_context *context, int pairs, double timing_seconds) {
    auto &counter = *reinterpret_cast<std::atomic<uint64_t> *>(group.memory());
    const auto nothing = [] {};
    const Contestant bare = {nothing, [&] { counter.fetch_add(1, std::memory_order_relaxed); }, nothing};
    const uint64_t repeats = choose_repeats(group, bare, timing_seconds, 1000, 1'000'000);
    const RaceResult result = race(group, claims(context), bare, {}, pairs, repeats);
    return {repeats, per_second(result.seconds, group.size()), per_second(result.limit_seconds, group.size()),
            result.ratio, result.disturbance};
}

}  // namespace odc_tool
