// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/local_peers.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace odc {

namespace {

constexpr int64_t kProgramsEveryNs = 250'000'000;

}  // namespace

Mates::Mates(int rank, std::vector<FabricMate> mates) : mates_(std::move(mates)), ring_(epoll_create1(EPOLL_CLOEXEC)) {
    std::sort(mates_.begin(), mates_.end(), [rank](const FabricMate &one, const FabricMate &other) {
        return std::pair(one.rank < rank, one.rank) < std::pair(other.rank < rank, other.rank);
    });
    if (!ring_.valid()) {
        fail_errno("epoll_create1");
    }
    for (size_t i = 0; i < mates_.size(); ++i) {
        epoll_event event{EPOLLIN | EPOLLONESHOT, {}};
        event.data.u64 = i;
        if (epoll_ctl(ring_.get(), EPOLL_CTL_ADD, mates_[i].life, &event) != 0) {
            fail_errno("epoll_ctl");
        }
    }
}

// What it said last tells more, and comes from itself.
void Mates::add_ended(FabricMate &mate, Ending how, std::vector<Ended> *all) {
    if (mate.block != nullptr && mate.block->state.load(std::memory_order_acquire) == RankState::Running) {
        all->push_back({mate.rank, how});
    }
    mate.block = nullptr;
}

std::vector<Mates::Ended> Mates::dead() {
    std::vector<Ended> all;
    std::array<epoll_event, 16> events;
    const int count = epoll_wait(ring_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
        add_ended(mates_[events[static_cast<size_t>(i)].data.u64], Ending::Death, &all);
    }
    return all;
}

std::vector<Mates::Ended> Mates::gone(int64_t now_ns) {
    std::vector<Ended> all;
    if (now_ns < next_ns_) {
        return all;
    }
    next_ns_ = now_ns + kProgramsEveryNs;
    for (size_t i = 0; i < std::min(mates_.size(), kProgramsAtOnce); ++i) {
        FabricMate &mate = mates_[i];
        if (mate.block != nullptr && is_program_gone(mate.program)) {
            add_ended(mate, how_program_went(mate.life), &all);
        }
    }
    return all;
}

}  // namespace odc
