// SPDX-License-Identifier: Apache-2.0
// The sizes and offsets of all that processes, hosts or builds of a job exchange. Whoever changes one raises the number in
// layout_version.cc, so that builds of different layouts refuse each other instead of reading nonsense.
#include "base/layout_version.h"
#include "bootstrap/local/message.h"
#include "bootstrap/peer_info.h"
#include "memory/add_slot.h"
#include "memory/cache_entry.h"
#include "memory/claim_counter.h"
#include "memory/control_block.h"
#include "memory/exact_sum.h"
#include "memory/partial_sum.h"
#include "memory/shard_record.h"
#include "memory/shared_arena.h"
#include "routing/provider_table.h"
#include "routing/transport_table.h"
#include "transport/cuda/ipc_channel.h"
#include "transport/cuda/kernels/exact.h"
#include "transport/fabric/control_message.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace odc {

namespace {

// Whether these are the enumerators from `value` on.
template <class Enum>
consteval bool in_order_from(int value, std::initializer_list<Enum> all) {
    return std::all_of(all.begin(), all.end(), [&](Enum one) { return static_cast<int>(one) == value++; });
}

// Whether these are the rows of a table, whose bits ranks exchange, from the first on.
template <class Table>
consteval bool begins_with(const Table &table, std::initializer_list<std::string_view> names) {
    return std::equal(names.begin(), names.end(), table.begin(),
                      [](std::string_view name, const auto &row) { return name == row.name; });
}

template <class References>
struct Sizes;

template <class... Members>
struct Sizes<std::tuple<Members &...>> {
    static consteval bool are(std::initializer_list<size_t> expected) {
        return std::ranges::equal(std::initializer_list<size_t>{sizeof(Members)...}, expected);
    }
};

// All members of a struct and their sizes, in order: it does not compile with one more, be it where there was padding.
#define ODC_UNPACK(...) __VA_ARGS__
#define ODC_MEMBERS(type, names, ...)                         \
    [[maybe_unused]] auto members_of(type &one) {             \
        auto &[ODC_UNPACK names] = one;                       \
        return Sizes<decltype(std::tie(ODC_UNPACK names))>(); \
    }                                                         \
    static_assert(decltype(members_of(std::declval<type &>()))::are({__VA_ARGS__}))

ODC_MEMBERS(ControlBlock,
            (rank, size, pid, host, identity, gpu, node_cache, doorbell, opened, arrived, reductions, reduced, synced,
             broadcasts, arrived_at_ns, speeds, claims, sync_tree, reduction_tree, last_call, last_minibatch,
             last_call_at_ns, heard_at_ns, read_bytes, wants, state, peer_failed, left_minibatch, error_status,
             error_text, add_queue, first_record, selftest_step, selftest_rounds, selftest_region, selftest_results),
            4, 4, 4, 68, 96, 32, 16, 8, 8, 8, 8, 1056, 1056, 16, 256, 256, 16, 4608, 4608, 8, 8, 8, 8, 8, 8, 4, 4, 8, 4,
            2044, 32, 8, 4, 4, 8, 1024);
ODC_MEMBERS(AddQueue, (region, slots, each, bell), 8, 8, 8, 8);
ODC_MEMBERS(AddSlot, (staged, copied, added, record, first, count, exponent, connected), 8, 8, 8, 8, 8, 8, 4, 4);
ODC_MEMBERS(TreeNode, (joined, released, doorbell, combined), 16, 8, 8, 1056);
ODC_MEMBERS(Contribution, (count, op, has_registered, differs, values), 4, 4, 4, 4, 512);
ODC_MEMBERS(GpuIdentity, (present, name, uuid), 1, 15, 16);
ODC_MEMBERS(Doorbell, (rung, waiters), 4, 4);
ODC_MEMBERS(ClaimCounter, (count, taken), 8, 8);
ODC_MEMBERS(NodeCacheLimit, (kind, bytes), 4, 8);
ODC_MEMBERS(Stripe, (lock, addends, not_finite, generation), 4, 2, 2, 8);
ODC_MEMBERS(ShardRecord,
            (next, minibatch, numel, parameter_type, gradient_type, memory, summation, slice_numel, segment, parameters,
             stripes, accumulator, cache, cache_entries, partial_sums, partial_sum_count, region, gpu_parameters,
             gpu_accumulator, record, address, key, name_bytes, rank_count, slice_count, released, published, votes,
             first_exponent, clamped),
            8, 8, 8, 4, 4, 4, 4, 8, 16, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 8, 4, 4, 8);
ODC_MEMBERS(Segment, (offset, bytes), 8, 8);
ODC_MEMBERS(CacheEntry, (word, want), 8, 8);
ODC_MEMBERS(PartialSum, (finished, clamped), 8, 8);
ODC_MEMBERS(ExactTotals, (clamped, not_finite, additions, largest), 8, 8, 8, 8);
ODC_MEMBERS(Hello, (magic, version, rank, size, pid, remaining_ms, host, nonce), 8, 4, 4, 4, 4, 8, 64, 32);
ODC_MEMBERS(Reply, (magic, kind, bytes, mac), 8, 4, 4, 32);
ODC_MEMBERS(SentPeer, (rank, pid, fds), 4, 4, 4);
ODC_MEMBERS(IdentityInfo, (magic, rank, size, pid, transports, identity, host, group, gpu, nonce), 8, 4, 4, 4, 4, 96,
            64, 48, 64, 16);
ODC_MEMBERS(NicInfo, (magic, rank, count, nics, probe_ports, why_no_fabric), 8, 4, 4, 1280, 40, 256);
ODC_MEMBERS(UnreachableInfo, (magic, rank, count, ranks), 8, 4, 4, 1000);
ODC_MEMBERS(EndpointInfo, (magic, rank, unused, token, names, why_no_gpu_direct), 8, 4, 4, 16, 1920, 96);
ODC_MEMBERS(EndpointName, (bytes, name), 4, 92);
ODC_MEMBERS(ReadyInfo, (magic, rank, unused), 8, 4, 4);
ODC_MEMBERS(NicAddress, (name, address, speed, providers, staged, family, prefix, kind, distance), 36, 16, 4, 2, 2, 1,
            1, 1, 1);
ODC_MEMBERS(ReleasedMessage, (record), 8);
ODC_MEMBERS(PublishedMessage, (record, minibatch, reductions, vote, unused), 8, 8, 8, 4, 4);
ODC_MEMBERS(AllPublishedMessage, (minibatch, reductions), 8, 8);
ODC_MEMBERS(LeftMessage, (minibatch), 8);
ODC_MEMBERS(HeartbeatMessage, (ping, pong, known), 8, 8, 8);
ODC_MEMBERS(DeadMessage, (rank, ending), 4, 4);
ODC_MEMBERS(AddMessage, (operation, record, generation, first, count, address, key, exponent, addends, clamped), 8, 8,
            8, 8, 8, 8, 8, 4, 4, 8);
ODC_MEMBERS(AppliedMessage, (operation, count), 8, 8);
ODC_MEMBERS(ClaimMessage, (claim, minibatch, count), 8, 8, 8);
ODC_MEMBERS(ClaimedMessage, (claim, index, count), 8, 8, 8);
ODC_MEMBERS(RegionMessage, (from, number, bytes, minibatch), 8, 8, 8, 8);

}  // namespace

