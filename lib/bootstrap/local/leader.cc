// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/leader.h"

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

// Ranks of the party have seats, in order; the leader's is 0.
class Leader {
public:
    Leader(const Party &party, const Handout &mine, const Patience &patience)
        : party_(party), seats_(party.ranks.size()), patience_(patience),
          deadline_ns_(now_ns() + patience.remaining_ms() * 1'000'000), ties_(seats_, -1), meeting_(seats_),
          sockets_(seats_) {
        // Another host's leader has a tie to rank 0 only.
        for (size_t seat = 1; seat < seats_ && party.rank == 0 && !party.ties.empty(); ++seat) {
            ties_[seat] = party.ties[static_cast<size_t>(party.ranks[seat])];
        }
        tie_to_rank_0_ = party.rank != 0 && !party.ties.empty() ? party.ties[0] : -1;
        meeting_[0] = own_attendant(mine);
    }

    std::vector<Attendant> run() {
        try {
            listen_at();
            while (present_ < seats_) {
                step();
            }
            hand_out();
        } catch (const Error &error) {
            tell_all(error);
            throw;
        }
        return std::move(meeting_);
    }

private:
    struct Undecided {
        Fd socket;
        int64_t since_ns;
    };

    void listen_at() {
        for (listener_ = listen_for_meeting(party_.name); !listener_.valid();
             listener_ = listen_for_meeting(party_.name)) {
            blame_other_leader();
            patience_.check_interrupted("odc_init");
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }

    // Somebody listens under our name: another leader, which is told (so that its job fails too), or what a dead one left
    // behind in a forked child, which may still go away.
    void blame_other_leader() {
        const Fd other = make_meeting_socket();
        const MeetingAddress address = meeting_address(party_.name);
        if (connect(other.get(), address.get(), address.bytes) != 0) {
            return;
        }
        check_same_user(other.get(), party_.name);
        const int pid = peer_of(other.get()).pid;
        if (gone(pid)) {
            if (!patience_.over()) {
                return;
            }
            fail(ODC_ERROR_RENDEZVOUS, "a child of the dead process ", pid, " still holds the name of job \"",
                 party_.name, "\"; end it, or give the job another name");
        }
        Message hello = make_message(Message::Hello, party_.rank, party_.size);
        hello.remaining_ms = patience_.remaining_ms();
        std::vector<int> fds;
        add_member(meeting_[0], party_.rank, &hello, &fds);
        send_parcel(other.get(), hello, fds, patience_);
        fail(ODC_ERROR_RENDEZVOUS, "two processes are rank ", party_.rank, " of job \"", party_.name, "\": pid ", pid,
             " and this one, pid ", getpid(), "; give each process its own rank, or each job its own name");
    }

    void step() {
        const int64_t left_ms = (deadline_ns_ - now_ns()) / 1'000'000;
        if (left_ms <= 0) {
            fail(ODC_ERROR_RENDEZVOUS, missing());
        }
        wait_for_any(static_cast<int>(std::min<int64_t>(left_ms, patience_.slice_ms())));
        patience_.check_interrupted("odc_init");
        hear_strangers();
        accept_waiting();
    }

    // Sleeps until somebody comes, and fails when somebody has gone.
    void wait_for_any(int timeout_ms) {
        std::vector<pollfd> entries{{tie_to_rank_0_, POLLIN, 0}};
        for (size_t seat = 1; seat < seats_; ++seat) {  // two for each
            const bool came = sockets_[seat].valid();
            entries.push_back({came ? sockets_[seat].get() : ties_[seat], POLLIN, 0});
            entries.push_back({came ? meeting_[seat].life.get() : -1, POLLIN, 0});
        }
        entries.push_back({crowded_ ? -1 : listener_.get(), POLLIN, 0});
        for (const Undecided &one : undecided_) {
            entries.push_back({one.socket.get(), POLLIN, 0});
        }
        if (poll(entries.data(), entries.size(), timeout_ms) <= 0) {
            return;
        }
        if (entries[0].revents != 0) {
            fail(ODC_ERROR_RENDEZVOUS, kJobEnded, doubt(party_));
        }
        for (size_t seat = 1; seat < seats_; ++seat) {
            if (entries[2 * seat - 1].revents != 0 || entries[2 * seat].revents != 0) {
                fail_lost(seat);
            }
        }
    }

    [[noreturn]] void fail_lost(size_t seat) const {
        const Attendant &one = meeting_[seat];
        const int rank = party_.ranks[seat];
        if (one.pid == 0) {
            fail(ODC_ERROR_RENDEZVOUS, "rank ", rank, " died or gave up in odc_init", doubt(party_));
        }
        fail(ODC_ERROR_RENDEZVOUS, "rank ", rank, " (pid ", one.pid, ") ", how_it_went(one.life), " in odc_init");
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
            fail_errno(say("odc_init cannot accept the ranks of this host (", present_, " of ", seats_, " came)"));
        }
    }

    void hear_strangers() {
        for (size_t i = 0; i < undecided_.size();) {
            Parcel parcel{};
            const Received what = receive_parcel(undecided_[i].socket.get(), &parcel);
            if (what == Received::Nothing && now_ns() - undecided_[i].since_ns < kHelloNs) {
                ++i;
                continue;
            }
            Fd socket = std::move(undecided_[i].socket);
            undecided_.erase(undecided_.begin() + static_cast<std::ptrdiff_t>(i));
            if (what != Received::Parcel || parcel.message.kind != Message::Hello) {
                ++turned_away_;
                continue;
            }
            admit(std::move(socket), std::move(parcel));
        }
    }

