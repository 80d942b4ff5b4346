// SPDX-License-Identifier: Apache-2.0
// Rank 0's side of meeting over TCP: it hears every connection at once, so that no stranger blocks a rank, believes those
// that prove themselves (handshake.h), and hands every card to everybody. Whatever goes wrong is said to all who came.
#pragma once

#include "handshake.h"
#include "patience.h"
#include "tcp.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace odc {

class Reception {
public:
    Reception(const Endpoint &endpoint, const std::string &secret, int size, const Card &mine,
              const Patience &patience);

    // Begins to listen. The address that somebody else listens at, "" when there is none.
    std::string open();
    Exchanged run();

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

    void step();
    void wait_for_guests(int timeout_ms) const;
    void wait_to_send() const;
    void accept_all(const Fd &listener);
    void make_room();
    void dismiss_late();
    void dismiss(Guest &guest, const char *why);
    [[noreturn]] static void fail_lost(const Guest &guest);
    void serve(Guest &guest);
    void hear(Guest &guest);
    void hear_hello(Guest &guest);
    void hear_proof(Guest &guest);
    void admit(Guest &guest, const Card &card);
    static void send_verdict(Guest &guest, VerdictKind kind, const std::string *payload);
    static bool flush(Guest &guest);
    void tell_guests(VerdictKind kind, const std::string *payload);
    void tell_all(const std::string &sentence);
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
    std::vector<Card> cards_;
    std::vector<std::optional<Hello>> came_;
    std::string all_cards_;  // as they are handed out
    int present_ = 1;
    std::string farewell_;                    // why the ranks did not meet, once they did not
    std::map<std::string, int> turned_away_;  // "10.0.0.1: wrong secret" and how often
};

}  // namespace odc
