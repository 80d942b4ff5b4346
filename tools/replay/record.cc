// SPDX-License-Identifier: Apache-2.0
// Collects the ranks' records by libodc itself: each rank's bytes are its slice of a shard of bytes.
#include "replay/record.h"

#include "rank/context.h"

#include <algorithm>

namespace odc_tool {

int64_t longest(const RunRecords &records, size_t run) {
    int64_t duration_ns = 0;
    for (const auto &rank : records) {
        duration_ns = std::max(duration_ns, rank[run].duration_ns);
    }
    return duration_ns;
}

std::vector<std::vector<uint8_t>> collect_bytes(odc_context *context, const std::string &name,
                                                const std::vector<uint8_t> &mine) {
    // All slices are as long as the longest one, with the true length first: so every rank knows the description.
    double longest = double(mine.size());
    check(odc_all_reduce(context, &longest, 1, ODC_MAX));
    const auto size = static_cast<uint64_t>(odc_size(context));
    const uint64_t length_bytes = sizeof(uint64_t);
    const uint64_t stride = length_bytes + static_cast<uint64_t>(longest);
    const std::vector<uint64_t> slices(size, stride);
    std::vector<int32_t> ranks(size);
    for (uint64_t rank = 0; rank < size; ++rank) {
        ranks[rank] = static_cast<int32_t>(rank);
    }
    odc_shard_desc desc{};
    desc.struct_size = sizeof desc;
    desc.name = name.c_str();
    desc.numel = size * stride;
    desc.parameter_type = ODC_BYTES;
    desc.ranks = ranks.data();
    desc.slices = slices.data();
    desc.rank_count = size;
    odc_shard *shard = nullptr;
    check(odc_register_shard(context, &desc, &shard));
    odc_slice slice{};
    slice.struct_size = sizeof slice;
    check(odc_get_slice(shard, &slice));
    const uint64_t length = mine.size();
    std::memcpy(slice.parameters, &length, sizeof length);
    std::copy(mine.begin(), mine.end(), static_cast<uint8_t *>(slice.parameters) + length_bytes);
    check(odc_publish_all(context, nullptr));
    std::vector<std::vector<uint8_t>> all;
    if (odc_rank(context) == 0) {
        std::vector<uint8_t> full(desc.numel);
        check(odc_gather(shard, full.data(), full.size(), nullptr));
        for (uint64_t rank = 0; rank < size; ++rank) {
            const uint8_t *part = full.data() + rank * stride;
            uint64_t bytes = 0;
            std::memcpy(&bytes, part, sizeof bytes);
            all.emplace_back(part + length_bytes, part + length_bytes + bytes);
        }
    }
    check(odc_minibatch_sync(context));
    check(odc_release_shard(shard));
    return all;
}

}  // namespace odc_tool