    void admit(Fd socket, Parcel parcel) {
        const Message &hello = parcel.message;
        const auto refuse = [&](const std::string &text) {
            leaving_.push_back(std::move(socket));
            fail(ODC_ERROR_RENDEZVOUS, text);
        };
        if (hello.size != party_.size) {
            refuse(say("rank ", hello.rank, " (pid ", hello.pid, ") says that the job has ", hello.size,
                       " ranks, rank ", party_.rank, " (pid ", getpid(), ") says ", party_.size,
                       "; start all with one size"));
        }
        const auto place = std::lower_bound(party_.ranks.begin(), party_.ranks.end(), hello.rank);
        if (place == party_.ranks.end() || *place != hello.rank) {
            refuse(say("pid ", hello.pid, " says that it is rank ", hello.rank, " of ", party_.size,
                       ", which is not one of this host's"));
        }
        const auto seat = static_cast<size_t>(place - party_.ranks.begin());
        if (meeting_[seat].pid != 0) {
            refuse(say("two processes are rank ", hello.rank, " of job \"", party_.name, "\": pid ", meeting_[seat].pid,
                       " and pid ", hello.pid, "; give each process its own rank"));
        }
        deadline_ns_ = std::min(deadline_ns_, now_ns() + hello.remaining_ms * 1'000'000);
        meeting_[seat] = attendant_of(hello.members[0], std::move(parcel.fds));
        ++present_;
        Message welcome = make_message(Message::Welcome, party_.rank, party_.size);
        std::vector<int> fds;
        add_member(meeting_[0], party_.rank, &welcome, &fds);
        send_parcel(socket.get(), welcome, fds, patience_);
        sockets_[seat] = std::move(socket);
    }

    void hand_out() {
        for (size_t first = 1; first < seats_; first += kMostMembers) {
            Message members = make_message(Message::Members, party_.rank, party_.size);
            std::vector<int> fds;
            for (size_t seat = first; seat < std::min(first + kMostMembers, seats_); ++seat) {
                add_member(meeting_[seat], party_.ranks[seat], &members, &fds);
            }
            for (size_t to = 1; to < seats_; ++to) {
                if (!send_parcel(sockets_[to].get(), members, fds, patience_)) {
                    fail(ODC_ERROR_RENDEZVOUS, "rank ", party_.ranks[to], " (pid ", meeting_[to].pid, ") ",
                         patience_.over() ? "does not answer" : how_it_went(meeting_[to].life), " in odc_init");
                }
            }
        }
    }

    void tell_all(const Error &error) {
        // A sentence about the meeting is everybody's; any other happened to the leader alone.
        const Message words =
            farewell_message(party_.rank, party_.size,
                             error.status() == ODC_ERROR_RENDEZVOUS
                                 ? error.what()
                                 : say("rank ", party_.rank, " (pid ", getpid(), ") left odc_init: ", error.what()));
        std::set<int> absent;
        for (size_t seat = 1; seat < seats_; ++seat) {
            if (meeting_[seat].pid == 0 && !dead(ties_[seat]) && error.status() != ODC_ERROR_INTERRUPTED) {
                absent.insert(party_.ranks[seat]);
            }
        }
        for (Fd &socket : sockets_) {
            leaving_.push_back(std::move(socket));
        }
        for (Undecided &one : undecided_) {
            leaving_.push_back(std::move(one.socket));
        }
        const Patience brief(100, nullptr, nullptr);
        for (const Fd &socket : leaving_) {
            if (socket.valid()) {
                send_parcel(socket.get(), words, {}, brief);
            }
        }
        leaving_.clear();  // there may be no descriptors left for who comes late
        meeting_.clear();
        if (listener_.valid()) {
            tell_late_ranks(listener_, words, std::move(absent), patience_);
        }
    }

    std::string missing() const {
        std::ostringstream text;
        text << "odc_init waited " << patience_.waited_s() << " s at \"" << party_.name << "\"; missing:";
        for (size_t seat = 1; seat < seats_; ++seat) {
            if (meeting_[seat].pid == 0) {
                text << " rank " << party_.ranks[seat];
            }
        }
        text << " (" << present_ << " of " << seats_ << " came";
        if (turned_away_ > 0) {
            text << ", " << turned_away_ << " strangers were turned away";
        }
        text << ")" << doubt(party_);
        return text.str();
    }

    const Party &party_;
    size_t seats_;
    const Patience &patience_;
    int64_t deadline_ns_;    // the earliest of all present ranks', so that all read the same sentence
    std::vector<int> ties_;  // by seat; for those that have not come
    int tie_to_rank_0_;
    std::vector<Attendant> meeting_;  // by seat
    Fd listener_;
    std::vector<Fd> sockets_;  // by seat
    std::vector<Undecided> undecided_;
    std::vector<Fd> leaving_;
    size_t present_ = 1;
    int turned_away_ = 0;
    bool crowded_ = false;  // who waits at the listener cannot be accepted before an undecided one has gone
};

}  // namespace

std::vector<Attendant> lead(const Party &party, const Handout &mine, const Patience &patience) {
    return Leader(party, mine, patience).run();
}

}  // namespace odc
