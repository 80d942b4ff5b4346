// SPDX-License-Identifier: Apache-2.0
#include "transport/mates.h"

#include <sys/epoll.h>

#include <array>

#include "status.h"

namespace odc {

Mates::Mates(std::vector<FabricMate> mates) : mates_(std::move(mates)), ring_(epoll_create1(EPOLL_CLOEXEC)) {
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

std::vector<int> Mates::dead() {
    std::vector<int> ranks;
    std::array<epoll_event, 16> events;
    const int count = epoll_wait(ring_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
        const FabricMate &mate = mates_[events[static_cast<size_t>(i)].data.u64];
        // What it said last tells more, and comes from itself.
        if (mate.block->state.load(std::memory_order_acquire) == RankState::Running) {
            ranks.push_back(mate.rank);
        }
    }
    return ranks;
}

}  // namespace odc
