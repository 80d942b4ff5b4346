// SPDX-License-Identifier: Apache-2.0
// Rank 0 receives the other ranks.
#include "bootstrap/tcp_server.h"

#include "base/program.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace odc {
namespace {

constexpr int64_t kHelloNs = 5'000'000'000;         // for a client to prove itself
constexpr int64_t kCrowdedHelloNs = 1'000'000'000;  // where it keeps others out
constexpr int64_t kBriefNs = 500'000'000;           // the same for a rank 0 that its caller has interrupted
constexpr int64_t kLastRoundNs = 1'000'000'000;

}  // namespace

RendezvousServer::RendezvousServer(const HostPort &endpoint, const std::string &secret, const std::string &host,
                                   int size, const Deadline &deadline)
    : endpoint_(endpoint), secret_(secret), size_(size), deadline_(deadline), events_(deadline, "odc_init"),
      self_(hello_of(host, 0, size, deadline.remaining_ms())), deadline_ns_(deadline_after(self_.remaining_ms)),
      joined_(static_cast<size_t>(size)) {
    joined_[0] = self_;
}

std::vector<PeerInfo> RendezvousServer::all_gather(const PeerInfo &mine) {
    ++round_;
    infos_.assign(static_cast<size_t>(size_), PeerInfo{});
    infos_[0] = mine;
    handed_in_.assign(static_cast<size_t>(size_), false);
    handed_in_[0] = true;
    present_ = 1;
    try {
        collect();
        acceptor_.close();
        std::erase_if(clients_, [](const Client &client) { return client.state != Client::State::kJoined; });
        all_infos_.clear();
        for (const PeerInfo &info : infos_) {
            all_infos_.append(bytes_of(info));
        }
        tell_clients(ReplyKind::kInfos, &all_infos_);
        tell_clients(ReplyKind::kMet, nullptr);  // all wait for this, so that an error until here reaches them
    } catch (const Error &error) {
        // An error of the rendezvous concerns every rank and goes to all as it is; any other is rank 0's own, and names it.
        const bool stopped = error.status() == ODC_ERROR_INTERRUPTED;
        tell_all(error.status() == ODC_ERROR_RENDEZVOUS ? error.what()
                                                        : formatted("{} left odc_init: {}", who(self_), error.what()),
                 stopped ? kBriefNs : kFailureNs);
        throw;
    }
    return std::move(infos_);
}

void RendezvousServer::leave(const PeerInfo &join_error) {
    try {
        check_join_errors({join_error});
    } catch (const Error &error) {
        tell_all(error.what(), kFailureNs);
    }
}

std::vector<int> RendezvousServer::liveness_fds() const {
    std::vector<int> liveness_fds(static_cast<size_t>(size_), -1);
    for (const Client &client : clients_) {
        liveness_fds[static_cast<size_t>(client.hello.rank)] = client.socket.get();
    }
    return liveness_fds;
}

void RendezvousServer::collect() {
    while (present_ < size_) {
        step();
        if (round_ > 1) {
            check_join_errors(infos_);
        }
    }
}

// A rank whose deadline passes sends the reason in the next round, so later rounds end a little later.
int64_t RendezvousServer::deadline_ns() const { return round_ > 1 ? deadline_ns_ + kLastRoundNs : deadline_ns_; }

// Listens at every address that the name has here, as the others may try any of them first.
std::string RendezvousServer::open() {
    std::string why;
    for (const Address &address : resolve(endpoint_, &why)) {
        Fd fd = listen_at(address);
        if (!fd.valid()) {
            if (errno == EADDRINUSE) {
                acceptor_.close();  // another process listens there; ranks that connect must not reach both
                return address.host_port();
            }
            why = std::generic_category().message(errno);
            continue;
        }
        acceptor_.listen(std::move(fd));
        addresses_ += (addresses_.empty() ? "" : ", ") + address.host_port();
    }
    if (!acceptor_.listens()) {
        fail(ODC_ERROR_RENDEZVOUS,
             "rank 0 cannot listen at {}: {}; give the rendezvous an address of the host that rank 0 runs on",
             endpoint_.text, why);
    }
    if (addresses_ == endpoint_.text) {
        addresses_.clear();
    }
    return "";
}

