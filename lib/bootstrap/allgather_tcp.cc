// SPDX-License-Identifier: Apache-2.0
// The TCP rendezvous: rank 0 is the server (tcp_server.h), the others are its clients and prove themselves (tcp_protocol.h).
#include "base/event_loop.h"
#include "base/program.h"
#include "base/tcp_socket.h"
#include "bootstrap/allgather.h"
#include "bootstrap/tcp_protocol.h"
#include "bootstrap/tcp_server.h"

#include <cerrno>
#include <cstring>
#include <system_error>

namespace odc {
namespace {

constexpr int64_t kConnectNs = 2'000'000'000;  // for one of several addresses to answer
constexpr int64_t kAnswerNs = 2'000'000'000;   // a rank waits this much longer than its deadline for rank 0's reply
constexpr int64_t kBusyMs = 5'000;             // for whoever listens at rank 0's address to say who it is
constexpr int64_t kResolveNs = 1'000'000'000;  // between two questions to the resolver
constexpr int64_t kFirstRetryMs = 10;          // doubled each time
constexpr int64_t kLastRetryMs = 250;

class RendezvousClient : public Allgather {
public:
    RendezvousClient(const HostPort &endpoint, const std::string &secret, const std::string &host, int rank, int size,
                     const Deadline &deadline, int64_t deadline_ns)
        : endpoint_(endpoint), secret_(secret), host_(host), rank_(rank), size_(size), deadline_(deadline),
          events_(deadline, "odc_init"), deadline_ns_(deadline_ns) {}

    std::vector<PeerInfo> all_gather(const PeerInfo &mine) override;
    void leave(const PeerInfo &join_error) override;
    std::vector<int> liveness_fds() const override { return {socket_.get()}; }

private:
    void join(const PeerInfo &mine);
    bool connect(const Address &address);
    bool introduce(const PeerInfo &mine);
    Entry entry_of(const PeerInfo &mine) const;
    std::vector<PeerInfo> hear_infos();
    bool hear_reply(Reply *reply, std::string *payload);
    bool hear(void *out, size_t bytes);
    bool tell(std::string_view bytes);
    void wait(short event);
    void check_deadline() const;
    std::string missing() const;
    [[noreturn]] void not_rank_0() const;
    [[noreturn]] void other_secret() const;

