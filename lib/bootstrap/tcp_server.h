// SPDX-License-Identifier: Apache-2.0
// Rank 0's side of the TCP rendezvous: it hears every connection at once, so that none blocks a rank, believes those
// that prove themselves (tcp_protocol.h), and hands every peer info to everybody, round after round. Whatever goes wrong is said
// to all who came.
#pragma once

#include "base/acceptor.h"
#include "base/deadline.h"
#include "base/event_loop.h"
#include "base/tcp_socket.h"
#include "bootstrap/tcp_protocol.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace odc {

class RendezvousServer {
public:
    RendezvousServer(const HostPort &endpoint, const std::string &secret, const std::string &host, int size,
                     const Deadline &deadline);

    // Begins to listen. Returns the address at which another process listens; "" if there is none.
    std::string open();
    // Holds one round. The first one receives the ranks, and then stops listening; in a later one a join error of any rank ends the
    // round for all.
    std::vector<PeerInfo> all_gather(const PeerInfo &mine);
    // Tells all ranks that have come why this rank does not go on.
    void leave(const PeerInfo &join_error);
    // By rank, -1 for this one; a descriptor is readable if its rank has handed in its next peer info, or has gone.
    std::vector<int> liveness_fds() const;

private:
    struct Client {
        enum class State { kHello, kProof, kJoined, kGone };
        Fd socket;
        std::string host;
        int64_t since_ns = 0;
        State state = State::kHello;
        std::string in;
        Hello hello{};
        Challenge challenge{};
        Mac session{};
        std::string out;                    // still to be sent, then `tail`
        const std::string *tail = nullptr;  // shared by all clients
        size_t tail_sent = 0;

        bool undecided() const { return state == State::kHello || state == State::kProof; }
        bool drained() const { return out.empty() && (tail == nullptr || tail_sent == tail->size()); }
    };

    void collect();
    void step();
    void wait_for_clients(EventLoop &events, int64_t until_ns);
    void wait_to_send();
    void accept_all();
    void accept(Fd socket, const Address &from);
    void check_room();
    void dismiss_oldest();
    void dismiss_late();
    void dismiss(Client &client, const char *why);
    [[noreturn]] void fail_lost(const Client &client) const;
    void serve(Client &client);
    void hear(Client &client);
    void hear_hello(Client &client);
    void hear_proof(Client &client);
    void admit(Client &client);
    void hear_entry(Client &client);
    void send_reply(Client &client, ReplyKind kind, const std::string *payload) const;
    static bool flush(Client &client);
    void tell_clients(ReplyKind kind, const std::string *payload);
    void tell_all(const std::string &sentence, int64_t most_ns);
    int64_t deadline_ns() const;
    std::string missing() const;
    std::string turned_away() const;

    const HostPort &endpoint_;
    const std::string &secret_;
    int size_;
    const Deadline &deadline_;
    EventLoop events_;
    Hello self_;
    int64_t deadline_ns_;  // the earliest of all who have come, so that all read the same sentence
    int deadline_rank_ = 0;
    Acceptor acceptor_;
    std::string addresses_;        // where it listens, when that is not what the user wrote
    std::vector<Client> clients_;  // in the order in which they came
    std::vector<std::optional<Hello>> joined_;
    uint32_t round_ = 0;
    std::vector<PeerInfo> infos_;             // of this round
    std::vector<bool> handed_in_;             // by rank: whose peer info of this round is there
    int present_ = 0;                         // how many are
    std::string all_infos_;                   // as they are handed out
    std::string failure_;                     // why the rendezvous failed, once it has
    std::map<std::string, int> turned_away_;  // "10.0.0.1: wrong secret" and how often
};

}  // namespace odc
