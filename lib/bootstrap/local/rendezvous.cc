// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/rendezvous.h"

#include "base/event_loop.h"
#include "base/process.h"
#include "base/program.h"
#include "bootstrap/local/leader.h"
#include "bootstrap/local/message.h"
#include "bootstrap/local/socket.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace odc {

namespace {

constexpr int64_t kAnswerNs = 500'000'000;  // a rank waits this much longer than its deadline for its leader's reply
constexpr int64_t kFirstRetryMs = 1;
constexpr int64_t kLastRetryMs = 20;  // before a leader is looked for again: hundreds of ranks may look

// Invalid when there is no such process (any more).
Fd pidfd_of(int pid) {
    Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!fd.valid() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        fail_errno("pidfd_open");
    }
    return fd;
}

// The side of the ranks that do not lead.
class Member {
public:
    Member(const LocalGroup &group, const Deadline &deadline)
        : group_(group), leader_(group.ranks[0]), deadline_(deadline), events_(deadline, "odc_init"),
          deadline_ns_(deadline_after(deadline.remaining_ms())),
          liveness_fd_(group.liveness_fds.empty() ? -1 : group.liveness_fds[0]) {}

    std::vector<LocalPeer> run(const PeerHandles &mine) {
        enter(own_local_peer(group_.rank, mine));
        add();
        leader_pid_ = peers_[0].pid;
        while (peers_.size() < group_.ranks.size()) {
            if (!next(ReplyKind::kHandles)) {
                lost_leader();
            }
            add();
        }
        return std::move(peers_);
    }

private:
    // Sends hello until it is answered: an earlier job's listener may still be there, and closes without reading. Once a leader
    // has read it, a leader with another pid belongs to another job.
    void enter(const LocalPeer &mine) {
        PeersToSend own;
        add_peer(mine, &own);
        for (Backoff backoff(kFirstRetryMs, kLastRetryMs);;) {
            connect_to_leader(backoff);
            send_hello(socket_.get(), hello_of_rank(group_.rank, group_.size, deadline_.remaining_ms()), own,
                       deadline_);
            if (next(ReplyKind::kWelcome)) {
                return;
            }
            if (deadline_.over()) {
                lost_leader();
            }
            events_.watch(leader_life_.get());
            events_.watch(liveness_fd_);
            events_.wait(now_ns() + backoff.next_ns());
        }
    }

    void add() {
        for (LocalPeer &one : local_peers_of(std::move(received_))) {
            if (peers_.size() == group_.ranks.size() || one.rank != group_.ranks[peers_.size()]) {
                lost_leader();
            }
            peers_.push_back(std::move(one));
        }
    }

    void connect_to_leader(Backoff &backoff) {
        while (!try_to_connect()) {
            if (dead(leader_life_.get()) || (leader_ == 0 && dead(liveness_fd_))) {
                lost_leader();
            }
            if (dead(liveness_fd_)) {
                fail(ODC_ERROR_RENDEZVOUS, "rank 0 {} in odc_init{}", kLeftSomehow, doubt(group_));
            }
            deadline_.check(ODC_ERROR_RENDEZVOUS, [this] { return missing(); });
            // The kernel has no event for a process that begins to listen at a name; ranks that leave are seen.
            events_.watch(leader_life_.get());
            events_.watch(liveness_fd_);
            deadline_.trace("rank {} does not listen at \"{}\" yet; tries again", leader_, group_.name);
            events_.wait(now_ns() + backoff.next_ns());
        }
        check_same_user(socket_.get(), group_.name);
        const int pid = credentials_of(socket_.get()).pid;
        if (dead(leader_life_.get()) || (leader_life_.valid() && pid != leader_pid_)) {
            lost_leader();
        }
        leader_pid_ = pid;
        leader_life_ = pidfd_of(pid);
    }

    bool try_to_connect() {
        const LocalAddress address = local_address(group_.name);
        socket_ = make_local_socket();
        if (connect(socket_.get(), address.get(), address.bytes) == 0) {
            return !gone(
                credentials_of(socket_.get()).pid);  // what a dead leader left in a forked child accepts nobody
        }
        if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
            fail_errno("connect in odc_init");
        }
        return false;
    }

    // Receives it into `received_`. False: the leader closed the connection without a reply.
    bool next(ReplyKind wanted) {
        for (;;) {
            ReplyKind kind{};
            std::string why;
            switch (receive_reply(socket_.get(), &kind, &why, &received_)) {
                case Received::Message:
                    if (kind == ReplyKind::kFailed) {
                        throw Error(ODC_ERROR_RENDEZVOUS, why);
                    }
                    return kind == wanted;
                case Received::Closed: return false;
                case Received::Nothing: break;
            }
            if (dead(leader_life_.get())) {
                lost_leader();
            }
            if (now_ns() >= deadline_ns_ + kAnswerNs) {
                fail(ODC_ERROR_RENDEZVOUS, "{}; rank {} (pid {}) is there but does not answer", waited(), leader_,
                     leader_pid_);
            }
            deadline_.log_if_long([this] {
                return formatted("{}; rank {} (pid {}) is there and waits for the others", waited(), leader_,
                                 leader_pid_);
            });
            events_.watch(socket_.get());
            events_.watch(leader_life_.get());
            events_.wait(deadline_ns_ + kAnswerNs);
        }
    }

    std::string waited() const {
        return formatted("odc_init of rank {} waited {:.3g} s at \"{}\"", group_.rank, deadline_.waited_s(),
                         group_.name);
    }

    std::string missing() const {
        return formatted("{}; missing: rank {} (is it started, under the same job name and user, on this host?){}",
                         waited(), leader_, doubt(group_));
    }

    [[noreturn]] void lost_leader() {
        const std::string pid = leader_pid_ != 0 ? formatted(" (pid {})", leader_pid_) : "";
        const bool welcomed = !peers_.empty();
        fail(ODC_ERROR_RENDEZVOUS, "rank {}{} of job \"{}\" {} in odc_init{}", leader_, pid, group_.name,
             welcomed ? how_it_left(peers_[0].pidfd.get(), peers_[0].program.get()) : kLeftSomehow,
             leader_pid_ == 0 ? doubt(group_) : "");
    }

    const LocalGroup &group_;
    int leader_;
    const Deadline &deadline_;
    EventLoop events_;
    int64_t deadline_ns_;
    int liveness_fd_;               // to rank 0, until the leader is found
    std::vector<LocalPeer> peers_;  // who is known by now: the leader first
    ReceivedPeers received_;
    Fd socket_;
    int leader_pid_ = 0;
    Fd leader_life_;
};

}  // namespace

std::vector<LocalPeer> join_local_group(const LocalGroup &group, const PeerHandles &mine, const Deadline &deadline) {
    if (group.rank == group.ranks[0]) {
        return lead(group, mine, deadline);
    }
    return Member(group, deadline).run(mine);
}

}  // namespace odc
