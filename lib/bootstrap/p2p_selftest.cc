// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/p2p_selftest.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/program.h"
#include "bootstrap/local/message.h"

namespace odc {

using cuda::driver;

namespace {

constexpr uint64_t kPatternWords = 4096;
constexpr uint64_t kOnes = 1024;  // floats that are added at a time, to each area
constexpr int kRounds = 64;
constexpr uint64_t kPatternBytes = kPatternWords * sizeof(uint32_t);
constexpr uint64_t kAreaBytes = kOnes * sizeof(float);

uint32_t pattern_word(int rank, uint64_t index) {
    return (static_cast<uint32_t>(rank) + 1) * 2654435761U + static_cast<uint32_t>(index) * 40503U;
}

// One rank's part. The region of each rank: its pattern, ones, and for each rank of the host an area of sums.
class Trial {
public:
    Trial(Membership &membership, const Patience &patience)
        : membership_(membership), patience_(patience), cuda_(*membership.cuda), device_(cuda_.device()),
          mates_(membership.hosts[membership.own().host_index]), passages_(membership.peers.size()),
          regions_(mates_.size()), host_(device_, kPatternBytes + mates_.size() * kAreaBytes) {
        if (mates_.size() > RankBlock::kMostTried) {
            fail(ODC_ERROR_UNSUPPORTED, "odc_init: ", mates_.size(),
                 " ranks of one host cannot all have GPUs, at most ", RankBlock::kMostTried);
        }
        const Wishes wishes = read_wishes();
        for (size_t seat = 0; seat < mates_.size(); ++seat) {
            const int rank = mates_[seat];
            const GpuIdentity &gpu = block(rank).gpu;
            Passage &passage = passages_[static_cast<size_t>(rank)];
            alone_ = alone_ && (rank == membership.terms.rank || !gpu.present);
            const bool own = rank == membership.terms.rank;
            if (!own && gpu.present && (wishes.transports & bit_of(kCuda)) == 0) {
                passage.why_not = "ODC_TRANSPORTS leaves cuda out";
            } else if (gpu.present) {
                passage = cuda_.passage_to(gpu);
            } else {
                passage.why_not = "it has no GPU";
            }
            if (rank == membership.terms.rank) {
                seat_ = seat;
            }
        }
    }

    std::vector<Passage> run() {
        if (alone_) {
            return std::move(passages_);
        }
        const uint64_t region = open();
        meet(Step::Opened);
        for (size_t seat = 0; seat < mates_.size(); ++seat) {
            if (seat != seat_ && usable(seat)) {
                read_pattern(seat);
            }
        }
        meet(Step::Read);
        add();
        meet(Step::Added);
        check_sums();
        meet(Step::Judged);
        hear_verdicts();
        close(region);
        return std::move(passages_);
    }

private:
    using Step = TrialStep;

    RankBlock &block(int rank) const { return membership_.peers[static_cast<size_t>(rank)].rank_block(); }
    Passage &passage(size_t seat) { return passages_[static_cast<size_t>(mates_[seat])]; }
    bool usable(size_t seat) { return passage(seat).why_not.empty(); }
    std::byte *area(size_t owner, size_t adder) const {
        return regions_[owner] + 2 * kPatternBytes + adder * kAreaBytes;
    }
    void copy(void *to, const void *from, uint64_t bytes, const char *what) const {
        const CudaDevice::Scope scope(device_);
        device_.check(driver().cuMemcpyAsync(reinterpret_cast<cuda::Address>(to), reinterpret_cast<cuda::Address>(from),
                                             bytes, device_.own_stream()),
                      "cuMemcpyAsync");
        device_.await_own_stream(what, patience_);
    }

    uint64_t open() {
        const auto [number, start] =
            cuda_.allocate(membership_.terms.rank, 2 * kPatternBytes + mates_.size() * kAreaBytes, patience_);
        regions_[seat_] = start;
        auto *const words = reinterpret_cast<uint32_t *>(host_.start());
        for (uint64_t i = 0; i < kPatternWords; ++i) {
            words[i] = pattern_word(membership_.terms.rank, i);
        }
        copy(start, words, kPatternBytes, "writing a pattern");
        std::fill_n(reinterpret_cast<float *>(words), kOnes, 1.0F);
        copy(start + kPatternBytes, words, kAreaBytes, "writing ones");
        block(membership_.terms.rank).trial_region = number;
        cuda_.offer(membership_.terms.rank, number, 0, {mates_.begin(), mates_.end()});
        return number;
    }

    // Until every rank with a GPU has come so far.
    void meet(Step step) {
        block(membership_.terms.rank).trial_step.store(step, std::memory_order_release);
        for (const int rank : mates_) {
            const RankBlock &other = block(rank);
            while (other.gpu.present && other.trial_step.load(std::memory_order_acquire) < step) {
                cuda_.exchange_mail();
                look_at(rank, other);
                std::this_thread::sleep_for(std::chrono::microseconds(100));
            }
        }
    }

