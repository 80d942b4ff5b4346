// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/leader.h"

#include "base/program.h"
#include "base/tcp_socket.h"
#include "bootstrap/local/group.h"
#include "bootstrap/local/late_ranks.h"
#include "bootstrap/local/message.h"
#include "bootstrap/local/socket.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <thread>

namespace odc {

namespace {

constexpr int64_t kHelloNs = 2'000'000'000;  // for a stranger to say who it is
constexpr size_t kUndecided = 64;

// Ranks of the group have local ranks, in order; the leader's is 0.
class Leader {
public:
    Leader(const LocalGroup &group, const PeerHandles &mine, const Deadline &deadline)
        : group_(group), local_size_(group.ranks.size()), deadline_(deadline),
          deadline_ns_(now_ns() + deadline.remaining_ms() * 1'000'000), liveness_fds_(local_size_, -1),
          peers_(local_size_), sockets_(local_size_) {
        // Another host's leader has a liveness descriptor to rank 0 only.
        for (size_t local_rank = 1; local_rank < local_size_ && group.rank == 0 && !group.liveness_fds.empty();
             ++local_rank) {
            liveness_fds_[local_rank] = group.liveness_fds[static_cast<size_t>(group.ranks[local_rank])];
        }
        liveness_of_rank_0_ = group.rank != 0 && !group.liveness_fds.empty() ? group.liveness_fds[0] : -1;
        peers_[0] = own_local_peer(mine);
    }

    std::vector<LocalPeer> run() {
        try {
            listen_at();
            while (present_ < local_size_) {
                step();
            }
            hand_out();
        } catch (const Error &error) {
            tell_all(error);
            throw;
        }
        return std::move(peers_);
    }

private:
    struct Undecided {
        Fd socket;
        int64_t since_ns;
    };

