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

LocalPeers::LocalPeers(int rank, std::vector<FabricLocalPeer> local_peers)
    : local_peers_(std::move(local_peers)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    std::sort(local_peers_.begin(), local_peers_.end(),
              [rank](const FabricLocalPeer &one, const FabricLocalPeer &other) {
                  return std::pair(one.rank < rank, one.rank) < std::pair(other.rank < rank, other.rank);
              });
    if (!epoll_.valid()) {
        fail_errno("epoll_create1");
    }
    for (size_t i = 0; i < local_peers_.size(); ++i) {
        epoll_event event{EPOLLIN | EPOLLONESHOT, {}};
        event.data.u64 = i;
        if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, local_peers_[i].pidfd, &event) != 0) {
            fail_errno("epoll_ctl");
        }
    }
}

// Skips peers that have left or failed: they have told the other hosts themselves.
void LocalPeers::add_ended(FabricLocalPeer &local_peer, Ending how, std::vector<EndedPeer> *all) {
    if (local_peer.block != nullptr && local_peer.block->state.load(std::memory_order_acquire) == RankState::Running) {
        all->push_back({local_peer.rank, how});
    }
    local_peer.block = nullptr;
}

std::vector<EndedPeer> LocalPeers::dead() {
    std::vector<EndedPeer> all;
    std::array<epoll_event, 16> events;
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
        add_ended(local_peers_[events[static_cast<size_t>(i)].data.u64], Ending::Death, &all);
    }
    return all;
}

std::vector<EndedPeer> LocalPeers::check_programs(int64_t now_ns) {
    std::vector<EndedPeer> all;
    if (now_ns < next_ns_) {
        return all;
    }
    next_ns_ = now_ns + kProgramsEveryNs;
    for (size_t i = 0; i < std::min(local_peers_.size(), kProgramsAtOnce); ++i) {
        FabricLocalPeer &local_peer = local_peers_[i];
        if (local_peer.block != nullptr && is_program_gone(local_peer.program)) {
            add_ended(local_peer, how_program_went(local_peer.pidfd), &all);
        }
    }
    return all;
}

}  // namespace odc
