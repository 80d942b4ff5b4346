// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/group.h"

#include "base/error.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace odc {

namespace {

Fd duplicate(int fd) {
    Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
        fail_errno("duplicating a descriptor");
    }
    return copy;
}

}  // namespace

std::string doubt(const LocalGroup &group) {
    return group.named_by.empty()
               ? ""
               : formatted("; {} makes these ranks one host, which is wrong if they are on several", group.named_by);
}

std::vector<LocalPeer> local_peers_of(ReceivedPeers &&received) {
    std::vector<LocalPeer> all;
    auto next = received.fds.begin();
    for (const SentPeer &sent : received.peers) {
        LocalPeer &one = all.emplace_back(
            LocalPeer{sent.rank, sent.pid, std::move(next[0]), std::move(next[1]), std::move(next[2]), {}});
        if (sent.fds > 3) {
            one.ipc = std::move(next[3]);
        }
        next += sent.fds;
    }
    return all;
}

void add_peer(const LocalPeer &one, PeersToSend *to) {
    const size_t before = to->fds.size();
    to->fds.insert(to->fds.end(), {one.memory.get(), one.pidfd.get(), one.program.get()});
    if (one.ipc.valid()) {
        to->fds.push_back(one.ipc.get());
    }
    to->peers.push_back({one.rank, one.pid, static_cast<int32_t>(to->fds.size() - before)});
}

LocalPeer own_local_peer(int rank, const PeerHandles &mine) {
    LocalPeer one{rank,
                  getpid(),
                  duplicate(mine.memory),
                  Fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))),
                  duplicate(mine.program),
                  {}};
    if (!one.pidfd.valid()) {
        fail_errno("pidfd_open (Linux 5.3 or later is needed)");
    }
    if (mine.ipc >= 0) {
        one.ipc = duplicate(mine.ipc);
    }
    return one;
}

}  // namespace odc