void RendezvousServer::step() {
    if (present_ < size_) {
        deadline_.log_if_long([this] { return missing(); });
    }
    wait_for_clients(events_, deadline_ns());
    for (Client &client : clients_) {
        if (client.state != Client::State::kGone) {
            serve(client);
        }
    }
    dismiss_late();
    std::erase_if(clients_, [](const Client &client) { return client.state == Client::State::kGone; });
    accept_all();
    if (present_ < size_ && now_ns() >= deadline_ns()) {
        throw Error(ODC_ERROR_RENDEZVOUS, missing());
    }
}

void RendezvousServer::wait_for_clients(EventLoop &events, int64_t until_ns) {
    acceptor_.watch(events);
    for (const Client &client : clients_) {
        events.watch(client.socket.get(), static_cast<short>(client.drained() ? POLLIN : POLLIN | POLLOUT));
    }
    events.wait(until_ns);
}

void RendezvousServer::wait_to_send() {
    for (const Client &client : clients_) {
        if (!client.drained()) {
            events_.watch(client.socket.get(), POLLOUT);
        }
    }
    events_.wait(deadline_ns());
}

void RendezvousServer::accept_all() {
    acceptor_.accept_all([this](Fd socket, const Address &from) { accept(std::move(socket), from); });
    if (acceptor_.is_crowded()) {
        check_room();
    }
}

void RendezvousServer::accept(Fd socket, const Address &from) {
    const auto undecided =
        std::count_if(clients_.begin(), clients_.end(), [](const Client &client) { return client.undecided(); });
    if (static_cast<size_t>(undecided) >= kMostUndecided + static_cast<size_t>(size_)) {
        dismiss_oldest();
    }
    Client &client = clients_.emplace_back();
    client.socket = std::move(socket);
    client.host = from.host();
    client.since_ns = now_ns();
}

// Nobody else can be accepted. Clients that are no ranks must not keep ranks out; ranks that are about to prove themselves must
// not be turned away for others.
void RendezvousServer::check_room() {
    const bool none_goes =
        std::none_of(clients_.begin(), clients_.end(), [](const Client &client) { return client.undecided(); });
    if (none_goes && failure_.empty()) {
        errno = acceptor_.why_crowded();
        fail_errno(formatted("odc_init cannot accept {} connections ({} came)", size_ - 1, present_ - 1));
    }
}

void RendezvousServer::dismiss_oldest() {
    const auto oldest =
        std::find_if(clients_.begin(), clients_.end(), [](const Client &client) { return client.undecided(); });
    dismiss(*oldest, "too many at a time");
    clients_.erase(oldest);
}

void RendezvousServer::dismiss_late() {
    for (Client &client : clients_) {
        if (client.undecided() && now_ns() - client.since_ns > (acceptor_.is_crowded() ? kCrowdedHelloNs : kHelloNs)) {
            dismiss(client,
                    acceptor_.is_crowded() ? "silent for 1 s while there was no room for others" : "silent for 5 s");
        }
    }
}

void RendezvousServer::dismiss(Client &client, const char *why) {
    client.socket = Fd();
    client.state = Client::State::kGone;
    // Clients that are no ranks must not be able to grow the message or this map without bound.
    const std::string entry = formatted("{}: {}", client.host, why);
    if (turned_away_.size() < 8 || turned_away_.count(entry) > 0) {
        ++turned_away_[entry];
    }
}

// A join error that a rank handed in before it went explains more than that it went.
void RendezvousServer::fail_lost(const Client &client) const {
    check_join_errors(infos_);
    fail(ODC_ERROR_RENDEZVOUS, "{} {} in odc_init", who(client.hello), kLeftSomehow);
}

