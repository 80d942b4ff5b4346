// SPDX-License-Identifier: Apache-2.0
// Rank 0's side of meeting over TCP: it hears every connection at once, so that no stranger blocks a rank, believes those
// that prove themselves (tcp_protocol.h), and hands every card to everybody, round after round. Whatever goes wrong is said
// to all who came.
#pragma once

#include "base/deadline.h"
#include "base/tcp_socket.h"
#include "bootstrap/tcp_protocol.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace odc {

class Reception {
public:
    Reception(const Endpoint &endpoint, const std::string &secret, int size, const Patience &patience);

    // Begins to listen. The address that somebody else listens at, "" when there is none.
    std::string open();
    // One round; the first receives the ranks, and listens no longer then. In later ones a rank that hands in a regret
    // ends it for all.
    std::vector<Card> all_gather(const Card &mine);
    // Says to all who came why this rank does not.
    void leave(const Card &regret);
    // By rank, -1 for this one; whoever becomes readable has handed in its next card, or has gone.
    std::vector<int> ties() const;

private:
    struct Guest {
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
        const std::string *tail = nullptr;  // shared by all guests
        size_t tail_sent = 0;

        bool undecided() const { return state == State::kHello || state == State::kProof; }
        bool drained() const { return out.empty() && (tail == nullptr || tail_sent == tail->size()); }
    };

    void collect();
    void step();
    void wait_for_guests(int timeout_ms) const;
    void wait_to_send() const;
    void accept_all();
    void accept_all(const Fd &listener);
    void check_room();
    void dismiss_oldest();
    void dismiss_late();
    void dismiss(Guest &guest, const char *why);
    [[noreturn]] void fail_lost(const Guest &guest) const;
    void serve(Guest &guest);
    void hear(Guest &guest);
    void hear_hello(Guest &guest);
    void hear_proof(Guest &guest);
    void admit(Guest &guest);
    void hear_entry(Guest &guest);
    void send_reply(Guest &guest, ReplyKind kind, const std::string *payload) const;
    static bool flush(Guest &guest);
    void tell_guests(ReplyKind kind, const std::string *payload);
    void tell_all(const std::string &sentence, int64_t most_ns);
    int64_t deadline_ns() const;
    std::string missing() const;
    std::string turned_away() const;

    const Endpoint &endpoint_;
    const std::string &secret_;
    int size_;
    const Patience &patience_;
    Hello self_;
    int64_t deadline_ns_;  // the earliest of all who have come, so that all read the same sentence
    int deadline_rank_ = 0;
    std::vector<Fd> listeners_;
    std::string addresses_;      // where it listens, when that is not what the user wrote
    std::vector<Guest> guests_;  // in the order in which they came
    std::vector<std::optional<Hello>> came_;
    uint32_t round_ = 0;
    std::vector<Card> cards_;                 // of this round
    std::vector<bool> handed_in_;             // by rank: whose card of this round is there
    int present_ = 0;                         // how many are
    bool crowded_ = false;                    // a connection waits for which there are no descriptors or memory
    std::string all_cards_;                   // as they are handed out
    std::string farewell_;                    // why the ranks did not meet, once they did not
    std::map<std::string, int> turned_away_;  // "10.0.0.1: wrong secret" and how often
};

}  // namespace odc
