// SPDX-License-Identifier: Apache-2.0
#include "meeting.h"

#include "parcel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>

namespace odc {

namespace {

constexpr int64_t kHelloNs = 2'000'000'000;  // for a stranger to say who it is
constexpr size_t kUndecided = 64;
constexpr int kFarewellMs = 500;  // a rank waits this much longer than its deadline for its leader's words
constexpr const char *kJobEnded = "rank 0 died or gave up in odc_init";

// What to add to the words about ranks that have not found each other.
std::string doubt(const Party &party) {
    return party.named_by.empty()
               ? ""
               : say("; ", party.named_by, " makes these ranks one host, which is wrong if they are on several");
}

sockaddr_un address_of(const std::string &name, socklen_t *bytes) {
    // The user id keeps two users' jobs of one name apart.
    const std::string full = say("odc-", geteuid(), "-", name);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (full.size() + 1 > sizeof(address.sun_path)) {
        fail(ODC_ERROR_ARGUMENT, "the job's name and group make ", full.size(), " bytes together, at most ",
             sizeof(address.sun_path) - 1, " fit; choose shorter ones");
    }
    std::memcpy(address.sun_path + 1, full.data(), full.size());
    *bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
    return address;
}

Fd own_pidfd() {
    Fd fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    if (!fd.valid()) {
        fail_errno("pidfd_open (Linux 5.3 or later is needed)");
    }
    return fd;
}

Attendant attendant_of(Parcel parcel) {
    return {parcel.message.pid, std::move(parcel.fds[0]), std::move(parcel.fds[1]), std::move(parcel.fds[2])};
}

std::vector<int> fds_of(const Attendant &one) {
    std::vector<int> fds = {one.memory.get(), one.life.get()};
    if (one.slot.valid()) {
        fds.push_back(one.slot.get());
    }
    return fds;
}

// The leader's side. Ranks of the party have seats, in order; the leader's is 0.
class Host {
public:
    Host(const Party &party, const Handout &mine, const Patience &patience)
        : party_(party), seats_(party.ranks.size()), patience_(patience),
          deadline_ns_(now_ns() + patience.remaining_ms() * 1'000'000), ties_(seats_, -1), meeting_(seats_),
          sockets_(seats_) {
        // Another host's leader has a tie to rank 0 only.
        for (size_t seat = 1; seat < seats_ && party.rank == 0 && !party.ties.empty(); ++seat) {
            ties_[seat] = party.ties[static_cast<size_t>(party.ranks[seat])];
        }
        tie_to_rank_0_ = party.rank != 0 && !party.ties.empty() ? party.ties[0] : -1;
        meeting_[0].pid = getpid();
        meeting_[0].memory = Fd(fcntl_dup(mine.memory));
        if (mine.slot >= 0) {
            meeting_[0].slot = Fd(fcntl_dup(mine.slot));
        }
        meeting_[0].life = own_pidfd();
    }

    std::vector<Attendant> run() {
        try {
            listen_at();
            while (present_ < seats_) {
                step();
            }
            hand_out();
        } catch (const Error &error) {
            Message message = message_of(Message::Refused, 0);
            // A sentence about the meeting is everybody's; any other happened to rank 0 alone.
            const std::string text =
                error.status() == ODC_ERROR_RENDEZVOUS
                    ? error.what()
                    : say("rank ", party_.rank, " (pid ", getpid(), ") left odc_init: ", error.what());
            std::strncpy(message.text, text.c_str(), sizeof(message.text) - 1);
            const Patience brief(100, nullptr, nullptr);
            for (Fd late = accept_from_listener(); late.valid(); late = accept_from_listener()) {
                leaving_.push_back(std::move(late));
            }
            for (Fd &socket : sockets_) {
                leaving_.push_back(std::move(socket));
            }
            for (Undecided &one : undecided_) {
                leaving_.push_back(std::move(one.socket));
            }
            for (const Fd &socket : leaving_) {
                if (socket.valid()) {
                    send_parcel(socket.get(), message, {}, brief);
                }
            }
            throw;
        }
        return std::move(meeting_);
    }

private:
    struct Undecided {
        Fd socket;
        int64_t since_ns;
    };

    static int fcntl_dup(int fd);

    Message message_of(Message::Kind kind, size_t seat) const {
        return make_message(kind, party_.ranks[seat], party_.size);
    }

    void listen_at() {
        socklen_t bytes = 0;
        const sockaddr_un address = address_of(party_.name, &bytes);
        listener_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!listener_.valid()) {
            fail_errno("socket for odc_init");
        }
        while (bind(listener_.get(), reinterpret_cast<const sockaddr *>(&address), bytes) != 0) {
            if (errno != EADDRINUSE) {
                fail_errno("bind of odc_init's socket");
            }
            blame_other_host(address, bytes);
            patience_.check_interrupted("odc_init");
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        if (listen(listener_.get(), 1024) != 0) {
            fail_errno("listen on odc_init's socket");
        }
    }