void RendezvousServer::serve(Client &client) {
    flush(client);
    while (client.state != Client::State::kGone) {
        char buffer[sizeof(Proof) + sizeof(Entry)];
        const ssize_t got = recv(client.socket.get(), buffer, sizeof(buffer), 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        const bool joined = client.state == Client::State::kJoined;
        if (got <= 0 && joined && failure_.empty()) {
            fail_lost(client);
        }
        if (got <= 0) {
            return dismiss(client, "closed before it had proved itself");
        }
        if (joined && !failure_.empty()) {
            continue;  // it will read the reply
        }
        client.in.append(buffer, static_cast<size_t>(got));
        hear(client);
    }
}

void RendezvousServer::hear(Client &client) {
    if (client.state == Client::State::kHello) {
        hear_hello(client);
    } else if (client.state == Client::State::kProof) {
        hear_proof(client);
    } else {
        hear_entry(client);
    }
}

void RendezvousServer::hear_hello(Client &client) {
    if (!begins_hello(client.in)) {
        return dismiss(client, "not a rank");
    }
    if (client.in.size() < sizeof(Hello)) {
        return;
    }
    std::memcpy(&client.hello, client.in.data(), sizeof(Hello));
    client.in.clear();
    client.challenge = {kRendezvousMagic, random_nonce()};
    client.out.append(bytes_of(client.challenge));
    client.state = Client::State::kProof;
    flush(client);
}

// The first peer info comes with the proof.
void RendezvousServer::hear_proof(Client &client) {
    if (client.in.size() < sizeof(Proof)) {
        return;
    }
    Proof proof;
    std::memcpy(&proof, client.in.data(), sizeof(proof));
    client.in.erase(0, sizeof(proof));
    if (!same_mac(proof.mac, proof_mac(secret_, client.hello, client.challenge))) {
        send_reply(client, ReplyKind::kRefused, nullptr);
        return dismiss(client, "wrong secret");
    }
    client.session = session_key(secret_, client.hello, client.challenge);
    client.state = Client::State::kJoined;
    if (!failure_.empty()) {
        if (client.hello.rank >= 0 && client.hello.rank < size_) {
            joined_[static_cast<size_t>(client.hello.rank)] = client.hello;
        }
        return send_reply(client, ReplyKind::kFailed, &failure_);
    }
    admit(client);
    hear_entry(client);
}

// The client has proved that it belongs to the job: from here on it is told what is wrong.
void RendezvousServer::admit(Client &client) {
    const Hello &hello = client.hello;
    check_hello(hello, self_);
    if (hello.rank < 0 || hello.rank >= size_) {
        fail(ODC_ERROR_RENDEZVOUS, "a process says that it is {} of {}", who(hello), size_);
    }
    std::optional<Hello> &of_rank = joined_[static_cast<size_t>(hello.rank)];
    if (of_rank.has_value()) {
        fail(ODC_ERROR_RENDEZVOUS, "two processes are rank {}: {} and {}; give each process its own rank", hello.rank,
             who(*of_rank), who(hello));
    }
    of_rank = hello;
    const int64_t deadline_ns = deadline_after(hello.remaining_ms);
    if (deadline_ns < deadline_ns_) {
        deadline_ns_ = deadline_ns;
        deadline_rank_ = hello.rank;
    }
    send_reply(client, ReplyKind::kWelcome, nullptr);
}

void RendezvousServer::hear_entry(Client &client) {
    const auto rank = static_cast<size_t>(client.hello.rank);
    if (client.in.empty() || (!handed_in_[rank] && client.in.size() < sizeof(Entry))) {
        return;
    }
    Entry entry{};
    const bool whole = !handed_in_[rank] && client.in.size() == sizeof(entry);
    std::memcpy(&entry, client.in.data(), whole ? sizeof(entry) : 0);
    client.in.clear();
    if (!whole || !same_mac(entry.mac, entry_mac(client.session, round_, entry.info))) {
        fail(ODC_ERROR_RENDEZVOUS,
             "what came from {} in round {} of odc_init is not its entry; something changes the bytes on their way",
             who(client.hello), round_);
    }
    infos_[rank] = entry.info;
    handed_in_[rank] = true;
    ++present_;
    deadline_.debug("{} has come to round {}, with it {} of {}", who(client.hello), round_, present_, size_);
}

void RendezvousServer::send_reply(Client &client, ReplyKind kind, const std::string *payload) const {
    Reply reply{kRendezvousMagic, kind, payload != nullptr ? static_cast<uint32_t>(payload->size()) : 0, {}};
    if (kind != ReplyKind::kRefused) {
        reply.mac = reply_mac(client.session, round_, kind, payload != nullptr ? std::string_view(*payload) : "");
    }
    client.out.append(bytes_of(reply));
    client.tail = payload;
    client.tail_sent = 0;
    flush(client);
}

// Sends what the socket takes; false when the other side is gone (which reading will notice, too).
bool RendezvousServer::flush(Client &client) {
    while (!client.drained()) {
        const bool head = !client.out.empty();
        const std::string_view rest =
            head ? std::string_view(client.out) : std::string_view(*client.tail).substr(client.tail_sent);
        const ssize_t sent = send(client.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
        if (head) {
            client.out.erase(0, static_cast<size_t>(sent));
        } else {
            client.tail_sent += static_cast<size_t>(sent);
        }
    }
    return true;
}

// Sends to all clients and returns once their sockets have taken it. Throws before it sends if a client has gone or the
// caller wants to stop.
void RendezvousServer::tell_clients(ReplyKind kind, const std::string *payload) {
    deadline_.check_interrupted("odc_init");
    for (Client &client : clients_) {
        serve(client);
    }
    for (Client &client : clients_) {
        send_reply(client, kind, payload);
    }
    for (;; wait_to_send()) {
        for (Client &client : clients_) {
            if (!flush(client)) {
                fail_lost(client);
            }
        }
        const auto slow =
            std::find_if(clients_.begin(), clients_.end(), [](const Client &client) { return !client.drained(); });
        if (slow == clients_.end()) {
            return;
        }
        if (now_ns() >= deadline_ns()) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init waited {:.3g} s at {}; {} came but does not read",
                 deadline_.waited_s(), endpoint_.text, who(slow->hello));
        }
    }
}

