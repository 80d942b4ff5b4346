// SPDX-License-Identifier: Apache-2.0
// What a rank tells its peers: a block at the start of its arena that all ranks read and only its own rank writes (except
// waiters, peer_failed, arrived_at_ns, speeds, claims, the bell of add_queue and the trees). Minibatch numbers are stored plus one, so that 0 means
// "not yet", and only grow.
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
    Lost,    // a rank of another host that does not answer; `error_text` says why
    Gone     // a rank of another host that left and whose slices are no longer reachable
};

// Whether peers can still read the rank's slices and add to them.
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
    Abort,
    Claim,
    ReportCost,
    GetSpeeds,
    Finish
};

constexpr int kMaxValues = 64;

// The GPU whose memory this rank's shards may be in.
struct GpuIdentity {
    bool present;
    char name[15];  // as that rank's process numbers it: "cuda:0"
    GpuUuid uuid;
};

// The most that a rank gives to the node cache of its host (bootstrap/node_cache_share.h).
struct NodeCacheLimit {
    enum class Kind : uint32_t { Off, Auto, Bytes };
    Kind kind;
    uint64_t bytes;  // Auto: of all ranks of the host together
};

// A futex on which peers sleep; rung after a change.
struct Doorbell {
    std::atomic<uint32_t> rung;
    std::atomic<uint32_t> waiters;
};

// The values of a rank in a sync or a reduction, or those of several ranks combined. Peers read a rank's values once its
// `arrived` or `reductions` has reached their own. Two alternate, as a rank can be one collective call (a sync or a reduction) ahead
// of another, not two.
struct Contribution {
    uint32_t count;
    int32_t op;
    uint32_t has_registered;  // whether it registered a shard in the minibatch that this sync ends
    uint32_t differs;         // combined only: the ranks' counts or ops differ
    double values[kMaxValues];
};

// A node of a host's combining tree (host_tree.h), in the block of its first rank. Pairs are indexed by the parity of the
// sync's number, as contributions are.
constexpr int kTreeFan = 16;
constexpr int kTreeLevels = 4;  // 16^4 ranks of a host
struct TreeNode {
    alignas(
        64) std::atomic<uint64_t> joined[2];     // members that have joined, over all syncs of this parity; never reset
    alignas(64) std::atomic<uint64_t> released;  // all ranks of the host have come to sync released - 1
    Doorbell doorbell;                           // rung after `released` changes
    Contribution combined[2];                    // of the node's ranks, valid once all members have joined
};

// The items of a minibatch that ranks claim (claim_counter.h). Each word: the minibatch plus one, modulo 2^32, above a number of
// items.
struct ClaimCounter {
    std::atomic<uint64_t> count;  // there are so many, as the first claim said
    std::atomic<uint64_t> taken;
};

constexpr uint64_t kLastCallInside = uint64_t{1} << 55;
constexpr uint64_t kLastCallAwaitsGpu = uint64_t{1} << 54;
constexpr uint64_t kLastCallRecord = kLastCallAwaitsGpu - 1;

// What a rank found of another rank's GPU in the P2P self-test.
enum class SelftestResult : uint8_t { Unusable, SumsLost, Good };

// How far a rank is in the P2P self-test (p2p_selftest.h).
enum class SelftestStep : uint32_t { None, Opened, Read, Added, Judged };

// Where ranks of this host copy gradients for this rank's GPU to add (add_slot.h): as many slots for each other one, in their order.
struct AddQueue {
    uint64_t region;  // of GPU memory; 0: there is none
    uint64_t slots;   // offset of the first AddSlot in the arena
    uint64_t each;    // slots of a sender
    Doorbell bell;    // rung after gradients were staged
};

struct ControlBlock {
    // Constant once the arena is passed to peers.
    int32_t rank;
    int32_t size;
    int32_t pid;
    char host[68];
    char identity[96];  // of the host, as in IdentityInfo (peer_info.h)
    GpuIdentity gpu;
    NodeCacheLimit node_cache;

    alignas(64) Doorbell doorbell;  // rung after every change below; the trees have their own doorbells

    alignas(64) std::atomic<uint64_t> opened;  // published something in minibatch opened - 1
    std::atomic<uint64_t> arrived;             // arrived in the sync of minibatch arrived - 1
    std::atomic<uint64_t> reductions;          // odc_all_reduce calls begun
    Contribution reduced[2];                   // by call parity
    Contribution synced[2];                    // values reduced by the sync, by minibatch parity
    uint64_t broadcasts[2];  // to other hosts before a collective call (is_broadcast), by parity of the calls together
    // When ranks arrived (monotonic clock), by minibatch parity. Every rank reads all of them in every sync, so the times of
    // the 16 ranks of a lowest-level node share cache lines, in the block of the node's first rank.
    alignas(64) std::atomic<int64_t> arrived_at_ns[2][kTreeFan];
    alignas(
        64) std::atomic<double> speeds[2][kTreeFan];  // in the same order: as each rank measured its own; 0: not yet
    alignas(64) ClaimCounter claims;                  // rank 0's block only
    TreeNode sync_tree[kTreeLevels];
    TreeNode reduction_tree[kTreeLevels];

    // The rank's last call, for error messages: Call << 56 | kLastCallInside while the call runs | kLastCallAwaitsGpu while it
    // waits for its own GPU | offset of the shard's record.
    alignas(64) std::atomic<uint64_t> last_call;
    std::atomic<uint64_t> last_minibatch;
    std::atomic<int64_t> last_call_at_ns;
    std::atomic<int64_t> heard_at_ns;  // in a replica only: when the rank's last packet came

    alignas(64) std::atomic<uint64_t> read_bytes;  // of other hosts' slices, that have come; by the progress thread
    std::atomic<uint64_t> wants;  // how often a cache entry that this rank holds was wanted first in a minibatch

    alignas(64) std::atomic<RankState> state;
    std::atomic<uint32_t> peer_failed;  // set by peers when a rank fails, for calls that wait for nobody
    std::atomic<uint64_t> left_minibatch;
    int32_t error_status;
    char error_text[2044];

    AddQueue add_queue;  // but for its bell constant once this rank has registered a shard for which it is needed

    std::atomic<uint64_t> first_record;  // offset of the first shard record; 0: none yet

    static constexpr size_t kMostTried = 1024;
    std::atomic<SelftestStep> selftest_step;  // selftest_region is valid from Opened on, the results from Judged on
    std::atomic<uint32_t> selftest_rounds;    // of additions to others
    uint64_t selftest_region;
    SelftestResult selftest_results[kMostTried];  // by local rank
};

const char *call_name(Call call);

// Tells peers that have this rank's arena why it leaves odc_init. The first reason is kept.
void record_departure(ControlBlock &block, int rank, const char *why);
// Writes a rank's job error to its own block; the caller rings the doorbell.
void record_failure(ControlBlock &block, odc_status status, const char *text);

void ring(Doorbell &doorbell);
// Wakes the peers that wait for `block`'s rank.
inline void ring(ControlBlock &block) { ring(block.doorbell); }

}  // namespace odc
