// SPDX-License-Identifier: Apache-2.0
// What a rank tells its peers: one block at the start of its arena, written by that rank only (but for waiters, peer_failed,
// arrived_at_ns and the trees), read by all. Numbers of minibatches are stored plus one, so that 0 means "not yet", and only grow.
#pragma once

#include "base/gpu_uuid.h"

#include <odc/odc.h>

#include <atomic>
#include <cstdint>

namespace odc {

enum class RankState : uint32_t {
    Running,
    Left,    // odc_shutdown; its slices can still be read and added to
    Failed,  // its job error is in `error_*`
    Lost,    // of another host, and not heard of any more; why is in `error_text`
    Gone     // of another host: left, and has taken its slices with it
};

// Whether others can still read from the rank, and add to it.
constexpr bool serves(RankState state) { return state == RankState::Running || state == RankState::Left; }

enum class Call : uint8_t {
    None,
    RegisterShard,
    ReleaseShard,
    Publish,
    Gather,
    ScatterAdd,
    Wait,
    Sync,
    AllReduce,
    Shutdown,
    Abort
};

constexpr int kMaxValues = 64;

// The GPU whose memory this rank's shards may be in.
struct GpuIdentity {
    bool present;
    char name[15];  // in that rank's process: "cuda:0"
    GpuUuid uuid;
};

// A futex that is rung after a change; peers sleep on it.
struct Doorbell {
    std::atomic<uint32_t> rung;
    std::atomic<uint32_t> waiters;
};

// What a rank brings to a sync or a reduction, or what several ranks bring, combined. Peers read a rank's once `arrived`,
// or `reductions`, has reached theirs; two take turns, because a rank may be one reduction ahead of another, never two.
struct Contribution {
    uint32_t count;
    int32_t op;
    uint32_t has_registered;  // a shard, in the minibatch that this sync ends
    uint32_t differs;         // combined only: the ranks brought different counts or ops
    double values[kMaxValues];
};

// A node of the combining tree of a host's ranks (host_tree.h); it lies in the block of its first rank. Pairs are indexed
// by the parity of the sync's number, as contributions are.
constexpr int kTreeFan = 16;
constexpr int kTreeLevels = 4;  // 16^4 ranks of a host
struct TreeNode {
    alignas(64) std::atomic<uint64_t> joined[2];  // how often a member has joined in syncs of this parity; never reset
    alignas(64) std::atomic<uint64_t> released;   // all ranks of the host have come to sync released - 1
    Doorbell bell;                                // rung after `released` changes
    Contribution combined[2];                     // what the node's ranks brought, once all members have joined
};

constexpr uint64_t kLastCallInside = uint64_t{1} << 55;
constexpr uint64_t kLastCallAwaitsGpu = uint64_t{1} << 54;
constexpr uint64_t kLastCallRecord = kLastCallAwaitsGpu - 1;

// What a rank says of another's GPU after the trial.
enum class SelftestResult : uint8_t { Unusable, SumsLost, Good };

// How far a rank is in trying its GPU (p2p_selftest.h).
enum class SelftestStep : uint32_t { None, Opened, Read, Added, Judged };

struct ControlBlock {
    // Fixed before the block is handed over.
    uint64_t magic;
    int32_t rank;
    int32_t size;
    int32_t pid;
    char host[68];
    char identity[96];  // of the host, as in the peer info of round 1 (peer_info.h)
    GpuIdentity gpu;

    alignas(64) Doorbell bell;  // rung after every change below, but for the trees, which have their own

    alignas(64) std::atomic<uint64_t> opened;  // has published something in minibatch opened - 1
    std::atomic<uint64_t> arrived;             // has arrived in the sync of minibatch arrived - 1
    std::atomic<uint64_t> reductions;          // odc_all_reduce calls posted
    Contribution reduced[2];                   // by call parity
    Contribution synced[2];                    // riding on sync, by minibatch parity
    // When the ranks arrived, by minibatch parity, monotonic clock. Every rank reads all of them in every sync, so those of
    // the 16 ranks of a node of the lowest level share cache lines, in the block of the node's first rank.
    alignas(64) std::atomic<int64_t> arrived_at_ns[2][kTreeFan];
    TreeNode sync_tree[kTreeLevels];
    TreeNode reduction_tree[kTreeLevels];

    // What it last did, for the words of errors: Call << 56, whether it is inside still, and there waits for its own GPU,
    // offset of the shard's record.
    alignas(64) std::atomic<uint64_t> last_call;
    std::atomic<uint64_t> last_minibatch;
    std::atomic<int64_t> last_call_at_ns;
    std::atomic<int64_t> heard_at_ns;  // in a replica only: when the rank said so; it may have gone on since

    alignas(64) std::atomic<RankState> state;
    std::atomic<uint32_t> peer_failed;  // set by others: some rank is Failed, for calls that wait for nothing
    std::atomic<uint64_t> left_minibatch;
    int32_t error_status;
    char error_text[2044];

    std::atomic<uint64_t> first_record;  // offset of its record; 0: none yet

    static constexpr size_t kMostTried = 1024;
    std::atomic<SelftestStep> selftest_step;  // what follows is there from Opened and Judged on
    uint64_t selftest_region;
    SelftestResult selftest_results[kMostTried];  // by place among the host's ranks
};

const char *call_name(Call call);

// For those who have met this rank already: why it does not come to the end of odc_init. The first reason stays.
void record_departure(ControlBlock &block, int rank, const char *why);
// Publishes a rank's job error in its own block; the caller rings.
void record_failure(ControlBlock &block, odc_status status, const char *text);

void ring(Doorbell &bell);
// Wakes whoever waits for `block`'s rank.
inline void ring(ControlBlock &block) { ring(block.bell); }

}  // namespace odc
