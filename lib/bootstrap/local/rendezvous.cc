// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/rendezvous.h"

#include "base/program.h"
#include "bootstrap/local/leader.h"
#include "bootstrap/local/message.h"
#include "bootstrap/local/socket.h"

#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>

namespace odc {

namespace {

constexpr int kFarewellMs = 500;  // a rank waits this much longer than its deadline for its leader's words
constexpr int kSliceMs = 50;      // between two questions to the caller
constexpr int kLastRetryMs = 32;  // before a leader is looked for again, doubled each time: hundreds of ranks may look

// Invalid when there is no such process (any more).
Fd pidfd_of(int pid) {
    Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!fd.valid() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        fail_errno("pidfd_open");
    }
    return fd;
}

// The other ranks' side.
class Joiner {
public:
    Joiner(const LocalGroup &group, const Deadline &deadline)
        : group_(group), leader_(group.ranks[0]), deadline_(deadline),
          liveness_fd_(group.liveness_fds.empty() ? -1 : group.liveness_fds[0]) {}

    std::vector<LocalPeer> run(const PeerHandles &mine) {
        enter(own_local_peer(mine));
        add();
        host_pid_ = peers_[0].pid;
        while (peers_.size() < group_.ranks.size()) {
            if (!next(Message::Members)) {
                lost_host();
            }
            add();
        }
        return std::move(peers_);
    }

private:
    // Says hello until it is answered: the listener of the meeting before may still be there, and closes unheard. But
    // only one process ever hears it: after that, another leader is another job's.
    void enter(const LocalPeer &mine) {
        for (;;) {
            connect_to_host();
            Message hello = make_message(Message::Hello, group_.rank, group_.size);
            hello.remaining_ms = deadline_.remaining_ms();
            std::vector<int> fds;
            add_member(mine, group_.rank, &hello, &fds);
            send_message(socket_.get(), hello, fds, deadline_);
            if (next(Message::Welcome)) {
                return;
            }
            if (deadline_.over()) {
                lost_host();
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }

    void add() {
        auto next_fd = std::make_move_iterator(received_->fds.begin());
        for (int32_t i = 0; i < received_->message.member_count; ++i) {
            const Member &member = received_->message.members[i];
            if (peers_.size() == group_.ranks.size() || member.rank != group_.ranks[peers_.size()]) {
                lost_host();
            }
            peers_.push_back(local_peer_of(member, {next_fd, next_fd + member.fds}));
            next_fd += member.fds;
        }
    }

    void connect_to_host() {
        const LocalAddress address = local_address(group_.name);
        for (int retry_ms = 1;; retry_ms = std::min(2 * retry_ms, kLastRetryMs)) {
            socket_ = make_local_socket();
            if (connect(socket_.get(), address.get(), address.bytes) == 0) {
                // What a dead leader left behind in a forked child accepts nobody.
                if (!gone(peer_of(socket_.get()).pid)) {
                    break;
                }
            } else if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
                fail_errno("connect in odc_init");
            }
            if (dead(host_life_.get()) || (leader_ == 0 && dead(liveness_fd_))) {
                lost_host();
            }
            if (dead(liveness_fd_)) {
                fail(ODC_ERROR_RENDEZVOUS, "rank 0 ", kLeftSomehow, " in odc_init", doubt(group_));
            }
            if (deadline_.over()) {
                fail(ODC_ERROR_RENDEZVOUS, missing());
            }
            deadline_.say_long([this] { return missing(); });
            deadline_.check_interrupted("odc_init");
            std::this_thread::sleep_for(std::chrono::milliseconds(retry_ms));
        }
        check_same_user(socket_.get(), group_.name);
        const int pid = peer_of(socket_.get()).pid;
        if (dead(host_life_.get()) || (host_life_.valid() && pid != host_pid_)) {
            lost_host();
        }
        host_pid_ = pid;
        host_life_ = pidfd_of(pid);
    }

    // Receives it into `received_`. False: the leader closed the connection without a word.
    bool next(Message::Kind kind) {
        for (;;) {
            Message &message = received_->message;
            switch (receive_message(socket_.get(), received_.get())) {
                case Received::Message:
                    if (message.kind == Message::Refused) {
                        message.text[sizeof(message.text) - 1] = '\0';
                        throw Error(ODC_ERROR_RENDEZVOUS, message.text);
                    }
                    return message.kind == kind;
                case Received::Closed: return false;
                case Received::Nothing: break;
            }
            if (dead(host_life_.get())) {
                lost_host();
            }
            if (deadline_.remaining_ms() < -kFarewellMs) {
                fail(ODC_ERROR_RENDEZVOUS, waited(), "; rank ", leader_, " (pid ", host_pid_,
                     ") is there but does not answer");
            }
            deadline_.say_long([this] {
                return say(waited(), "; rank ", leader_, " (pid ", host_pid_, ") is there and waits for the others");
            });
            deadline_.check_interrupted("odc_init");
            pollfd entries[2] = {{socket_.get(), POLLIN, 0}, {host_life_.get(), POLLIN, 0}};
            poll(entries, 2, static_cast<int>(std::clamp<int64_t>(deadline_.remaining_ms(), 1, kSliceMs)));
        }
    }

    std::string waited() const {
        return say("odc_init of rank ", group_.rank, " waited ", deadline_.waited_s(), " s at \"", group_.name, '"');
    }

    std::string missing() const {
        return say(waited(), "; missing: rank ", leader_,
                   " (is it started, under the same job name and user, on this host?)", doubt(group_));
    }

    [[noreturn]] void lost_host() {
        const std::string pid = host_pid_ != 0 ? say(" (pid ", host_pid_, ")") : "";
        const bool welcomed = !peers_.empty();
        fail(ODC_ERROR_RENDEZVOUS, "rank ", leader_, pid, " of job \"", group_.name, "\" ",
             welcomed ? how_it_left(peers_[0].life.get(), peers_[0].program.get()) : kLeftSomehow, " in odc_init",
             host_pid_ == 0 ? doubt(group_) : "");
    }

    const LocalGroup &group_;
    int leader_;
    const Deadline &deadline_;
    int liveness_fd_;               // to rank 0, until the leader is found
    std::vector<LocalPeer> peers_;  // who is known by now: the leader first
    std::unique_ptr<ReceivedMessage> received_ = std::make_unique<ReceivedMessage>();  // too large for a small stack
    Fd socket_;
    int host_pid_ = 0;
    Fd host_life_;
};

}  // namespace

std::vector<LocalPeer> meet(const LocalGroup &group, const PeerHandles &mine, const Deadline &deadline) {
    if (group.rank == group.ranks[0]) {
        return lead(group, mine, deadline);
    }
    return Joiner(group, deadline).run(mine);
}

}  // namespace odc
