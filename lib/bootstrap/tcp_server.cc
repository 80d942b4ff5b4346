// SPDX-License-Identifier: Apache-2.0
// Rank 0 receives the other ranks.
#include "bootstrap/tcp_server.h"

#include "bootstrap/local/late_ranks.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <poll.h>

namespace odc {
namespace {

constexpr int64_t kHelloNs = 5'000'000'000;         // for a stranger to prove itself
constexpr int64_t kCrowdedHelloNs = 1'000'000'000;  // where it keeps others out
constexpr size_t kUndecided = 64;                   // strangers at a time, beside as many as there are ranks
constexpr int64_t kBriefNs = 500'000'000;           // the same for a rank 0 that its caller has interrupted
constexpr int64_t kLastWordsNs = 1'000'000'000;
constexpr int kNamed = 16;  // missing ranks named before the rest is counted

}  // namespace

Reception::Reception(const Endpoint &endpoint, const std::string &secret, int size, const Patience &patience)
    : endpoint_(endpoint), secret_(secret), size_(size), patience_(patience),
      self_(hello_of(0, size, patience.remaining_ms())), deadline_ns_(deadline_after(self_.remaining_ms)),
      came_(static_cast<size_t>(size)) {
    came_[0] = self_;
}

std::vector<Card> Reception::all_gather(const Card &mine) {
    ++round_;
    cards_.assign(static_cast<size_t>(size_), Card{});
    cards_[0] = mine;
    handed_in_.assign(static_cast<size_t>(size_), false);
    handed_in_[0] = true;
    present_ = 1;
    try {
        collect();
        listeners_.clear();
        std::erase_if(guests_, [](const Guest &guest) { return guest.state != Guest::State::kJoined; });
        all_cards_.clear();
        for (const Card &card : cards_) {
            all_cards_.append(bytes_of(card));
        }
        tell_guests(ReplyKind::kCards, &all_cards_);
        tell_guests(ReplyKind::kMet, nullptr);  // until now nobody goes on, so that all hear what goes wrong
    } catch (const Error &error) {
        // A sentence about the meeting is everybody's; any other happened to rank 0 alone.
        const bool stopped = error.status() == ODC_ERROR_INTERRUPTED;
        tell_all(
            error.status() == ODC_ERROR_RENDEZVOUS ? error.what() : say(who(self_), " left odc_init: ", error.what()),
            stopped ? kBriefNs : kFarewellNs);
        throw;
    }
    return std::move(cards_);
}

void Reception::leave(const Card &regret) {
    try {
        check_regrets({regret});
    } catch (const Error &error) {
        tell_all(error.what(), kFarewellNs);
    }
}

std::vector<int> Reception::ties() const {
    std::vector<int> ties(static_cast<size_t>(size_), -1);
    for (const Guest &guest : guests_) {
        ties[static_cast<size_t>(guest.hello.rank)] = guest.socket.get();
    }
    return ties;
}

void Reception::collect() {
    while (present_ < size_) {
        step();
        if (round_ > 1) {
            check_regrets(cards_);
        }
    }
}

// Who fails at its deadline says why in the next round, for which there is a little more time.
int64_t Reception::deadline_ns() const { return round_ > 1 ? deadline_ns_ + kLastWordsNs : deadline_ns_; }

// Listens at every address that the name has here, as the others may try any of them first.
std::string Reception::open() {
    std::string why;
    for (const Address &address : resolve(endpoint_, &why)) {
        Fd fd = listen_at(address);
        if (!fd.valid()) {
            if (errno == EADDRINUSE) {
                listeners_.clear();  // nobody shall take this rank for the other one
                return address.host_port();
            }
            why = std::generic_category().message(errno);
            continue;
        }
        listeners_.push_back(std::move(fd));
        addresses_ += (addresses_.empty() ? "" : ", ") + address.host_port();
    }
    if (listeners_.empty()) {
        fail(ODC_ERROR_RENDEZVOUS, "rank 0 cannot listen at ", endpoint_.text, ": ", why,
             "; give the rendezvous an address of the host that rank 0 runs on");
    }
    if (addresses_ == endpoint_.text) {
        addresses_.clear();
    }
    return "";
}

void Reception::step() {
    wait_for_guests(patience_.slice_ms());
    patience_.check_interrupted("odc_init");
    for (Guest &guest : guests_) {
        if (guest.state != Guest::State::kGone) {
            serve(guest);
        }
    }
    dismiss_late();
    std::erase_if(guests_, [](const Guest &guest) { return guest.state == Guest::State::kGone; });
    accept_all();
    if (present_ < size_ && now_ns() >= deadline_ns()) {
        fail(ODC_ERROR_RENDEZVOUS, missing());
    }
}

void Reception::wait_for_guests(int timeout_ms) const {
    std::vector<pollfd> entries;
    for (const Fd &listener : listeners_) {
        entries.push_back({crowded_ ? -1 : listener.get(), POLLIN, 0});
    }
    for (const Guest &guest : guests_) {
        entries.push_back({guest.socket.get(), static_cast<short>(guest.drained() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    poll(entries.data(), entries.size(), timeout_ms);
}

void Reception::wait_to_send() const {
    std::vector<pollfd> entries;
    for (const Guest &guest : guests_) {
        if (!guest.drained()) {
            entries.push_back({guest.socket.get(), POLLOUT, 0});
        }
    }
    poll(entries.data(), entries.size(), 10);
}

void Reception::accept_all() {
    crowded_ = false;
    for (const Fd &listener : listeners_) {
        accept_all(listener);
    }
}

void Reception::accept_all(const Fd &listener) {
    for (;;) {
        Address from;
        Fd fd = accept_from(listener.get(), &from);
        if (!fd.valid()) {
            if (errno != EAGAIN) {
                crowded_ = true;
                check_room();
            }
            return;
        }
        const auto undecided =
            std::count_if(guests_.begin(), guests_.end(), [](const Guest &guest) { return guest.undecided(); });
        if (static_cast<size_t>(undecided) >= kUndecided + static_cast<size_t>(size_)) {
            dismiss_oldest();
        }
        Guest &guest = guests_.emplace_back();
        guest.socket = std::move(fd);
        guest.host = from.host();
        guest.since_ns = now_ns();
    }
}

// Nobody else can be accepted, and errno says why. Strangers must not keep ranks out; ranks that are about to prove
// themselves must not be turned away for others.
void Reception::check_room() {
    const bool none_goes =
        std::none_of(guests_.begin(), guests_.end(), [](const Guest &guest) { return guest.undecided(); });
    if (none_goes && farewell_.empty()) {
        fail_errno(say("odc_init cannot accept ", size_ - 1, " connections (", present_ - 1, " came)"));
    }
}

void Reception::dismiss_oldest() {
    const auto oldest =
        std::find_if(guests_.begin(), guests_.end(), [](const Guest &guest) { return guest.undecided(); });
    dismiss(*oldest, "too many at a time");
    guests_.erase(oldest);
}

void Reception::dismiss_late() {
    for (Guest &guest : guests_) {
        if (guest.undecided() && now_ns() - guest.since_ns > (crowded_ ? kCrowdedHelloNs : kHelloNs)) {
            dismiss(guest, crowded_ ? "silent for 1 s while there was no room for others" : "silent for 5 s");
        }
    }
}

void Reception::dismiss(Guest &guest, const char *why) {
    guest.socket = Fd();
    guest.state = Guest::State::kGone;
    // Strangers cannot make the sentence, or the memory, as long as they like.
    const std::string entry = say(guest.host, ": ", why);
    if (turned_away_.size() < 8 || turned_away_.count(entry) > 0) {
        ++turned_away_[entry];
    }
}

// What a rank said before it went explains more than that it went.
void Reception::fail_lost(const Guest &guest) const {
    check_regrets(cards_);
    fail(ODC_ERROR_RENDEZVOUS, who(guest.hello), " died or gave up in odc_init");
}

void Reception::serve(Guest &guest) {
    flush(guest);
    while (guest.state != Guest::State::kGone) {
        char buffer[sizeof(Proof) + sizeof(Entry)];
        const ssize_t got = recv(guest.socket.get(), buffer, sizeof(buffer), 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        const bool joined = guest.state == Guest::State::kJoined;
        if (got <= 0 && joined && farewell_.empty()) {
            fail_lost(guest);
        }
        if (got <= 0) {
            return dismiss(guest, "closed before it had proved itself");
        }
        if (joined && !farewell_.empty()) {
            continue;  // it will read the words
        }
        guest.in.append(buffer, static_cast<size_t>(got));
        hear(guest);
    }
}

void Reception::hear(Guest &guest) {
    if (guest.state == Guest::State::kHello) {
        hear_hello(guest);
    } else if (guest.state == Guest::State::kProof) {
        hear_proof(guest);
    } else {
        hear_entry(guest);
    }
}

void Reception::hear_hello(Guest &guest) {
    const size_t prefix = std::min(guest.in.size(), kTcpMagic.size());
    if (std::memcmp(guest.in.data(), kTcpMagic.data(), prefix) != 0 || guest.in.size() > sizeof(Hello)) {
        return dismiss(guest, "not a rank");
    }
    if (guest.in.size() < sizeof(Hello)) {
        return;
    }
    std::memcpy(&guest.hello, guest.in.data(), sizeof(Hello));
    guest.in.clear();
    guest.challenge = {kTcpMagic, random_nonce()};
    guest.out.append(bytes_of(guest.challenge));
    guest.state = Guest::State::kProof;
    flush(guest);
}

// The first card comes with the proof.
void Reception::hear_proof(Guest &guest) {
    if (guest.in.size() < sizeof(Proof)) {
        return;
    }
    Proof proof;
    std::memcpy(&proof, guest.in.data(), sizeof(proof));
    guest.in.erase(0, sizeof(proof));
    if (!same_mac(proof.mac, proof_mac(secret_, guest.hello, guest.challenge))) {
        send_reply(guest, ReplyKind::kRefused, nullptr);
        return dismiss(guest, "wrong secret");
    }
    guest.session = session_key(secret_, guest.hello, guest.challenge);
    guest.state = Guest::State::kJoined;
    if (!farewell_.empty()) {
        if (guest.hello.rank >= 0 && guest.hello.rank < size_) {
            came_[static_cast<size_t>(guest.hello.rank)] = guest.hello;
        }
        return send_reply(guest, ReplyKind::kFailed, &farewell_);
    }
    admit(guest);
    hear_entry(guest);
}

// From here on the guest is believed, and hears what is wrong.
void Reception::admit(Guest &guest) {
    const Hello &hello = guest.hello;
    if (hello.version != kTcpVersion) {
        fail(ODC_ERROR_RENDEZVOUS, who(hello), " meets by version ", hello.version, " of the protocol, ", who(self_),
             " by version ", kTcpVersion, "; give all ranks the same libodc");
    }
    if (hello.size != size_) {
        fail(ODC_ERROR_RENDEZVOUS, who(hello), " says that the job has ", hello.size, " ranks, ", who(self_), " says ",
             size_, "; start all with one size");
    }
    if (hello.rank < 0 || hello.rank >= size_) {
        fail(ODC_ERROR_RENDEZVOUS, "a process says that it is ", who(hello), " of ", size_);
    }
    std::optional<Hello> &seat = came_[static_cast<size_t>(hello.rank)];
    if (seat.has_value()) {
        fail(ODC_ERROR_RENDEZVOUS, "two processes are rank ", hello.rank, ": ", who(*seat), " and ", who(hello),
             "; give each process its own rank");
    }
    seat = hello;
    const int64_t deadline_ns = deadline_after(hello.remaining_ms);
    if (deadline_ns < deadline_ns_) {
        deadline_ns_ = deadline_ns;
        deadline_rank_ = hello.rank;
    }
    send_reply(guest, ReplyKind::kWelcome, nullptr);
}

void Reception::hear_entry(Guest &guest) {
    const auto rank = static_cast<size_t>(guest.hello.rank);
    if (guest.in.empty() || (!handed_in_[rank] && guest.in.size() < sizeof(Entry))) {
        return;
    }
    Entry entry{};
    const bool whole = !handed_in_[rank] && guest.in.size() == sizeof(entry);
    std::memcpy(&entry, guest.in.data(), whole ? sizeof(entry) : 0);
    guest.in.clear();
    if (!whole || !same_mac(entry.mac, entry_mac(guest.session, round_, entry.card))) {
        fail(ODC_ERROR_RENDEZVOUS, "what came from ", who(guest.hello), " in round ", round_,
             " of odc_init is not its card; something changes the bytes on their way");
    }
    cards_[rank] = entry.card;
    handed_in_[rank] = true;
    ++present_;
}

void Reception::send_reply(Guest &guest, ReplyKind kind, const std::string *payload) const {
    Reply reply{kTcpMagic, kind, payload != nullptr ? static_cast<uint32_t>(payload->size()) : 0, {}};
    if (kind != ReplyKind::kRefused) {
        reply.mac = reply_mac(guest.session, round_, kind, payload != nullptr ? std::string_view(*payload) : "");
    }
    guest.out.append(bytes_of(reply));
    guest.tail = payload;
    guest.tail_sent = 0;
    flush(guest);
}

// Sends what the socket takes; false when the other side is gone (which reading will notice, too).
bool Reception::flush(Guest &guest) {
    while (!guest.drained()) {
        const bool head = !guest.out.empty();
        const std::string_view rest =
            head ? std::string_view(guest.out) : std::string_view(*guest.tail).substr(guest.tail_sent);
        const ssize_t sent = send(guest.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
        if (head) {
            guest.out.erase(0, static_cast<size_t>(sent));
        } else {
            guest.tail_sent += static_cast<size_t>(sent);
        }
    }
    return true;
}

// Tells nobody when one has gone before; returns once all their sockets have taken it.
void Reception::tell_guests(ReplyKind kind, const std::string *payload) {
    for (Guest &guest : guests_) {
        serve(guest);
    }
    for (Guest &guest : guests_) {
        send_reply(guest, kind, payload);
    }
    for (;; wait_to_send()) {
        patience_.check_interrupted("odc_init");
        for (Guest &guest : guests_) {
            if (!flush(guest)) {
                fail_lost(guest);
            }
        }
        const auto slow =
            std::find_if(guests_.begin(), guests_.end(), [](const Guest &guest) { return !guest.drained(); });
        if (slow == guests_.end()) {
            return;
        }
        if (now_ns() >= deadline_ns()) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init waited ", patience_.waited_s(), " s at ", endpoint_.text, "; ",
                 who(slow->hello), " came but does not read");
        }
    }
}

// Best effort: who cannot hear it sees the connection close. Ranks that come while this lasts hear it, too.
void Reception::tell_all(const std::string &sentence, int64_t most_ns) {
    farewell_ = cut(sentence, kMaxSentence);
    for (Guest &guest : guests_) {
        if (guest.state != Guest::State::kJoined) {
            continue;
        }
        if (guest.tail == nullptr || guest.drained()) {
            send_reply(guest, ReplyKind::kFailed, &farewell_);
        } else {
            guest.state = Guest::State::kGone;  // in the middle of the cards there is no room for other words
        }
    }
    const int64_t until_ns = now_ns() + most_ns;
    while (now_ns() < until_ns) {
        accept_all();
        for (Guest &guest : guests_) {
            if (guest.state != Guest::State::kGone) {
                serve(guest);
            }
        }
        std::erase_if(guests_, [](const Guest &guest) {
            return guest.state == Guest::State::kGone || (guest.state == Guest::State::kJoined && guest.drained());
        });
        const bool all_came =
            std::all_of(came_.begin(), came_.end(), [](const auto &hello) { return hello.has_value(); });
        if (guests_.empty() && (all_came || listeners_.empty() || patience_.wants_to_stop())) {
            return;
        }
        wait_for_guests(10);
    }
}

std::string Reception::missing() const {
    std::ostringstream text;
    text << "odc_init waited " << patience_.waited_s() << " s";
    if (deadline_rank_ != 0) {
        text << " (rank " << deadline_rank_ << "'s deadline)";
    }
    text << " at " << endpoint_.text;
    if (!addresses_.empty()) {
        text << " (" << addresses_ << ")";
    }
    text << "; missing:";
    int named = 0;
    for (int rank = 1; rank < size_ && named < kNamed; ++rank) {
        if (!handed_in_[static_cast<size_t>(rank)]) {
            text << (named > 0 ? "," : "") << " rank " << rank;
            ++named;
        }
    }
    if (size_ - present_ > named) {
        text << " and " << size_ - present_ - named << " more";
    }
    text << " (" << present_ << " of " << size_ << (round_ > 1 ? " came again" : " came") << turned_away() << ")";
    return text.str();
}

std::string Reception::turned_away() const {
    std::ostringstream text;
    for (const auto &[entry, count] : turned_away_) {
        text << "; " << count << (count == 1 ? " connection" : " connections") << " refused from " << entry;
    }
    return text.str();
}

}  // namespace odc