static_assert(begins_with(kProviders, {"cxi", "efa", "opx", "verbs;ofi_rxm", "psm3", "tcp", "tcp;ofi_rxm", "net"}));
static_assert(begins_with(kTransports, {"cuda", "shm", "fabric"}));
static_assert(kAllTransports == 0xffffffff);

// Numbers of odc.h that records and messages hold.
static_assert(in_order_from(1, {ODC_F32, ODC_F64, ODC_BF16, ODC_F16, ODC_BYTES}));
static_assert(in_order_from(1, {ODC_SUM, ODC_MAX}));
static_assert(in_order_from(1, {ODC_HOST_MEMORY, ODC_GPU_MEMORY}));
static_assert(ODC_SUM_EXACT == 1);
static_assert(in_order_from(-13, {ODC_ERROR_DEVICE, ODC_ERROR_MISMATCH, ODC_ERROR_TIMEOUT, ODC_ERROR_ABORTED,
                                  ODC_ERROR_PEER_LOST, ODC_ERROR_INTERNAL, ODC_ERROR_RENDEZVOUS, ODC_ERROR_INTERRUPTED,
                                  ODC_ERROR_SYSTEM, ODC_ERROR_UNSUPPORTED, ODC_ERROR_NO_MEMORY, ODC_ERROR_PHASE,
                                  ODC_ERROR_ARGUMENT}));

