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
               : say("; ", group.named_by, " makes these ranks one host, which is wrong if they are on several");
}

LocalPeer local_peer_of(const Member &member, std::vector<Fd> &&fds) {
    LocalPeer one{member.pid, std::move(fds[0]), std::move(fds[1]), std::move(fds[2]), {}};
    if (fds.size() > 3) {
        one.slot = std::move(fds[3]);
    }
    return one;
}

void add_member(const LocalPeer &one, int rank, Message *message, std::vector<int> *fds) {
    const size_t before = fds->size();
    fds->insert(fds->end(), {one.memory.get(), one.life.get(), one.program.get()});
    if (one.slot.valid()) {
        fds->push_back(one.slot.get());
    }
    message->members[message->member_count++] = {rank, one.pid, static_cast<int32_t>(fds->size() - before)};
}

LocalPeer own_local_peer(const PeerHandles &mine) {
    LocalPeer one{getpid(),
                  duplicate(mine.memory),
                  Fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))),
                  duplicate(mine.program),
                  {}};
    if (!one.life.valid()) {
        fail_errno("pidfd_open (Linux 5.3 or later is needed)");
    }
    if (mine.slot >= 0) {
        one.slot = duplicate(mine.slot);
    }
    return one;
}

}  // namespace odc
