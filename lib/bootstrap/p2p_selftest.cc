// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/p2p_selftest.h"

#include <algorithm>
#include <cstring>

#include <poll.h>

#include "base/futex.h"
#include "base/process.h"
#include "base/program.h"
#include "bootstrap/membership.h"
#include "routing/transport_table.h"
#include "transport/cuda/cuda.h"

namespace odc {

using cuda::driver;

namespace {

constexpr uint64_t kPatternWords = 4096;
constexpr uint64_t kOnes = 1024;           // floats that are added at a time, to each area
constexpr uint32_t kRounds = 64;           // that a rank adds beside another one
constexpr uint32_t kRoundsAtOnce = 8;      // between looks at the others
constexpr uint32_t kMostRounds = 1 << 22;  // two ranks' sums of ones are exact in f32
constexpr int kChannelMs = 1;  // a peer may wait for room at this rank's IPC channel, which rings no doorbell
constexpr uint64_t kPatternBytes = kPatternWords * sizeof(uint32_t);
constexpr uint64_t kAreaBytes = kOnes * sizeof(float);

constexpr uint32_t pattern_word(int rank, uint64_t index) {
    return (static_cast<uint32_t>(rank) + 1) * 2654435761U + static_cast<uint32_t>(index) * 40503U;
}

// What ranks read of each other's region, and wait for: pinned as in shared_layouts.cc.
static_assert(kPatternBytes == 16384 && kAreaBytes == 4096 && kRounds == 64);
static_assert(pattern_word(2, 5) == 3668542502U);

// One rank's part. The region of each rank: its pattern, ones, and for each rank of the host an area of sums.
class P2pSelftest {
public:
    P2pSelftest(Membership &membership, const Deadline &deadline)
        : membership_(membership), deadline_(deadline), cuda_(*membership.cuda), device_(cuda_.device()),
          local_peers_(membership.hosts[membership.own().host_index]), peer_accesses_(membership.peers.size()),
          regions_(local_peers_.size()), host_(device_, kPatternBytes + local_peers_.size() * kAreaBytes) {
        if (local_peers_.size() > ControlBlock::kMostTried) {
            fail(ODC_ERROR_UNSUPPORTED,
                 "odc_init: this host has {} ranks; with GPUs at most {} are possible: start fewer here",
                 local_peers_.size(), ControlBlock::kMostTried);
        }
        const RouteOptions options = read_route_options();
        for (size_t local_rank = 0; local_rank < local_peers_.size(); ++local_rank) {
            const int rank = local_peers_[local_rank];
            const GpuIdentity &gpu = block(rank).gpu;
            PeerAccess &peer_access = peer_accesses_[static_cast<size_t>(rank)];
            alone_ = alone_ && (rank == membership.config.rank || !gpu.present);
            const bool own = rank == membership.config.rank;
            if (!own && gpu.present && (options.transports & transport_bit(transport_row("cuda"))) == 0) {
                peer_access.why_not = "ODC_TRANSPORTS leaves cuda out";
            } else if (gpu.present) {
                peer_access = cuda_.peer_access_to(gpu);
            } else {
                peer_access.why_not = "it has no GPU";
            }
            if (rank == membership.config.rank) {
                own_local_rank_ = local_rank;
            }
        }
        if (std::any_of(peer_accesses_.begin(), peer_accesses_.end(),
                        [](const PeerAccess &one) { return one.needs_scalars; })) {
            const CudaDevice::Scope scope(device_);
            cuda_.use_scalar_reductions();
        }
    }

    std::vector<PeerAccess> run() {
        if (alone_) {
            return std::move(peer_accesses_);
        }
        const uint64_t region = open();
        meet(Step::Opened);
        for (size_t local_rank = 0; local_rank < local_peers_.size(); ++local_rank) {
            if (local_rank != own_local_rank_ && usable(local_rank)) {
                read_pattern(local_rank);
            }
        }
        meet(Step::Read);
        add();
        meet(Step::Added);
        check_sums();
        meet(Step::Judged);
        receive_results();
        close(region);
        return std::move(peer_accesses_);
    }

private:
    using Step = SelftestStep;

    ControlBlock &block(int rank) const { return membership_.peers[static_cast<size_t>(rank)].control_block(); }
    PeerAccess &peer_access(size_t local_rank) { return peer_accesses_[static_cast<size_t>(local_peers_[local_rank])]; }
    bool usable(size_t local_rank) { return peer_access(local_rank).why_not.empty(); }
    std::byte *area(size_t owner, size_t adder) const {
        return regions_[owner] + 2 * kPatternBytes + adder * kAreaBytes;
    }
    RemoteSlice sums(size_t owner, size_t adder) const {
        RemoteSlice slice{};
        slice.accumulator = area(owner, adder);
        slice.gradient_type = ODC_F32;
        slice.numel = kOnes;
        return slice;
    }
    void copy(void *to, const void *from, uint64_t bytes, const char *what) const {
        const CudaDevice::Scope scope(device_);
        device_.check(driver().cuMemcpyAsync(reinterpret_cast<cuda::Address>(to), reinterpret_cast<cuda::Address>(from),
                                             bytes, device_.own_stream()),
                      "cuMemcpyAsync");
        device_.await_own_stream(what, deadline_);
    }