static_assert(sizeof(ControlBlock) == 15616);
static_assert(sizeof(TreeNode) == 1152);
static_assert(sizeof(Contribution) == 528);
static_assert(sizeof(GpuIdentity) == 32);
static_assert(offsetof(GpuIdentity, name) == 1);
static_assert(offsetof(GpuIdentity, uuid) == 16);
static_assert(sizeof(Doorbell) == 8);
static_assert(offsetof(Doorbell, waiters) == 4);
static_assert(offsetof(Contribution, op) == 4);
static_assert(offsetof(Contribution, has_registered) == 8);
static_assert(offsetof(Contribution, differs) == 12);
static_assert(offsetof(Contribution, values) == 16);
static_assert(offsetof(TreeNode, released) == 64);
static_assert(offsetof(TreeNode, doorbell) == 72);
static_assert(offsetof(TreeNode, combined) == 80);
static_assert(sizeof(ClaimCounter) == 16);
static_assert(offsetof(ClaimCounter, taken) == 8);
static_assert(kMostItems == 0xffffffff);
static_assert(kMaxValues == 64 && kTreeFan == 16 && kTreeLevels == 4);
static_assert(in_order_from(0, {RankState::Running, RankState::Left, RankState::Failed, RankState::Lost,
                                RankState::Gone}));
static_assert(in_order_from(0, {Call::None, Call::RegisterShard, Call::ReleaseShard, Call::Publish, Call::Gather,
                                Call::ScatterAdd, Call::Wait, Call::Sync, Call::AllReduce, Call::Shutdown, Call::Abort,
                                Call::Claim, Call::ReportCost, Call::GetSpeeds, Call::Finish}));
static_assert(in_order_from(0, {SelftestResult::Unusable, SelftestResult::SumsLost, SelftestResult::Good}));
static_assert(in_order_from(0, {SelftestStep::None, SelftestStep::Opened, SelftestStep::Read, SelftestStep::Added,
                                SelftestStep::Judged}));
static_assert(offsetof(ControlBlock, rank) == 0);
static_assert(offsetof(ControlBlock, size) == 4);
static_assert(offsetof(ControlBlock, pid) == 8);
static_assert(offsetof(ControlBlock, host) == 12);
static_assert(offsetof(ControlBlock, identity) == 80);
static_assert(offsetof(ControlBlock, gpu) == 176);
static_assert(offsetof(ControlBlock, node_cache) == 208);
static_assert(sizeof(NodeCacheLimit) == 16);
static_assert(offsetof(NodeCacheLimit, bytes) == 8);
static_assert(in_order_from(0, {NodeCacheLimit::Kind::Off, NodeCacheLimit::Kind::Auto, NodeCacheLimit::Kind::Bytes}));
static_assert(offsetof(ControlBlock, doorbell) == 256);
static_assert(offsetof(ControlBlock, opened) == 320);
static_assert(offsetof(ControlBlock, arrived) == 328);
static_assert(offsetof(ControlBlock, reductions) == 336);
static_assert(offsetof(ControlBlock, reduced) == 344);
static_assert(offsetof(ControlBlock, synced) == 1400);
static_assert(offsetof(ControlBlock, broadcasts) == 2456);
static_assert(offsetof(ControlBlock, arrived_at_ns) == 2496);
static_assert(offsetof(ControlBlock, speeds) == 2752);
static_assert(offsetof(ControlBlock, claims) == 3008);
static_assert(offsetof(ControlBlock, sync_tree) == 3072);
static_assert(offsetof(ControlBlock, reduction_tree) == 7680);
static_assert(kLastCallInside == uint64_t{1} << 55 && kLastCallAwaitsGpu == uint64_t{1} << 54);
static_assert(kLastCallRecord == (uint64_t{1} << 54) - 1);
static_assert(offsetof(ControlBlock, last_call) == 12288);
static_assert(offsetof(ControlBlock, last_minibatch) == 12296);
static_assert(offsetof(ControlBlock, last_call_at_ns) == 12304);
static_assert(offsetof(ControlBlock, heard_at_ns) == 12312);
static_assert(offsetof(ControlBlock, read_bytes) == 12352);
static_assert(offsetof(ControlBlock, wants) == 12360);
static_assert(offsetof(ControlBlock, state) == 12416);
static_assert(offsetof(ControlBlock, peer_failed) == 12420);
static_assert(offsetof(ControlBlock, left_minibatch) == 12424);
static_assert(offsetof(ControlBlock, error_status) == 12432);
static_assert(offsetof(ControlBlock, error_text) == 12436);
static_assert(offsetof(ControlBlock, add_queue) == 14480);
static_assert(sizeof(AddQueue) == 32);
static_assert(offsetof(AddQueue, slots) == 8);
static_assert(offsetof(AddQueue, each) == 16);
static_assert(offsetof(AddQueue, bell) == 24);
static_assert(sizeof(AddSlot) == 64);
static_assert(offsetof(AddSlot, copied) == 8);
static_assert(offsetof(AddSlot, added) == 16);
static_assert(offsetof(AddSlot, record) == 24);
static_assert(offsetof(AddSlot, first) == 32);
static_assert(offsetof(AddSlot, count) == 40);
static_assert(offsetof(AddSlot, exponent) == 48);
static_assert(offsetof(AddSlot, connected) == 52);
static_assert(offsetof(ControlBlock, first_record) == 14512);
static_assert(offsetof(ControlBlock, selftest_step) == 14520);
static_assert(offsetof(ControlBlock, selftest_rounds) == 14524);
static_assert(offsetof(ControlBlock, selftest_region) == 14528);
static_assert(offsetof(ControlBlock, selftest_results) == 14536);
static_assert(ControlBlock::kMostTried == 1024);

