// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/leader.h"

#include "base/acceptor.h"
#include "base/event_loop.h"
#include "base/process.h"
#include "base/program.h"
#include "bootstrap/local/group.h"
#include "bootstrap/local/late_ranks.h"
#include "bootstrap/local/message.h"
#include "bootstrap/local/socket.h"

#include <algorithm>
#include <cerrno>
#include <set>

namespace odc {

namespace {

constexpr int64_t kHelloNs = 2'000'000'000;   // until a connection must have sent its hello
constexpr int64_t kNameRetryNs = 10'000'000;  // until the name is tried again, if its holder cannot be waited for

// Ranks of the group have local ranks, in order; the leader's is 0.
class Leader {
public:
    Leader(const LocalGroup &group, const PeerHandles &mine, const Deadline &deadline)
        : group_(group), local_size_(group.ranks.size()), deadline_(deadline), events_(deadline, "odc_init"),
          self_(hello_of_rank(group.rank, group.size, deadline.remaining_ms())),
          deadline_ns_(deadline_after(self_.remaining_ms)), liveness_fds_(local_size_, -1), peers_(local_size_),
          sockets_(local_size_) {
        // Another host's leader has a liveness descriptor to rank 0 only.
        for (size_t local_rank = 1; local_rank < local_size_ && group.rank == 0 && !group.liveness_fds.empty();
             ++local_rank) {
            liveness_fds_[local_rank] = group.liveness_fds[static_cast<size_t>(group.ranks[local_rank])];
        }
        liveness_of_rank_0_ = group.rank != 0 && !group.liveness_fds.empty() ? group.liveness_fds[0] : -1;
        peers_[0] = own_local_peer(group_.rank, mine);
    }