    HostPort endpoint_;
    std::string secret_;
    std::string host_;
    int rank_;
    int size_;
    const Deadline &deadline_;
    EventLoop events_;
    int64_t deadline_ns_;
    uint32_t round_ = 0;
    Fd socket_;
    Mac session_{};
    std::string why_ = "no address";  // the last connection came to nothing
};

std::vector<PeerInfo> RendezvousClient::all_gather(const PeerInfo &mine) {
    ++round_;
    if (round_ == 1) {
        join(mine);
    } else {
        tell(bytes_of(entry_of(mine)));  // rank 0 may be gone, and have said why before
    }
    return hear_infos();
}

void RendezvousClient::leave(const PeerInfo &join_error) {
    ++round_;
    tell(bytes_of(entry_of(join_error)));
}

// A connection that is lost before the welcome may have been an earlier job's, and is tried again.
void RendezvousClient::join(const PeerInfo &mine) {
    std::vector<Address> addresses;
    int64_t resolve_at_ns = 0;
    for (Backoff backoff(kFirstRetryMs, kLastRetryMs);;) {
        if (now_ns() >= resolve_at_ns) {
            addresses = resolve(endpoint_, &why_);
            resolve_at_ns = now_ns() + kResolveNs;
        }
        for (const Address &address : addresses) {
            if (connect(address) && introduce(mine)) {
                return;
            }
            check_deadline();
        }
        // No event says that rank 0 has begun to listen, so it is tried again.
        const int64_t retry_at_ns = now_ns() + backoff.next_ns();
        deadline_.debug("has not reached rank 0 yet ({}); tries again", why_);
        events_.sleep(std::min(retry_at_ns, deadline_ns_));
        check_deadline();
    }
}

Entry RendezvousClient::entry_of(const PeerInfo &mine) const { return {entry_mac(session_, round_, mine), mine}; }

bool RendezvousClient::connect(const Address &address) {
    socket_ = connect_to(address);
    int error = errno;
    if (socket_.valid()) {
        const int64_t until_ns = std::min(now_ns() + kConnectNs, deadline_ns_);
        error = ETIMEDOUT;
        do {
            const size_t connected = events_.watch(socket_.get(), POLLOUT);
            events_.wait(until_ns);
            if (events_.happened(connected)) {
                error = connect_result(socket_.get());
            }
        } while (error == ETIMEDOUT && now_ns() < until_ns);
    }
    why_ = formatted("{}: {}", address.host_port(), std::generic_category().message(error));
    return error == 0;
}

bool RendezvousClient::introduce(const PeerInfo &mine) {
    const Hello hello = hello_of(host_, rank_, size_, (deadline_ns_ - now_ns()) / 1'000'000);
    why_ = "something listens there but does not answer";
    Challenge challenge;
    if (!tell(bytes_of(hello)) || !hear(&challenge, sizeof(challenge))) {
        return false;
    }
    if (challenge.magic != kRendezvousMagic) {
        not_rank_0();
    }
    session_ = session_key(secret_, hello, challenge);
    const Proof proof{proof_mac(secret_, hello, challenge)};
    const Entry entry = entry_of(mine);
    Reply reply;
    std::string payload;
    return tell(std::string(bytes_of(proof)).append(bytes_of(entry))) && hear_reply(&reply, &payload);
}

std::vector<PeerInfo> RendezvousClient::hear_infos() {
    why_ = "it is there but does not answer";
    Reply reply;
    Reply end;
    std::string payload;
    std::string nothing;
    if (!hear_reply(&reply, &payload) || !hear_reply(&end, &nothing)) {
        fail(ODC_ERROR_RENDEZVOUS, "rank 0 at {} {} in odc_init", endpoint_.text, kLeftSomehow);
    }
    std::vector<PeerInfo> infos(static_cast<size_t>(size_));
    if (reply.kind != ReplyKind::kInfos || payload.size() != infos.size() * sizeof(PeerInfo) ||
        end.kind != ReplyKind::kMet) {
        not_rank_0();
    }
    std::memcpy(infos.data(), payload.data(), payload.size());
    return infos;
}

// Returns false if the connection was closed. A refusal or failure that rank 0 sends becomes this rank's error.
bool RendezvousClient::hear_reply(Reply *reply, std::string *payload) {
    if (!hear(reply, sizeof(*reply))) {
        return false;
    }
    if (!is_reply(*reply, static_cast<size_t>(size_) * sizeof(PeerInfo))) {
        not_rank_0();
    }
    if (reply->kind == ReplyKind::kRefused) {
        other_secret();
    }
    payload->resize(reply->bytes);
    if (!hear(payload->data(), payload->size())) {
        return false;
    }
    if (!same_mac(reply->mac, reply_mac(session_, round_, reply->kind, *payload))) {
        other_secret();
    }
    if (reply->kind == ReplyKind::kFailed) {
        throw Error(ODC_ERROR_RENDEZVOUS, *payload);
    }
    return true;
}

bool RendezvousClient::hear(void *out, size_t bytes) {
    char *at = static_cast<char *>(out);
    while (bytes > 0) {
        const ssize_t got = recv(socket_.get(), at, bytes, 0);
        if (got > 0) {
            at += got;
            bytes -= static_cast<size_t>(got);
        } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            return false;
        } else {
            wait(POLLIN);
        }
    }
    return true;
}

bool RendezvousClient::tell(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes.remove_prefix(static_cast<size_t>(sent));
        } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            return false;
        } else {
            wait(POLLOUT);
        }
    }
    return true;
}