static_assert(kStripeBytes == 65536 && kFirstRecordBytes == 65536 && kMostNameBytes == 255);
static_assert(sizeof(Stripe) == 16);
static_assert(offsetof(Stripe, addends) == 4);
static_assert(offsetof(Stripe, not_finite) == 6);
static_assert(offsetof(Stripe, generation) == 8);
static_assert(sizeof(ShardRecord) == 208);
static_assert(offsetof(ShardRecord, minibatch) == 8);
static_assert(offsetof(ShardRecord, numel) == 16);
static_assert(offsetof(ShardRecord, parameter_type) == 24);
static_assert(offsetof(ShardRecord, gradient_type) == 28);
static_assert(offsetof(ShardRecord, memory) == 32);
static_assert(offsetof(ShardRecord, summation) == 36);
static_assert(offsetof(ShardRecord, slice_numel) == 40);
static_assert(offsetof(ShardRecord, segment) == 48);
static_assert(sizeof(Segment) == 16);
static_assert(offsetof(Segment, bytes) == 8);
static_assert(offsetof(ShardRecord, parameters) == 64);
static_assert(offsetof(ShardRecord, stripes) == 72);
static_assert(offsetof(ShardRecord, accumulator) == 80);
static_assert(offsetof(ShardRecord, cache) == 88);
static_assert(offsetof(ShardRecord, cache_entries) == 96);
static_assert(offsetof(ShardRecord, partial_sums) == 104);
static_assert(offsetof(ShardRecord, partial_sum_count) == 112);
static_assert(offsetof(ShardRecord, region) == 120);
static_assert(offsetof(ShardRecord, gpu_parameters) == 128);
static_assert(offsetof(ShardRecord, gpu_accumulator) == 136);
static_assert(offsetof(ShardRecord, record) == 144);
static_assert(offsetof(ShardRecord, address) == 152);
static_assert(offsetof(ShardRecord, key) == 160);
static_assert(offsetof(ShardRecord, name_bytes) == 168);
static_assert(offsetof(ShardRecord, rank_count) == 172);
static_assert(offsetof(ShardRecord, slice_count) == 176);
static_assert(offsetof(ShardRecord, released) == 180);
static_assert(offsetof(ShardRecord, published) == 184);
static_assert(offsetof(ShardRecord, votes) == 192);
static_assert(offsetof(ShardRecord, first_exponent) == 196);
static_assert(offsetof(ShardRecord, clamped) == 200);
static_assert(std::is_same_v<decltype(std::declval<ShardRecord>().slices()), const uint64_t *> &&
              std::is_same_v<decltype(std::declval<ShardRecord>().ranks()), const int32_t *>);