    uint64_t open() {
        const auto [number, start] =
            cuda_.allocate(membership_.config.rank, 2 * kPatternBytes + local_peers_.size() * kAreaBytes, deadline_);
        regions_[own_local_rank_] = start;
        auto *const words = reinterpret_cast<uint32_t *>(host_.start());
        for (uint64_t i = 0; i < kPatternWords; ++i) {
            words[i] = pattern_word(membership_.config.rank, i);
        }
        copy(start, words, kPatternBytes, "writing a pattern");
        std::fill_n(reinterpret_cast<float *>(words), kOnes, 1.0F);
        copy(start + kPatternBytes, words, kAreaBytes, "writing ones");
        block(membership_.config.rank).selftest_region = number;
        cuda_.send_region(membership_.config.rank, number, 0, {local_peers_.begin(), local_peers_.end()});
        return number;
    }

    // Waits until every rank with a GPU has come to this step.
    void meet(Step step) {
        block(membership_.config.rank).selftest_step.store(step, std::memory_order_release);
        ring(block(membership_.config.rank));
        for (const int rank : local_peers_) {
            ControlBlock &other = block(rank);
            const auto has_come = [&] {
                return !other.gpu.present || other.selftest_step.load(std::memory_order_acquire) >= step;
            };
            for (;;) {
                const uint32_t rung = other.doorbell.rung.load();
                if (has_come()) {
                    break;
                }
                cuda_.progress_ipc();
                try {
                    look_at(rank, other);
                } catch (const Error &error) {
                    if (error.status() == ODC_ERROR_RENDEZVOUS && has_come()) {  // and failed in a later call, or ended
                        break;
                    }
                    throw;
                }
                other.doorbell.waiters.fetch_add(1);
                futex_wait(other.doorbell.rung, rung, kChannelMs);
                other.doorbell.waiters.fetch_sub(1);
            }
        }
    }

    void look_at(int rank, const ControlBlock &other) const {
        const Peer &peer = membership_.peers[static_cast<size_t>(rank)];
        const bool gone =
            rank != membership_.config.rank && (dead(peer.pidfd.get()) || is_program_gone(peer.program.get()));
        if (other.state.load(std::memory_order_acquire) == RankState::Failed) {
            throw Error(ODC_ERROR_RENDEZVOUS, other.error_text);
        }
        if (gone) {
            fail(ODC_ERROR_RENDEZVOUS, "rank {} (pid {}) {} in odc_init", rank, other.pid,
                 ending_text(how_program_went(peer.pidfd.get())));
        }
        const auto missing = [&] {
            return formatted("odc_init waited {:.3g} s; rank {} (pid {}) is still trying its GPU, {}",
                             deadline_.waited_s(), rank, other.pid, other.gpu.name);
        };
        deadline_.check(ODC_ERROR_RENDEZVOUS, missing);
        deadline_.check_interrupted("odc_init");
    }

    void read_pattern(size_t local_rank) {
        const int rank = local_peers_[local_rank];
        try {
            while ((regions_[local_rank] = cuda_.map_region(rank, block(rank).selftest_region)) == nullptr) {
                cuda_.progress_ipc();
                look_at(rank, block(rank));
                pollfd sent{cuda_.ipc_wait_fd(), POLLIN, 0};
                poll(&sent, 1, deadline_.slice_ms());  // seldom: it was sent before Opened
            }
            std::memset(host_.start(), 0, kPatternBytes);
            copy(host_.start(), regions_[local_rank], kPatternBytes, "reading a pattern of another GPU");
        } catch (const Error &error) {
            if (device_.is_busy() || error.status() == ODC_ERROR_RENDEZVOUS ||
                error.status() == ODC_ERROR_INTERRUPTED) {
                throw;
            }
            peer_access(local_rank).why_not =
                formatted("the memory of that rank's GPU cannot be read: {}", error.what());
            device_healthy();
            return;
        }
        const auto *const words = reinterpret_cast<const uint32_t *>(host_.start());
        for (uint64_t i = 0; i < kPatternWords; ++i) {
            if (words[i] != pattern_word(rank, i)) {
                peer_access(local_rank).why_not =
                    "what is read from that rank's GPU is not what was written there (an IOMMU or "
                    "PCIe access control between them?)";
                return;
            }
        }
    }

    void device_healthy() const {
        const CudaDevice::Scope scope(device_);
        device_.check_health();
    }