    void listen_at() {
        for (listener_ = listen_locally(group_.name); !listener_.valid(); listener_ = listen_locally(group_.name)) {
            blame_other_leader();
            deadline_.check_interrupted("odc_init");
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }

    // Somebody listens under our name: another leader, which is told (so that its job fails too), or what a dead one left
    // behind in a forked child, which may still go away.
    void blame_other_leader() {
        const Fd other = make_local_socket();
        const LocalAddress address = local_address(group_.name);
        if (connect(other.get(), address.get(), address.bytes) != 0) {
            return;
        }
        check_same_user(other.get(), group_.name);
        const int pid = peer_of(other.get()).pid;
        if (gone(pid)) {
            if (!deadline_.over()) {
                return;
            }
            fail(ODC_ERROR_RENDEZVOUS, "a child of the dead process ", pid, " still holds the name of job \"",
                 group_.name, "\"; end it, or give the job another name");
        }
        Message hello = make_message(Message::Hello, group_.rank, group_.size);
        hello.remaining_ms = deadline_.remaining_ms();
        std::vector<int> fds;
        add_member(peers_[0], group_.rank, &hello, &fds);
        send_message(other.get(), hello, fds, deadline_);
        fail(ODC_ERROR_RENDEZVOUS, "two processes are rank ", group_.rank, " of job \"", group_.name, "\": pid ", pid,
             " and this one, pid ", getpid(), "; give each process its own rank, or each job its own name");
    }

    void step() {
        const int64_t left_ms = (deadline_ns_ - now_ns()) / 1'000'000;
        if (left_ms <= 0) {
            fail(ODC_ERROR_RENDEZVOUS, missing());
        }
        wait_for_any(static_cast<int>(std::min<int64_t>(left_ms, deadline_.slice_ms())));
        deadline_.say_long([this] { return missing(); });
        deadline_.check_interrupted("odc_init");
        hear_strangers();
        accept_waiting();
    }

    // Sleeps until somebody comes, and fails when somebody has gone.
    void wait_for_any(int timeout_ms) {
        std::vector<pollfd> entries{{liveness_of_rank_0_, POLLIN, 0}};
        for (size_t local_rank = 1; local_rank < local_size_; ++local_rank) {  // two for each
            const bool came = sockets_[local_rank].valid();
            entries.push_back({came ? sockets_[local_rank].get() : liveness_fds_[local_rank], POLLIN, 0});
            entries.push_back({came ? peers_[local_rank].life.get() : -1, POLLIN, 0});
        }
        entries.push_back({crowded_ ? -1 : listener_.get(), POLLIN, 0});
        for (const Undecided &one : undecided_) {
            entries.push_back({one.socket.get(), POLLIN, 0});
        }
        if (poll(entries.data(), entries.size(), timeout_ms) <= 0) {
            return;
        }
        if (entries[0].revents != 0) {
            fail(ODC_ERROR_RENDEZVOUS, "rank 0 ", kLeftSomehow, " in odc_init", doubt(group_));
        }
        for (size_t local_rank = 1; local_rank < local_size_; ++local_rank) {
            if (entries[2 * local_rank - 1].revents != 0 || entries[2 * local_rank].revents != 0) {
                fail_lost(local_rank);
            }
        }
    }

    [[noreturn]] void fail_lost(size_t local_rank) const {
        const LocalPeer &one = peers_[local_rank];
        const int rank = group_.ranks[local_rank];
        if (one.pid == 0) {
            fail(ODC_ERROR_RENDEZVOUS, "rank ", rank, ' ', kLeftSomehow, " in odc_init", doubt(group_));
        }
        fail(ODC_ERROR_RENDEZVOUS, "rank ", rank, " (pid ", one.pid, ") ",
             how_it_left(one.life.get(), one.program.get()), " in odc_init");
    }

    void accept_waiting() {
        if (undecided_.size() == kUndecided) {
            undecided_.erase(undecided_.begin());
            ++turned_away_;
        }
        crowded_ = false;
        while (undecided_.size() < kUndecided) {
            Address from;
            Fd fresh = accept_from(listener_.get(), &from);
            if (!fresh.valid()) {
                crowded_ = errno != EAGAIN;
                break;
            }
            if (peer_of(fresh.get()).uid == geteuid()) {
                undecided_.push_back({std::move(fresh), now_ns()});
            } else {
                ++turned_away_;
            }
        }
        if (crowded_ && undecided_.empty()) {
            fail_errno(say("odc_init cannot accept the ranks of this host (", present_, " of ", local_size_, " came)"));
        }
    }

    void hear_strangers() {
        for (size_t i = 0; i < undecided_.size();) {
            ReceivedMessage received{};
            const Received what = receive_message(undecided_[i].socket.get(), &received);
            if (what == Received::Nothing && now_ns() - undecided_[i].since_ns < kHelloNs) {
                ++i;
                continue;
            }
            Fd socket = std::move(undecided_[i].socket);
            undecided_.erase(undecided_.begin() + static_cast<std::ptrdiff_t>(i));
            if (what != Received::Message || received.message.kind != Message::Hello) {
                ++turned_away_;
                continue;
            }
            admit(std::move(socket), received);
        }
    }

    [[gnu::noinline]] void admit(Fd socket, ReceivedMessage &received) {
        const Message &hello = received.message;
        const auto refuse = [&](const std::string &text) {
            leaving_.push_back(std::move(socket));
            fail(ODC_ERROR_RENDEZVOUS, text);
        };
        if (hello.size != group_.size) {
            refuse(say("rank ", hello.rank, " (pid ", hello.pid, ") says that the job has ", hello.size,
                       " ranks, rank ", group_.rank, " (pid ", getpid(), ") says ", group_.size,
                       "; start all with one size"));
        }
        const auto place = std::lower_bound(group_.ranks.begin(), group_.ranks.end(), hello.rank);
        if (place == group_.ranks.end() || *place != hello.rank) {
            refuse(say("pid ", hello.pid, " says that it is rank ", hello.rank, " of ", group_.size,
                       ", which is not one of this host's"));
        }
        const auto local_rank = static_cast<size_t>(place - group_.ranks.begin());
        if (peers_[local_rank].pid != 0) {
            refuse(say("two processes are rank ", hello.rank, " of job \"", group_.name, "\": pid ",
                       peers_[local_rank].pid, " and pid ", hello.pid, "; give each process its own rank"));
        }
        deadline_ns_ = std::min(deadline_ns_, now_ns() + hello.remaining_ms * 1'000'000);
        peers_[local_rank] = local_peer_of(hello.members[0], std::move(received.fds));
        ++present_;
        deadline_.debug("rank ", hello.rank, " (pid ", hello.pid, ") has come, with it ", present_, " of ",
                        local_size_);
        Message welcome = make_message(Message::Welcome, group_.rank, group_.size);
        std::vector<int> fds;
        add_member(peers_[0], group_.rank, &welcome, &fds);
        send_message(socket.get(), welcome, fds, deadline_);
        sockets_[local_rank] = std::move(socket);
    }

    void hand_out() {
        for (size_t first = 1; first < local_size_; first += kMostMembers) {
            Message members = make_message(Message::Members, group_.rank, group_.size);
            std::vector<int> fds;
            for (size_t local_rank = first; local_rank < std::min(first + kMostMembers, local_size_); ++local_rank) {
                add_member(peers_[local_rank], group_.ranks[local_rank], &members, &fds);
            }
            for (size_t to = 1; to < local_size_; ++to) {
                if (!send_message(sockets_[to].get(), members, fds, deadline_)) {
                    fail(ODC_ERROR_RENDEZVOUS, "rank ", group_.ranks[to], " (pid ", peers_[to].pid, ") ",
                         deadline_.over() ? "does not answer"
                                          : how_it_left(peers_[to].life.get(), peers_[to].program.get()),
                         " in odc_init");
                }
            }
        }
    }

    void tell_all(const Error &error) {
        // A sentence about the meeting is everybody's; any other happened to the leader alone.
        const Message words =
            farewell_message(group_.rank, group_.size,
                             error.status() == ODC_ERROR_RENDEZVOUS
                                 ? error.what()
                                 : say("rank ", group_.rank, " (pid ", getpid(), ") left odc_init: ", error.what()));
        std::set<int> absent;
        for (size_t local_rank = 1; local_rank < local_size_; ++local_rank) {
            if (peers_[local_rank].pid == 0 && !dead(liveness_fds_[local_rank]) &&
                error.status() != ODC_ERROR_INTERRUPTED) {
                absent.insert(group_.ranks[local_rank]);
            }
        }
        for (Fd &socket : sockets_) {
            leaving_.push_back(std::move(socket));
        }
        for (Undecided &one : undecided_) {
            leaving_.push_back(std::move(one.socket));
        }
        const Deadline brief(100, nullptr, nullptr);
        for (const Fd &socket : leaving_) {
            if (socket.valid()) {
                send_message(socket.get(), words, {}, brief);
            }
        }
        leaving_.clear();  // there may be no descriptors left for who comes late
        peers_.clear();
        if (listener_.valid()) {
            tell_late_ranks(listener_, words, std::move(absent), deadline_);
        }
    }

    std::string missing() const {
        std::ostringstream text;
        text << "odc_init waited " << deadline_.waited_s() << " s at \"" << group_.name << "\"; missing:";
        for (size_t local_rank = 1; local_rank < local_size_; ++local_rank) {
            if (peers_[local_rank].pid == 0) {
                text << " rank " << group_.ranks[local_rank];
            }
        }
        text << " (" << present_ << " of " << local_size_ << " came";
        if (turned_away_ > 0) {
            text << ", " << turned_away_ << " strangers were turned away";
        }
        text << ")" << doubt(group_);
        return text.str();
    }

    const LocalGroup &group_;
    size_t local_size_;
    const Deadline &deadline_;
    int64_t deadline_ns_;            // the earliest of all present ranks', so that all read the same sentence
    std::vector<int> liveness_fds_;  // by local rank; for those that have not come
    int liveness_of_rank_0_;
    std::vector<LocalPeer> peers_;  // by local rank
    Fd listener_;
    std::vector<Fd> sockets_;  // by local rank
    std::vector<Undecided> undecided_;
    std::vector<Fd> leaving_;
    size_t present_ = 1;
    int turned_away_ = 0;
    bool crowded_ = false;  // who waits at the listener cannot be accepted before an undecided one has gone
};

}  // namespace

std::vector<LocalPeer> lead(const LocalGroup &group, const PeerHandles &mine, const Deadline &deadline) {
    return Leader(group, mine, deadline).run();
}

}  // namespace odc