static_assert(sizeof(CacheEntry) == 64);
static_assert(alignof(CacheEntry) == 64);
static_assert(sizeof(PartialSum) == 64);
static_assert(alignof(PartialSum) == 64);
static_assert(offsetof(PartialSum, clamped) == 8);
static_assert(in_order_from(1, {CacheState::Reading, CacheState::Full, CacheState::GivenUp}));
static_assert(CacheWord(5, CacheState::Full, 3).value() == (5 << 18 | 3 << 2 | 2));
static_assert(CacheWant(5, 3).value() == (5 << 18 | 3));
static_assert(PartialSum::kCountBits == 20);
static_assert(kExactBits == 51 && kMostExactAddends == 4096 && kNotFinite == INT64_MIN);
static_assert(kLargestAddend == 2251799813685247.0 && kExactRounder == 6755399441055744.0);
static_assert(kLeastExponent == -98 && kMostExponent == 127 && kHeadroom == 6 && kMostExcess == 20);
static_assert(ExponentVote::of(3).word() == 3 && ExponentVote::keeping(3).word() == -997);
static_assert(sizeof(ExactTotals) == 32);
static_assert(offsetof(ExactTotals, not_finite) == 8);
static_assert(offsetof(ExactTotals, additions) == 16);
static_assert(offsetof(ExactTotals, largest) == 24);
static_assert(exact_totals_bytes(64) == 40 && exact_totals_bytes(65) == 48);

static_assert(kRendezvousMagic == std::array{'o', 'd', 'c', ' ', 'm', 'e', 'e', 't'});
static_assert(kMaxSentence == 4096);
static_assert(sizeof(Nonce) == 32 && sizeof(Mac) == 32);
static_assert(sizeof(Hello) == 128);
static_assert(offsetof(Hello, version) == 8);
static_assert(offsetof(Hello, rank) == 12);
static_assert(offsetof(Hello, size) == 16);
static_assert(offsetof(Hello, pid) == 20);
static_assert(offsetof(Hello, remaining_ms) == 24);
static_assert(offsetof(Hello, host) == 32);
static_assert(offsetof(Hello, nonce) == 96);
static_assert(sizeof(Reply) == 48);
static_assert(offsetof(Reply, kind) == 8);
static_assert(offsetof(Reply, bytes) == 12);
static_assert(offsetof(Reply, mac) == 16);
static_assert(in_order_from(1, {ReplyKind::kWelcome, ReplyKind::kRefused, ReplyKind::kInfos, ReplyKind::kFailed,
                                ReplyKind::kMet, ReplyKind::kHandles}));
static_assert(sizeof(SentPeer) == 12);
static_assert(offsetof(SentPeer, pid) == 4);
static_assert(offsetof(SentPeer, fds) == 8);
static_assert(kMostFds == 253 && kMostSentPeers == 63);

static_assert(sizeof(PeerInfo) == 2048);
static_assert(sizeof(IdentityInfo) == 312);
static_assert(offsetof(IdentityInfo, rank) == 8);
static_assert(offsetof(IdentityInfo, size) == 12);
static_assert(offsetof(IdentityInfo, pid) == 16);
static_assert(offsetof(IdentityInfo, transports) == 20);
static_assert(kMaxNics == 20 && UnreachableInfo::kRanks == 8000);
static_assert(sizeof(NicInfo) == 1592);
static_assert(sizeof(UnreachableInfo) == 1016);
static_assert(sizeof(EndpointInfo) == 2048);
static_assert(sizeof(EndpointName) == 96);
static_assert(sizeof(ReadyInfo) == 16);
static_assert(in_order_from(0, {NicKind::Ethernet, NicKind::Wifi, NicKind::Tunnel, NicKind::IPoIB, NicKind::InfiniBand,
                                NicKind::RoCE, NicKind::Efa, NicKind::Slingshot, NicKind::OmniPath, NicKind::Bridge,
                                NicKind::Dummy, NicKind::Loopback}));
static_assert(in_order_from(0, {NicState::Up, NicState::Down, NicState::NoCarrier, NicState::Elsewhere,
                                NicState::Unknown}));
static_assert(sizeof(NicAddress) == 64);
static_assert(offsetof(NicAddress, address) == 36);
static_assert(offsetof(NicAddress, speed) == 52);
static_assert(offsetof(NicAddress, providers) == 56);
static_assert(offsetof(NicAddress, staged) == 58);
static_assert(offsetof(NicAddress, family) == 60);
static_assert(offsetof(NicAddress, prefix) == 61);
static_assert(offsetof(NicAddress, kind) == 62);
static_assert(offsetof(NicAddress, distance) == 63);
static_assert(in_order_from(0, {Nearness::Self, Nearness::NvLink, Nearness::NvSwitch, Nearness::Switch,
                                Nearness::HostBridge, Nearness::NumaNode, Nearness::Package, Nearness::OtherPackage,
                                Nearness::Unknown}));
