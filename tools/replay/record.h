// SPDX-License-Identifier: Apache-2.0
// The records of the ranks of `odc replay`: one RunRecord per run, and events for the pictures. Plain data, since they are sent
// to rank 0 as the bytes of a shard.
#pragma once

#include <odc/odc.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace odc_tool {

// Bytes that a rank has read from other hosts, and of gradients that it has sent to them.
struct Crossed {
    uint64_t fetched = 0;
    uint64_t sent = 0;
};

struct RunRecord {
    int64_t duration_ns;  // from the optimizer to the end of sync
    int64_t compute_ns;
    int64_t claimed_ns;  // the part of it in claimed microbatches
    int64_t claimed;     // microbatches
    Crossed crossed;
};

// By rank, then by run in run_order.
using RunRecords = std::vector<std::vector<RunRecord>>;
// A run takes as long as its slowest rank.
int64_t longest(const RunRecords &records, size_t run);

enum class Kind : int32_t { Forward, Backward, Wait, Gather, ScatterAdd, Barrier, Update, Sync };
inline constexpr std::array<const char *, 8> kKindNames{"forward", "backward",         "wait", "gather", "scatter-add",
                                                        "barrier", "update + publish", "sync"};

constexpr int32_t kPlanned = -1;  // an item's number where nothing was claimed

// Times are relative to the beginning of the rank's run: all ranks leave one barrier there.
struct Event {
    int64_t begin_ns;
    int64_t end_ns;
    int32_t run;
    int32_t microbatch;
    int32_t layer;
    int32_t item;  // of a claimed microbatch, or kPlanned
    Kind kind;
};

enum class Detail { Times, Events };

enum class LinkDirection : int32_t { In, Out };
inline const char *direction_name(LinkDirection direction) { return direction == LinkDirection::In ? "in" : "out"; }

// What a link of an emulated host passes for one call of a rank; times as of an Event.
struct LinkSpan {
    int64_t begin_ns;
    int64_t end_ns;
    int32_t run;
    int32_t host;
    LinkDirection direction;
    int32_t unused = 0;
};

// What this rank and its links did when.
struct OwnMoments {
    std::vector<Event> events;
    std::vector<LinkSpan> links;
    void append(const OwnMoments &other) {
        events.insert(events.end(), other.events.begin(), other.events.end());
        links.insert(links.end(), other.links.begin(), other.links.end());
    }
};

// The same by rank.
struct Moments {
    std::vector<std::vector<Event>> events;
    std::vector<std::vector<LinkSpan>> links;
};

struct RankTotals {
    uint64_t gather_bytes;
    uint64_t scatter_add_bytes;
    uint64_t publish_wait_ns;
    uint64_t sync_wait_ns;
    uint64_t lock_wait_ns;
    double cpu_seconds;
};

// Sends every rank's bytes to rank 0, which gets all of them in rank order; the others get nothing. Collective, between sync
// and publish; takes a minibatch of its own.
std::vector<std::vector<uint8_t>> collect_bytes(odc_context *context, const std::string &name,
                                                const std::vector<uint8_t> &mine);

template <typename T>
std::vector<std::vector<T>> collect(odc_context *context, const std::string &name, const std::vector<T> &mine) {
    std::vector<uint8_t> bytes(mine.size() * sizeof(T));
    if (!bytes.empty()) {
        std::memcpy(bytes.data(), mine.data(), bytes.size());
    }
    std::vector<std::vector<T>> all;
    for (const auto &part : collect_bytes(context, name, bytes)) {
        all.emplace_back(part.size() / sizeof(T));
        if (!part.empty()) {
            std::memcpy(all.back().data(), part.data(), part.size());
        }
    }
    return all;
}

}  // namespace odc_tool