    void look_at(int rank, const RankBlock &other) const {
        const Peer &peer = membership_.peers[static_cast<size_t>(rank)];
        const bool gone =
            rank != membership_.terms.rank && (dead(peer.life.get()) || is_program_gone(peer.program.get()));
        if (other.state.load(std::memory_order_acquire) == RankState::Failed) {
            fail(ODC_ERROR_RENDEZVOUS, other.error_text);
        }
        if (gone) {
            fail(ODC_ERROR_RENDEZVOUS, "rank ", rank, " (pid ", other.pid, ") ",
                 words_of(how_program_went(peer.life.get())), " in odc_init");
        }
        if (patience_.over()) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init waited ", patience_.waited_s(), " s; rank ", rank, " (pid ", other.pid,
                 ") is still trying its GPU, ", other.gpu.name);
        }
        patience_.check_interrupted("odc_init");
    }

    void read_pattern(size_t seat) {
        const int rank = mates_[seat];
        try {
            while ((regions_[seat] = cuda_.use(rank, block(rank).trial_region)) == nullptr) {
                cuda_.exchange_mail();
                look_at(rank, block(rank));
                std::this_thread::sleep_for(std::chrono::microseconds(100));
            }
            std::memset(host_.start(), 0, kPatternBytes);
            copy(host_.start(), regions_[seat], kPatternBytes, "reading a pattern of another GPU");
        } catch (const Error &error) {
            if (device_.is_busy() || error.status() == ODC_ERROR_RENDEZVOUS ||
                error.status() == ODC_ERROR_INTERRUPTED) {
                throw;
            }
            passage(seat).why_not = say("the memory of that rank's GPU cannot be read: ", error.what());
            device_healthy();
            return;
        }
        const auto *const words = reinterpret_cast<const uint32_t *>(host_.start());
        for (uint64_t i = 0; i < kPatternWords; ++i) {
            if (words[i] != pattern_word(rank, i)) {
                passage(seat).why_not =
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

    // All ranks at the same time.
    void add() {
        std::vector<Addend> addends;
        const std::byte *const ones = regions_[seat_] + kPatternBytes;
        for (size_t seat = 0; seat < mates_.size(); ++seat) {
            if (seat != seat_ && usable(seat)) {
                addends.push_back({ones, area(seat, seat_), kOnes});
                addends.push_back({ones, area(seat_, seat), kOnes});
            }
        }
        const CudaDevice::Scope scope(device_);
        for (int round = 0; round < kRounds && !addends.empty(); ++round) {
            cuda_.add(ODC_F32, addends, device_.own_stream());
        }
        device_.await_own_stream("additions to other GPUs", patience_);
    }

    void check_sums() {
        RankBlock &mine = block(membership_.terms.rank);
        auto *const sums = reinterpret_cast<float *>(host_.start() + kPatternBytes);
        copy(sums, area(seat_, 0), mates_.size() * kAreaBytes, "reading sums");
        for (size_t seat = 0; seat < mates_.size(); ++seat) {
            const float *const theirs = sums + seat * kOnes;
            const bool whole = std::all_of(theirs, theirs + kOnes, [](float sum) { return sum == 2 * kRounds; });
            mine.trial_verdicts[seat] = !usable(seat)            ? TrialVerdict::Unusable
                                        : seat == seat_ || whole ? TrialVerdict::Good
                                                                 : TrialVerdict::SumsLost;
        }
    }

    // A pair is good if both say so.
    void hear_verdicts() {
        const RankBlock &mine = block(membership_.terms.rank);
        for (size_t seat = 0; seat < mates_.size(); ++seat) {
            Passage &one = passage(seat);
            if (seat == seat_ || !one.why_not.empty()) {
                continue;
            }
            // Where it could not add, its part is missing from the sums here.
            const TrialVerdict theirs = block(mates_[seat]).trial_verdicts[seat_];
            if (theirs == TrialVerdict::Unusable) {
                one.why_not = "that rank cannot use this one's GPU; its own route says why";
            } else if (theirs == TrialVerdict::SumsLost || mine.trial_verdicts[seat] == TrialVerdict::SumsLost) {
                one.why_not = "sums that both GPUs added to at the same time were not whole (no atomics between them?)";
            }
        }
    }

    void close(uint64_t region) {
        for (size_t seat = 0; seat < mates_.size(); ++seat) {
            if (seat != seat_ && block(mates_[seat]).gpu.present) {
                cuda_.discard(mates_[seat], block(mates_[seat]).trial_region);
            }
        }
        cuda_.drop(membership_.terms.rank, region, 0);
    }

    Membership &membership_;
    const Patience &patience_;
    Cuda &cuda_;
    const CudaDevice &device_;
    const std::vector<int> &mates_;  // by seat
    size_t seat_ = 0;
    bool alone_ = true;                 // no other has a GPU
    std::vector<Passage> passages_;     // by rank
    std::vector<std::byte *> regions_;  // by seat
    PinnedMemory host_;
};

}  // namespace

std::vector<Passage> try_gpus(Membership &membership, const Patience &patience) {
    if (!membership.cuda) {
        return std::vector<Passage>(membership.peers.size());
    }
    std::unique_ptr<Trial> trial;
    try {
        trial = std::make_unique<Trial>(membership, patience);
        return trial->run();
    } catch (const Error &error) {
        if (membership.cuda->device().is_busy()) {  // what a GPU still uses must not be unmapped
            (void)trial.release();
            (void)membership.cuda.release();
        }
        if (error.status() != ODC_ERROR_DEVICE) {
            throw;
        }
        fail(ODC_ERROR_DEVICE, "odc_init: ", error.what());
    }
}

}  // namespace odc