static_assert(in_order_from(1,
                            {Layout::Identity, Layout::Nics, Layout::Unreachable, Layout::Endpoints, Layout::Ready}));
static_assert(offsetof(EndpointName, name) == 4);
static_assert(offsetof(IdentityInfo, identity) == 24);
static_assert(offsetof(IdentityInfo, host) == 120);
static_assert(offsetof(IdentityInfo, group) == 184);
static_assert(offsetof(IdentityInfo, gpu) == 232);
static_assert(offsetof(IdentityInfo, nonce) == 296);
static_assert(offsetof(NicInfo, rank) == 8);
static_assert(offsetof(NicInfo, count) == 12);
static_assert(offsetof(NicInfo, nics) == 16);
static_assert(offsetof(NicInfo, probe_ports) == 1296);
static_assert(offsetof(NicInfo, why_no_fabric) == 1336);
static_assert(offsetof(UnreachableInfo, rank) == 8);
static_assert(offsetof(UnreachableInfo, count) == 12);
static_assert(offsetof(UnreachableInfo, ranks) == 16);
static_assert(offsetof(EndpointInfo, rank) == 8);
static_assert(offsetof(EndpointInfo, unused) == 12);
static_assert(offsetof(EndpointInfo, token) == 16);
static_assert(offsetof(EndpointInfo, names) == 32);
static_assert(offsetof(EndpointInfo, why_no_gpu_direct) == 1952);
static_assert(offsetof(ReadyInfo, rank) == 8);
static_assert(offsetof(ReadyInfo, unused) == 12);

// A message's kind is its index. What is written field by field: the bytes are in tests/unit/control_message_test.cc.
static_assert(
    std::is_same_v<ControlMessage,
                   std::variant<RegisteredMessage, ReleasedMessage, PublishedMessage, ArrivedMessage, LeftMessage,
                                FailedMessage, HeartbeatMessage, AddMessage, AppliedMessage, GoodbyeMessage, AckMessage,
                                AllPublishedMessage, DeadMessage, ClaimMessage, ClaimedMessage>>);
static_assert(sizeof(ReleasedMessage) == 8);
static_assert(sizeof(PublishedMessage) == 32);
static_assert(sizeof(AllPublishedMessage) == 16);
static_assert(sizeof(LeftMessage) == 8);
static_assert(sizeof(HeartbeatMessage) == 24);
static_assert(sizeof(DeadMessage) == 8);
static_assert(sizeof(AddMessage) == 72);
static_assert(sizeof(AppliedMessage) == 16);
static_assert(sizeof(ClaimMessage) == 24);
static_assert(sizeof(ClaimedMessage) == 24);
static_assert(offsetof(PublishedMessage, minibatch) == 8);
static_assert(offsetof(PublishedMessage, reductions) == 16);
static_assert(offsetof(PublishedMessage, vote) == 24);
static_assert(offsetof(AllPublishedMessage, reductions) == 8);
static_assert(offsetof(HeartbeatMessage, pong) == 8);
static_assert(offsetof(HeartbeatMessage, known) == 16);
static_assert(offsetof(DeadMessage, ending) == 4);
static_assert(static_cast<int>(Ending::Death) == 0 && static_cast<int>(Ending::Exec) == 1);
static_assert(offsetof(AddMessage, record) == 8);
static_assert(offsetof(AddMessage, generation) == 16);
static_assert(offsetof(AddMessage, first) == 24);
static_assert(offsetof(AddMessage, count) == 32);
static_assert(offsetof(AddMessage, address) == 40);
static_assert(offsetof(AddMessage, key) == 48);
static_assert(offsetof(AddMessage, exponent) == 56);
static_assert(offsetof(AddMessage, addends) == 60);
static_assert(offsetof(AddMessage, clamped) == 64);
static_assert(offsetof(AppliedMessage, count) == 8);
static_assert(offsetof(ClaimMessage, minibatch) == 8);
static_assert(offsetof(ClaimMessage, count) == 16);
static_assert(offsetof(ClaimedMessage, index) == 8);
static_assert(offsetof(ClaimedMessage, count) == 16);

static_assert(sizeof(RegionMessage) == 32);
static_assert(offsetof(RegionMessage, number) == 8);
static_assert(offsetof(RegionMessage, bytes) == 16);
static_assert(offsetof(RegionMessage, minibatch) == 24);

}  // namespace odc