// Rank 0 reports what is missing at the deadline; this rank reports only that rank 0 stays silent after it.
void RendezvousClient::wait(short event) {
    events_.watch(socket_.get(), event);
    events_.wait(deadline_ns_ + kAnswerNs);
    if (now_ns() > deadline_ns_ + kAnswerNs) {
        check_deadline();
    }
    deadline_.log_if_long([this] {
        return formatted("odc_init of rank {} waited {:.3g} s at {}; rank 0 is there and waits for the others", rank_,
                         deadline_.waited_s(), endpoint_.text);
    });
}

void RendezvousClient::check_deadline() const {
    deadline_.log_if_long([this] { return missing(); });
    deadline_.check_interrupted("odc_init");
    if (now_ns() >= deadline_ns_) {
        throw Error(ODC_ERROR_RENDEZVOUS, missing());
    }
}

std::string RendezvousClient::missing() const {
    return formatted(
        "odc_init of rank {} waited {:.3g} s at {}; missing: rank 0 ({}; is it started, "
        "and is this its address?)",
        rank_, deadline_.waited_s(), endpoint_.text, why_);
}

void RendezvousClient::not_rank_0() const {
    fail(ODC_ERROR_RENDEZVOUS,
         "what listens at {} is not rank 0 of a libodc job; give the rendezvous a port of its own", endpoint_.text);
}

void RendezvousClient::other_secret() const {
    fail(ODC_ERROR_RENDEZVOUS,
         "rank 0 at {} does not know the secret of rank {}; give all ranks the same ODC_SECRET, and "
         "each job its own rendezvous",
         endpoint_.text, rank_);
}

class Server : public Allgather {
public:
    Server(const HostPort &endpoint, const std::string &secret, const std::string &host, int size,
           const Deadline &deadline)
        : endpoint_(endpoint), secret_(secret), host_(host), size_(size), deadline_(deadline),
          server_(endpoint_, secret_, host_, size, deadline) {}

    std::vector<PeerInfo> all_gather(const PeerInfo &mine) override {
        if (!open_) {
            const std::string busy = server_.open();
            if (!busy.empty()) {
                meet_other_rank_0(busy, mine);
            }
            open_ = true;
        }
        return server_.all_gather(mine);
    }
    void leave(const PeerInfo &join_error) override { server_.leave(join_error); }
    std::vector<int> liveness_fds() const override { return server_.liveness_fds(); }

private:
    // Another process listens at the address. If it is another rank 0 of this job, tells it and its ranks of this one.
    [[noreturn]] void meet_other_rank_0(const std::string &busy, const PeerInfo &mine) const {
        const int64_t deadline_ns = deadline_after(std::min(deadline_.remaining_ms(), kBusyMs));
        std::string why = "it does not answer";
        try {
            RendezvousClient(endpoint_, secret_, host_, 0, size_, deadline_, deadline_ns).all_gather(mine);
        } catch (const Error &error) {
            if (error.status() != ODC_ERROR_RENDEZVOUS) {
                throw;
            }
            why = error.what();
        }
        fail(ODC_ERROR_RENDEZVOUS, "rank 0 cannot listen at {}, where another process listens; choose another port: {}",
             busy, why);
    }

    HostPort endpoint_;
    std::string secret_;
    std::string host_;
    int size_;
    const Deadline &deadline_;
    RendezvousServer server_;
    bool open_ = false;
};

}  // namespace

std::unique_ptr<Allgather> make_allgather_tcp(const std::string &endpoint_text, const std::string &secret,
                                              const std::string &host, int rank, int size, const Deadline &deadline) {
    const HostPort endpoint = parse_endpoint(endpoint_text);
    if (rank == 0) {
        return std::make_unique<Server>(endpoint, secret, host, size, deadline);
    }
    return std::make_unique<RendezvousClient>(endpoint, secret, host, rank, size, deadline,
                                              deadline_after(deadline.remaining_ms()));
}

}  // namespace odc