    // All ranks add at the same time, as links lose only concurrent additions: an early rank goes on until the late ones have added
    // enough beside it.
    void add() {
        std::vector<SliceAddend> addends;
        const std::byte *const ones = regions_[own_local_rank_] + kPatternBytes;
        for (size_t local_rank = 0; local_rank < local_peers_.size(); ++local_rank) {
            if (local_rank != own_local_rank_ && usable(local_rank)) {
                addends.push_back({sums(local_rank, own_local_rank_), 0, kOnes, ones});
                addends.push_back({sums(own_local_rank_, local_rank), 0, kOnes, ones});
            }
        }
        std::atomic<uint32_t> &rounds = block(membership_.config.rank).selftest_rounds;
        if (addends.empty()) {
            rounds.store(kRounds, std::memory_order_release);
            return;
        }
        const CudaDevice::Scope scope(device_);
        while (rounds_of(own_local_rank_) < kMostRounds &&
               (rounds_of(own_local_rank_) < kRounds || others_are_behind())) {
            for (uint32_t i = 0; i < kRoundsAtOnce; ++i) {
                cuda_.add(addends, AddScope::SeveralGpus, device_.own_stream());
            }
            device_.await_own_stream("additions to other GPUs", deadline_);
            rounds.fetch_add(kRoundsAtOnce, std::memory_order_release);
        }
    }

    uint32_t rounds_of(size_t local_rank) const {
        return block(local_peers_[local_rank]).selftest_rounds.load(std::memory_order_acquire);
    }

    bool others_are_behind() {
        cuda_.progress_ipc();
        for (size_t local_rank = 0; local_rank < local_peers_.size(); ++local_rank) {
            if (usable(local_rank) && rounds_of(local_rank) < kRounds) {
                look_at(local_peers_[local_rank], block(local_peers_[local_rank]));
                return true;
            }
        }
        return false;
    }

    void check_sums() {
        ControlBlock &mine = block(membership_.config.rank);
        auto *const sums = reinterpret_cast<float *>(host_.start() + kPatternBytes);
        copy(sums, area(own_local_rank_, 0), local_peers_.size() * kAreaBytes, "reading sums");
        for (size_t local_rank = 0; local_rank < local_peers_.size(); ++local_rank) {
            const float *const theirs = sums + local_rank * kOnes;
            const auto expected = static_cast<float>(rounds_of(own_local_rank_) + rounds_of(local_rank));
            const bool whole = std::all_of(theirs, theirs + kOnes, [&](float sum) { return sum == expected; });
            mine.selftest_results[local_rank] = !usable(local_rank)                      ? SelftestResult::Unusable
                                                : local_rank == own_local_rank_ || whole ? SelftestResult::Good
                                                                                         : SelftestResult::SumsLost;
        }
    }

    // A pair is good if both say so.
    void receive_results() {
        const ControlBlock &mine = block(membership_.config.rank);
        for (size_t local_rank = 0; local_rank < local_peers_.size(); ++local_rank) {
            PeerAccess &one = peer_access(local_rank);
            if (local_rank == own_local_rank_ || !one.why_not.empty()) {
                continue;
            }
            // Where it could not add, its part is missing from the sums here.
            const SelftestResult theirs = block(local_peers_[local_rank]).selftest_results[own_local_rank_];
            if (theirs == SelftestResult::Unusable) {
                one.why_not = "that rank cannot use this one's GPU; its own route says why";
            } else if (theirs == SelftestResult::SumsLost ||
                       mine.selftest_results[local_rank] == SelftestResult::SumsLost) {
                one.why_not = "sums that both GPUs added to at the same time were not whole (no atomics between them?)";
            }
        }
    }

    void close(uint64_t region) {
        for (size_t local_rank = 0; local_rank < local_peers_.size(); ++local_rank) {
            if (local_rank != own_local_rank_ && block(local_peers_[local_rank]).gpu.present) {
                cuda_.discard_region(local_peers_[local_rank], block(local_peers_[local_rank]).selftest_region);
            }
        }
        cuda_.unmap_region(membership_.config.rank, region, 0);
    }

    Membership &membership_;
    const Deadline &deadline_;
    Cuda &cuda_;
    const CudaDevice &device_;
    const std::vector<int> &local_peers_;  // by local rank
    size_t own_local_rank_ = 0;
    bool alone_ = true;                      // no other has a GPU
    std::vector<PeerAccess> peer_accesses_;  // by rank
    std::vector<std::byte *> regions_;       // by local rank
    PinnedMemory host_;
};

}  // namespace

std::vector<PeerAccess> run_p2p_selftest(Membership &membership, const Deadline &deadline) {
    if (!membership.cuda) {
        return std::vector<PeerAccess>(membership.peers.size());
    }
    std::unique_ptr<P2pSelftest> selftest;
    try {
        selftest = std::make_unique<P2pSelftest>(membership, deadline);
        return selftest->run();
    } catch (const Error &error) {
        if (membership.cuda->device().is_busy()) {  // what a GPU still uses must not be unmapped
            (void)selftest.release();
            (void)membership.cuda.release();
        }
        if (error.status() != ODC_ERROR_DEVICE) {
            throw;
        }
        fail(ODC_ERROR_DEVICE, "odc_init: {}", error.what());
    }
}

}  // namespace odc