// Best effort: a client that cannot be told sees its connection close. Ranks that come while this lasts are told, too.
void RendezvousServer::tell_all(const std::string &sentence, int64_t most_ns) {
    failure_ = cut(sentence, kMaxSentence);
    for (Client &client : clients_) {
        if (client.state != Client::State::kJoined) {
            continue;
        }
        if (client.tail == nullptr || client.drained()) {
            send_reply(client, ReplyKind::kFailed, &failure_);
        } else {
            client.state = Client::State::kGone;  // in the middle of the peer infos there is no room for another reply
        }
    }
    const int64_t until_ns = now_ns() + most_ns;
    const Deadline last(0, nullptr, nullptr);  // asks nobody, so that the reply reaches all
    EventLoop events(last, "odc_init");
    while (now_ns() < until_ns) {
        accept_all();
        for (Client &client : clients_) {
            if (client.state != Client::State::kGone) {
                serve(client);
            }
        }
        std::erase_if(clients_, [](const Client &client) {
            return client.state == Client::State::kGone || (client.state == Client::State::kJoined && client.drained());
        });
        const bool all_joined =
            std::all_of(joined_.begin(), joined_.end(), [](const auto &hello) { return hello.has_value(); });
        if (clients_.empty() && (all_joined || !acceptor_.listens() || deadline_.wants_to_stop())) {
            return;
        }
        wait_for_clients(events, until_ns);
    }
}

std::string RendezvousServer::missing() const {
    std::string text = formatted("odc_init waited {:.3g} s", deadline_.waited_s());
    if (deadline_rank_ != 0) {
        text += formatted(" (rank {}'s deadline)", deadline_rank_);
    }
    text += " at " + endpoint_.text;
    if (!addresses_.empty()) {
        text += formatted(" ({})", addresses_);
    }
    std::vector<std::string> ranks;
    for (int rank = 1; rank < size_; ++rank) {
        if (!handed_in_[static_cast<size_t>(rank)]) {
            ranks.push_back(formatted("rank {}", rank));
        }
    }
    text += "; missing: " + listed(ranks, ", ", kMostNamed);
    return text + formatted(" ({} of {} {}{})", present_, size_, round_ > 1 ? "came again" : "came", turned_away());
}

std::string RendezvousServer::turned_away() const {
    std::string text;
    for (const auto &[entry, count] : turned_away_) {
        text += formatted("; {} {} refused from {}", count, count == 1 ? "connection" : "connections", entry);
    }
    return text;
}

}  // namespace odc
