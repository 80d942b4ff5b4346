// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/node_cache_share.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/settings.h"
#include "topology/host.h"

namespace odc {

namespace {

// With `auto`, caches take this part of the memory that a host has left when its ranks join; slices and programs need the rest.
constexpr uint64_t kPartOfMemory = 4;
constexpr uint64_t kMostBytes = uint64_t{1} << 60;

}  // namespace

NodeCacheLimit node_cache_limit(const Allgather *allgather) {
    const std::string text = setting(Setting::kNodeCache);
    if (text == "off") {
        return {NodeCacheLimit::Kind::Off, 0};
    }
    if (text == "auto") {
        return {NodeCacheLimit::Kind::Auto, allgather != nullptr ? available_memory() / kPartOfMemory : 0};
    }
    uint64_t bytes = 0;
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, bytes);
    if (error != std::errc() || stop != end || bytes == 0 || bytes > kMostBytes) {
        fail(ODC_ERROR_ARGUMENT,
             "{}=\"{}\" is wrong: it must be auto, off (no node cache), or a number of bytes from 1 to {}",
             setting_row(Setting::kNodeCache).name, text, kMostBytes);
    }
    return {NodeCacheLimit::Kind::Bytes, bytes};
}

NodeCacheShare node_cache_share(const std::vector<const ControlBlock *> &local_peers) {
    if (local_peers.size() == 1) {
        return {0, 0, "the node cache is off, as this rank shares its host with no other"};
    }
    uint64_t least = std::numeric_limits<uint64_t>::max();
    int least_of = 0;
    uint64_t part_of_free = 0;
    for (const ControlBlock *peer : local_peers) {
        const NodeCacheLimit &limit = peer->node_cache;
        if (limit.kind == NodeCacheLimit::Kind::Off) {
            return {0, 0,
                    formatted("each rank of this host reads it and adds to it for itself, as rank {} has {}=off",
                              peer->rank, setting_row(Setting::kNodeCache).name)};
        }
        const bool is_auto = limit.kind == NodeCacheLimit::Kind::Auto;
        const uint64_t bytes = is_auto ? limit.bytes / local_peers.size() : limit.bytes;
        part_of_free = is_auto ? kPartOfMemory * local_peers.size() : part_of_free;
        if (bytes < least) {
            least = bytes;
            least_of = peer->rank;
        }
    }
    return {
        least, part_of_free,
        formatted(
            "this host reads it once a minibatch, and sends its sums once, for shards of which it has a slice, while {} bytes "
            "a rank suffice ({} of rank {})",
            least, setting_row(Setting::kNodeCache).name, least_of)};
}

}  // namespace odc