    std::vector<LocalPeer> run() {
        try {
            listen();
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

    void listen() {
        for (Fd listener = listen_locally(group_.name);; listener = listen_locally(group_.name)) {
            if (listener.valid()) {
                return acceptor_.listen(std::move(listener));
            }
            await_name();
        }
    }

    // Another process listens under our name: another leader, which is told (so that its job fails, too), or a forked child that
    // keeps a dead leader's socket open and may still end.
    void await_name() {
        const Fd other = make_local_socket();
        const LocalAddress address = local_address(group_.name);
        if (connect(other.get(), address.get(), address.bytes) != 0) {  // it does not listen yet, or no longer
            const std::string why = std::generic_category().message(errno);
            const auto held = [&] {
                return formatted(
                    "odc_init waited {:.3g} s for the name of job \"{}\", which a process holds that cannot be "
                    "connected to ({}); end it, or give the job another name",
                    deadline_.waited_s(), group_.name, why);
            };
            deadline_.check(ODC_ERROR_RENDEZVOUS, held);
            return events_.sleep(now_ns() + kNameRetryNs);
        }
        check_same_user(other.get(), group_.name);
        const int pid = credentials_of(other.get()).pid;
        if (gone(pid)) {
            return await_hang_up(other, pid);
        }
        Hello hello = self_;
        hello.remaining_ms = deadline_.remaining_ms();
        send_hello(other.get(), hello, own_handles(), deadline_);
        fail(ODC_ERROR_RENDEZVOUS,
             "two processes are rank {} of job \"{}\": pid {} and this one, pid {}; give each process its own rank, "
             "or each job its own name",
             group_.rank, group_.name, pid, getpid());
    }

    void await_hang_up(const Fd &other, int pid) {
        while (!deadline_.over()) {
            const size_t hang_up = events_.watch(other.get());
            events_.wait(deadline_ns_);
            if (events_.happened(hang_up)) {
                return;
            }
        }
        fail(ODC_ERROR_RENDEZVOUS,
             "a child of the dead process {} still holds the name of job \"{}\"; end it, or give the job another name",
             pid, group_.name);
    }

    void step() {
        if (now_ns() >= deadline_ns_) {
            throw Error(ODC_ERROR_RENDEZVOUS, missing());
        }
        deadline_.log_if_long([this] { return missing(); });
        wait_for_any();
        hear_undecided();
        accept_waiting();
    }

    // Sleeps until a rank comes; fails if one has gone.
    void wait_for_any() {
        const size_t rank_0 = events_.watch(liveness_of_rank_0_);
        std::vector<std::pair<size_t, size_t>> departures(local_size_);
        for (size_t local_rank = 1; local_rank < local_size_; ++local_rank) {
            const bool came = sockets_[local_rank].valid();
            departures[local_rank] = {events_.watch(came ? sockets_[local_rank].get() : liveness_fds_[local_rank]),
                                      events_.watch(came ? peers_[local_rank].pidfd.get() : -1)};
        }
        acceptor_.watch(events_);
        for (const Undecided &one : undecided_) {
            events_.watch(one.socket.get());
        }
        events_.wait(deadline_ns_);
        if (events_.happened(rank_0)) {
            fail(ODC_ERROR_RENDEZVOUS, "rank 0 {} in odc_init{}", kLeftSomehow, doubt(group_));
        }
        for (size_t local_rank = 1; local_rank < local_size_; ++local_rank) {
            if (events_.happened(departures[local_rank].first) || events_.happened(departures[local_rank].second)) {
                fail_lost(local_rank);
            }
        }
    }

    [[noreturn]] void fail_lost(size_t local_rank) const {
        const LocalPeer &one = peers_[local_rank];
        const int rank = group_.ranks[local_rank];
        if (one.pid == 0) {
            fail(ODC_ERROR_RENDEZVOUS, "rank {} {} in odc_init{}", rank, kLeftSomehow, doubt(group_));
        }
        fail(ODC_ERROR_RENDEZVOUS, "rank {} (pid {}) {} in odc_init", rank, one.pid,
             how_it_left(one.pidfd.get(), one.program.get()));
    }

    void accept_waiting() {
        acceptor_.accept_all([this](Fd fresh, const Address &) {
            if (credentials_of(fresh.get()).uid != geteuid()) {
                ++turned_away_;
                return;
            }
            if (undecided_.size() >= kMostUndecided + local_size_) {
                undecided_.erase(undecided_.begin());
                ++turned_away_;
            }
            undecided_.push_back({std::move(fresh), now_ns()});
        });
        if (acceptor_.is_crowded() && undecided_.empty()) {
            errno = acceptor_.why_crowded();
            fail_errno(
                formatted("odc_init cannot accept the ranks of this host ({} of {} came)", present_, local_size_));
        }
    }

    void hear_undecided() {
        for (size_t i = 0; i < undecided_.size();) {
            Hello hello{};
            ReceivedPeers self;
            const Received what = receive_hello(undecided_[i].socket.get(), &hello, &self);
            if (what == Received::Nothing && now_ns() - undecided_[i].since_ns < kHelloNs) {
                ++i;
                continue;
            }
            Fd socket = std::move(undecided_[i].socket);
            undecided_.erase(undecided_.begin() + static_cast<std::ptrdiff_t>(i));
            // A hello of another version may be a foreign client's bytes; it is one if it names the sender's pid as the kernel does.
            if (what == Received::Message &&
                (hello.version == self_.version || hello.pid == credentials_of(socket.get()).pid)) {
                admit(std::move(socket), hello, std::move(self));
            } else {
                ++turned_away_;
            }
        }
    }

    void admit(Fd socket, const Hello &hello, ReceivedPeers &&self) {
        leaving_ = std::move(socket);  // is told if it is refused
        check_hello(hello, self_);
        const auto at = std::lower_bound(group_.ranks.begin(), group_.ranks.end(), hello.rank);
        if (at == group_.ranks.end() || *at != hello.rank) {
            fail(ODC_ERROR_RENDEZVOUS,
                 "pid {} says that it is rank {} of {}, which is not one of this host's; check ODC_RANK and "
                 "ODC_HOST_ID",
                 hello.pid, hello.rank, group_.size);
        }
        const auto local_rank = static_cast<size_t>(at - group_.ranks.begin());
        if (peers_[local_rank].pid != 0) {
            fail(ODC_ERROR_RENDEZVOUS,
                 "two processes are rank {} of job \"{}\": pid {} and pid {}; give each process its own rank",
                 hello.rank, group_.name, peers_[local_rank].pid, hello.pid);
        }
        deadline_ns_ = std::min(deadline_ns_, deadline_after(hello.remaining_ms));
        peers_[local_rank] = std::move(local_peers_of(std::move(self))[0]);
        ++present_;
        deadline_.debug("rank {} (pid {}) has come, with it {} of {}", hello.rank, hello.pid, present_, local_size_);
        send_reply(leaving_.get(), ReplyKind::kWelcome, own_handles(), deadline_);
        sockets_[local_rank] = std::move(leaving_);
    }

    PeersToSend own_handles() const {
        PeersToSend own;
        add_peer(peers_[0], &own);
        return own;
    }

    void hand_out() {
        for (size_t first = 1; first < local_size_; first += kMostSentPeers) {
            PeersToSend some;
            for (size_t local_rank = first; local_rank < std::min(first + kMostSentPeers, local_size_); ++local_rank) {
                add_peer(peers_[local_rank], &some);
            }
            for (size_t to = 1; to < local_size_; ++to) {
                if (!send_reply(sockets_[to].get(), ReplyKind::kHandles, some, deadline_)) {
                    fail(ODC_ERROR_RENDEZVOUS, "rank {} (pid {}) {} in odc_init", group_.ranks[to], peers_[to].pid,
                         deadline_.over() ? "does not answer"
                                          : how_it_left(peers_[to].pidfd.get(), peers_[to].program.get()));
                }
            }
        }
    }

    void tell_all(const Error &error) {
        // An error of the rendezvous concerns all ranks; any other is the leader's own, and names it.
        const std::string why = error.status() == ODC_ERROR_RENDEZVOUS
                                    ? error.what()
                                    : formatted("{} left odc_init: {}", who(self_), error.what());
        std::set<int> absent;
        for (size_t local_rank = 1; local_rank < local_size_; ++local_rank) {
            if (peers_[local_rank].pid == 0 && !dead(liveness_fds_[local_rank]) &&
                error.status() != ODC_ERROR_INTERRUPTED) {
                absent.insert(group_.ranks[local_rank]);
            }
        }
        const Deadline brief(100, nullptr, nullptr);
        const auto tell = [&](Fd socket) {
            if (socket.valid()) {
                send_failure(socket.get(), why, brief);
            }
        };
        for (Fd &socket : sockets_) {
            tell(std::move(socket));
        }
        for (Undecided &one : undecided_) {
            tell(std::move(one.socket));
        }
        tell(std::move(leaving_));
        undecided_.clear();  // late ranks may need their descriptors
        peers_.clear();
        if (acceptor_.listens()) {
            tell_late_ranks(acceptor_, why, std::move(absent), deadline_);
        }
    }

    std::string missing() const {
        std::vector<std::string> ranks;
        for (size_t local_rank = 1; local_rank < local_size_; ++local_rank) {
            if (peers_[local_rank].pid == 0) {
                ranks.push_back(formatted("rank {}", group_.ranks[local_rank]));
            }
        }
        std::string text =
            formatted("odc_init waited {:.3g} s at \"{}\"; missing: {} ({} of {} came", deadline_.waited_s(),
                      group_.name, listed(ranks, ", ", kMostNamed), present_, local_size_);
        if (turned_away_ > 0) {
            text += formatted(", {} {} turned away", turned_away_,
                              turned_away_ == 1 ? "connection was" : "connections were");
        }
        return text + ")" + doubt(group_);
    }

    const LocalGroup &group_;
    size_t local_size_;
    const Deadline &deadline_;
    EventLoop events_;
    Hello self_;
    int64_t deadline_ns_;            // the earliest of all present ranks', so that all read the same sentence
    std::vector<int> liveness_fds_;  // by local rank; for those that have not come
    int liveness_of_rank_0_;
    std::vector<LocalPeer> peers_;  // by local rank
    Acceptor acceptor_;
    std::vector<Fd> sockets_;  // by local rank
    std::vector<Undecided> undecided_;
    Fd leaving_;  // of the rank that is being admitted
    size_t present_ = 1;
    int turned_away_ = 0;
};

}  // namespace

std::vector<LocalPeer> lead(const LocalGroup &group, const PeerHandles &mine, const Deadline &deadline) {
    return Leader(group, mine, deadline).run();
}

}  // namespace odc
