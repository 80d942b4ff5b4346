// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/rendezvous.h"

#include "bootstrap/local/leader.h"
#include "bootstrap/local/message.h"
#include "bootstrap/local/socket.h"

#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <optional>
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
class Guest {
public:
    Guest(const Party &party, const Patience &patience)
        : party_(party), leader_(party.ranks[0]), patience_(patience), tie_(party.ties.empty() ? -1 : party.ties[0]) {}

    std::vector<Attendant> run(const Handout &mine) {
        std::vector<Attendant> meeting;
        add(&meeting, enter(own_attendant(mine)));
        host_pid_ = meeting[0].pid;
        while (meeting.size() < party_.ranks.size()) {
            std::optional<Parcel> members = next(Message::Members);
            if (!members) {
                lost_host();
            }
            add(&meeting, std::move(*members));
        }
        return meeting;
    }

private:
    // Says hello until it is answered: the listener of the meeting before may still be there, and closes unheard. But
    // only one process ever hears it: after that, another leader is another job's.
    Parcel enter(const Attendant &mine) {
        for (;;) {
            connect_to_host();
            Message hello = make_message(Message::Hello, party_.rank, party_.size);
            hello.remaining_ms = patience_.remaining_ms();
            std::vector<int> fds;
            add_member(mine, party_.rank, &hello, &fds);
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

    void add(std::vector<Attendant> *meeting, Parcel parcel) {
        auto next_fd = std::make_move_iterator(parcel.fds.begin());
        for (int32_t i = 0; i < parcel.message.member_count; ++i) {
            const Member &member = parcel.message.members[i];
            if (meeting->size() == party_.ranks.size() || member.rank != party_.ranks[meeting->size()]) {
                lost_host();
            }
            meeting->push_back(attendant_of(member, {next_fd, next_fd + member.fds}));
            next_fd += member.fds;
        }
    }

    void connect_to_host() {
        const MeetingAddress address = meeting_address(party_.name);
        for (int retry_ms = 1;; retry_ms = std::min(2 * retry_ms, kLastRetryMs)) {
            socket_ = make_meeting_socket();
            if (connect(socket_.get(), address.get(), address.bytes) == 0) {
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
            std::this_thread::sleep_for(std::chrono::milliseconds(retry_ms));
        }
        check_same_user(socket_.get(), party_.name);
        const int pid = peer_of(socket_.get()).pid;
        if (dead(host_life_.get()) || (host_life_.valid() && pid != host_pid_)) {
            lost_host();
        }
        host_pid_ = pid;
        host_life_ = pidfd_of(pid);
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
            poll(entries, 2, static_cast<int>(std::clamp<int64_t>(patience_.remaining_ms(), 1, kSliceMs)));
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
        return lead(party, mine, patience);
    }
    return Guest(party, patience).run(mine);
}

}  // namespace odc