    // Somebody listens under our name: another leader, which is told (so that its job fails too), or what a dead one
    // left behind in a forked child, which may still go away.
    void blame_other_host(const sockaddr_un &address, socklen_t bytes) {
        const Fd other(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (connect(other.get(), reinterpret_cast<const sockaddr *>(&address), bytes) != 0) {
            return;
        }
        const int pid = peer_of(other.get()).pid;
        if (gone(pid)) {
            if (!patience_.over()) {
                return;
            }
            fail(ODC_ERROR_RENDEZVOUS, "a child of the dead process ", pid, " still holds the name of job \"",
                 party_.name, "\"; end it, or give the job another name");
        }
        Message message = message_of(Message::Hello, 0);
        message.remaining_ms = patience_.remaining_ms();
        send_parcel(other.get(), message, fds_of(meeting_[0]), patience_);
        fail(ODC_ERROR_RENDEZVOUS, "two processes are rank ", party_.rank, " of job \"", party_.name, "\": pid ", pid,
             " and this one, pid ", getpid(), "; give each process its own rank, or each job its own name");
    }

    void step() {
        std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
        for (const Undecided &one : undecided_) {
            entries.push_back({one.socket.get(), POLLIN, 0});
        }
        for (size_t seat = 1; seat < seats_; ++seat) {
            if (!sockets_[seat].valid()) {
                continue;
            }
            entries.push_back({sockets_[seat].get(), POLLIN, 0});
            entries.push_back({meeting_[seat].life.get(), POLLIN, 0});
        }
        const int64_t left_ms = (deadline_ns_ - now_ns()) / 1'000'000;
        if (left_ms <= 0) {
            fail(ODC_ERROR_RENDEZVOUS, missing());
        }
        poll(entries.data(), entries.size(), static_cast<int>(std::min<int64_t>(left_ms, patience_.slice_ms())));
        patience_.check_interrupted("odc_init");
        look_for_deaths();
        hear_strangers();
        accept_one();
    }

    Fd accept_from_listener() const {
        return Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    }

    void accept_one() {
        Fd fresh = accept_from_listener();
        if (!fresh.valid()) {
            return;
        }
        if (peer_of(fresh.get()).uid != geteuid()) {
            ++turned_away_;
            return;
        }
        if (undecided_.size() == kUndecided) {
            undecided_.erase(undecided_.begin());
            ++turned_away_;
        }
        undecided_.push_back({std::move(fresh), now_ns()});
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
            if (what != Received::Parcel || parcel.message.kind != Message::Hello || !parcel.fds[1].valid()) {
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
        meeting_[seat] = attendant_of(std::move(parcel));
        const Message welcome = message_of(Message::Welcome, 0);
        send_parcel(socket.get(), welcome, fds_of(meeting_[0]), patience_);
        sockets_[seat] = std::move(socket);
        ties_[seat] = -1;
        ++present_;
    }

    void look_for_deaths() {
        if (dead(tie_to_rank_0_)) {
            fail(ODC_ERROR_RENDEZVOUS, kJobEnded, doubt(party_));
        }
        for (size_t seat = 1; seat < seats_; ++seat) {
            const Attendant &one = meeting_[seat];
            const int rank = party_.ranks[seat];
            if (dead(ties_[seat])) {
                fail(ODC_ERROR_RENDEZVOUS, "rank ", rank, " died or gave up in odc_init", doubt(party_));
            }
            if (one.pid == 0) {
                continue;
            }
            if (dead(one.life.get())) {
                fail(ODC_ERROR_RENDEZVOUS, "rank ", rank, " (pid ", one.pid, ") died in odc_init");
            }
            char byte = 0;
            if (recv(sockets_[seat].get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0) {
                fail(ODC_ERROR_RENDEZVOUS, "rank ", rank, " (pid ", one.pid, ") ", how_it_went(one.life),
                     " in odc_init");
            }
        }
    }

    void hand_out() {
        for (size_t to = 1; to < seats_; ++to) {
            for (size_t seat = 1; seat < seats_; ++seat) {
                Message member = message_of(Message::Member, seat);
                member.pid = meeting_[seat].pid;
                if (!send_parcel(sockets_[to].get(), member, fds_of(meeting_[seat]), patience_)) {
                    const Attendant &one = meeting_[to];
                    fail(ODC_ERROR_RENDEZVOUS, "rank ", party_.ranks[to], " (pid ", one.pid, ") ",
                         patience_.over() ? "does not answer" : how_it_went(one.life), " in odc_init");
                }
            }
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
    std::vector<int> ties_;  // by seat, of those that have not come
    int tie_to_rank_0_;
    std::vector<Attendant> meeting_;  // by seat
    Fd listener_;
    std::vector<Fd> sockets_;  // by seat
    std::vector<Undecided> undecided_;
    std::vector<Fd> leaving_;
    size_t present_ = 1;
    int turned_away_ = 0;
};

int Host::fcntl_dup(int fd) {
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        fail_errno("duplicating a descriptor");
    }
    return copy;
}

// The other ranks' side.
class Guest {
public:
    Guest(const Party &party, const Patience &patience)
        : party_(party), leader_(party.ranks[0]), patience_(patience), tie_(party.ties.empty() ? -1 : party.ties[0]) {}

    std::vector<Attendant> run(const Handout &mine) {
        const Fd life = own_pidfd();
        std::vector<int> fds = {mine.memory, life.get()};
        if (mine.slot >= 0) {
            fds.push_back(mine.slot);
        }
        std::vector<Attendant> meeting(party_.ranks.size());
        meeting[0] = attendant_of(enter(fds));
        host_pid_ = meeting[0].pid;
        for (size_t seat = 1; seat < meeting.size(); ++seat) {
            std::optional<Parcel> member = next(Message::Member);
            if (!member || member->message.rank != party_.ranks[seat] || !member->fds[1].valid()) {
                lost_host();
            }
            meeting[seat] = attendant_of(std::move(*member));
        }
        return meeting;
    }

private:
    // Says hello until it is answered: the listener of the meeting before may still be there, and closes unheard. But
    // only one process ever hears it: after that, another leader is another job's.
    Parcel enter(const std::vector<int> &fds) {
        for (;;) {
            connect_to_host();
            Message hello = make_message(Message::Hello, party_.rank, party_.size);
            hello.remaining_ms = patience_.remaining_ms();
            send_parcel(socket_.get(), hello, fds, patience_);
            if (std::optional<Parcel> welcome = next(Message::Welcome)) {
                return std::move(*welcome);
            }
            if (patience_.over()) {
                lost_host();
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }

    void connect_to_host() {
        socklen_t bytes = 0;
        const sockaddr_un address = address_of(party_.name, &bytes);
        for (;;) {
            socket_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
            if (!socket_.valid()) {
                fail_errno("socket for odc_init");
            }
            if (connect(socket_.get(), reinterpret_cast<const sockaddr *>(&address), bytes) == 0) {
                // What a dead leader left behind in a forked child accepts nobody.
                if (!gone(peer_of(socket_.get()).pid)) {
                    break;
                }
            } else if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
                fail_errno("connect in odc_init");
            }
            if (dead(host_life_.get()) || (leader_ == 0 && dead(tie_))) {
                lost_host();
            }
            if (dead(tie_)) {
                fail(ODC_ERROR_RENDEZVOUS, kJobEnded, doubt(party_));
            }
            if (patience_.over()) {
                fail(ODC_ERROR_RENDEZVOUS, "odc_init of rank ", party_.rank, " waited ", patience_.waited_s(),
                     " s at \"", party_.name, "\"; missing: rank ", leader_,
                     " (is it started, under the same job name and user, on this host?)", doubt(party_));
            }
            patience_.check_interrupted("odc_init");
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        const ucred who = peer_of(socket_.get());
        if (who.uid != geteuid()) {
            fail(ODC_ERROR_RENDEZVOUS, "job \"", party_.name, "\" belongs to user ", who.uid, ", not to this one, ",
                 geteuid());
        }
        if (dead(host_life_.get()) || (host_life_.valid() && who.pid != host_pid_)) {
            lost_host();
        }
        host_pid_ = who.pid;
        host_life_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, host_pid_, 0)));
    }

    // Empty: the leader closed the connection without a word.
    std::optional<Parcel> next(Message::Kind kind) {
        for (;;) {
            Parcel parcel{};
            switch (receive_parcel(socket_.get(), &parcel)) {
                case Received::Parcel:
                    if (parcel.message.kind == Message::Refused) {
                        parcel.message.text[sizeof(parcel.message.text) - 1] = '\0';
                        throw Error(ODC_ERROR_RENDEZVOUS, parcel.message.text);
                    }
                    if (parcel.message.kind == kind) {
                        return parcel;
                    }
                    return std::nullopt;
                case Received::Closed: return std::nullopt;
                case Received::Nothing: break;
            }
            if (dead(host_life_.get())) {
                lost_host();
            }
            if (patience_.remaining_ms() < -kFarewellMs) {
                fail(ODC_ERROR_RENDEZVOUS, "odc_init of rank ", party_.rank, " waited ", patience_.waited_s(),
                     " s at \"", party_.name, "\"; rank ", leader_, " (pid ", host_pid_,
                     ") is there but does not answer");
            }
            patience_.check_interrupted("odc_init");
            pollfd entries[2] = {{socket_.get(), POLLIN, 0}, {host_life_.get(), POLLIN, 0}};
            poll(entries, 2, 20);
        }
    }

    [[noreturn]] void lost_host() {
        const std::string pid = host_pid_ != 0 ? say(" (pid ", host_pid_, ")") : "";
        fail(ODC_ERROR_RENDEZVOUS, "rank ", leader_, pid, " of job \"", party_.name, "\" died or gave up in odc_init",
             host_pid_ == 0 ? doubt(party_) : "");
    }

    const Party &party_;
    int leader_;
    const Patience &patience_;
    int tie_;  // to rank 0, until the leader is found
    Fd socket_;
    int host_pid_ = 0;
    Fd host_life_;
};

}  // namespace

std::vector<Attendant> meet(const Party &party, const Handout &mine, const Patience &patience) {
    if (party.rank == party.ranks[0]) {
        return Host(party, mine, patience).run();
    }
    return Guest(party, patience).run(mine);
}

}  // namespace odc
