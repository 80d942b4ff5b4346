// SPDX-License-Identifier: Apache-2.0
// Meeting over TCP: rank 0 receives (reception.h), the others visit it and prove themselves (handshake.h).
#include "exchange.h"
#include "handshake.h"
#include "reception.h"
#include "tcp.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <poll.h>

namespace odc {
namespace {

constexpr int64_t kConnectNs = 2'000'000'000;  // for one of several addresses to answer
constexpr int64_t kAnswerNs = 2'000'000'000;   // a rank waits this much longer than its deadline for rank 0's words
constexpr int64_t kBusyMs = 5'000;             // for whoever listens at rank 0's address to say who it is
constexpr int64_t kResolveNs = 1'000'000'000;  // between two questions to the resolver
constexpr int64_t kFirstRetryMs = 10;          // doubled each time
constexpr int64_t kLastRetryMs = 250;
constexpr int kSliceMs = 50;  // between two questions to the caller

class Visitor {
public:
    Visitor(const Endpoint &endpoint, const std::string &secret, int rank, int size, const Card &mine,
            const Patience &patience, int64_t deadline_ns)
        : endpoint_(endpoint), secret_(secret), rank_(rank), size_(size), mine_(mine), patience_(patience),
          deadline_ns_(deadline_ns) {}

    // A connection that is lost before the welcome may have been an earlier job's, and is tried again.
    Exchanged run() {
        std::vector<Address> addresses;
        int64_t resolve_at_ns = 0;
        for (int64_t retry_ms = kFirstRetryMs;; retry_ms = std::min(2 * retry_ms, kLastRetryMs)) {
            if (now_ns() >= resolve_at_ns) {
                addresses = resolve(endpoint_, &why_);
                resolve_at_ns = now_ns() + kResolveNs;
            }
            for (const Address &address : addresses) {
                if (reach(address) && introduce()) {
                    return hear_cards();
                }
                check_deadline();
            }
            rest(retry_ms);
        }
    }

private:
    bool reach(const Address &address);
    bool introduce();
    Exchanged hear_cards();
    bool hear_verdict(Verdict *verdict, std::string *payload);
    bool hear(void *out, size_t bytes);
    bool tell(std::string_view bytes);
    void wait(short event) const;
    void rest(int64_t ms) const;
    void check_deadline() const;
    [[noreturn]] void not_rank_0() const;
    [[noreturn]] void other_secret() const;

    const Endpoint &endpoint_;
    const std::string &secret_;
    int rank_;
    int size_;
    const Card &mine_;
    const Patience &patience_;
    int64_t deadline_ns_;
    Fd socket_;
    Mac session_{};
    std::string why_ = "no address";  // the last visit came to nothing
};

bool Visitor::reach(const Address &address) {
    socket_ = connect_to(address);
    int error = errno;
    if (socket_.valid()) {
        pollfd entry{socket_.get(), POLLOUT, 0};
        const int64_t until_ns = std::min(now_ns() + kConnectNs, deadline_ns_);
        error = ETIMEDOUT;
        do {
            patience_.check_interrupted("odc_init");
            if (poll(&entry, 1, kSliceMs) > 0) {
                error = connect_result(socket_.get());
            }
        } while (error == ETIMEDOUT && now_ns() < until_ns);
    }
    why_ = say(address.host_port(), ": ", std::generic_category().message(error));
    return error == 0;
}

bool Visitor::introduce() {
    const Hello hello = hello_of(rank_, size_, (deadline_ns_ - now_ns()) / 1'000'000);
    why_ = "something listens there but does not answer";
    Challenge challenge;
    if (!tell(bytes_of(hello)) || !hear(&challenge, sizeof(challenge))) {
        return false;
    }
    if (challenge.magic != kTcpMagic) {
        not_rank_0();
    }
    session_ = session_key(secret_, hello, challenge);
    const Proof proof{proof_mac(secret_, hello, challenge, mine_), mine_};
    Verdict verdict;
    std::string payload;
    return tell(bytes_of(proof)) && hear_verdict(&verdict, &payload);
}

Exchanged Visitor::hear_cards() {
    why_ = "it is there but does not answer";
    Verdict verdict;
    Verdict end;
    std::string payload;
    std::string nothing;
    if (!hear_verdict(&verdict, &payload) || !hear_verdict(&end, &nothing)) {
        fail(ODC_ERROR_RENDEZVOUS, "rank 0 at ", endpoint_.text, " died or gave up in odc_init");
    }
    Exchanged all{std::vector<Card>(static_cast<size_t>(size_)), {}};
    if (verdict.kind != VerdictKind::kCards || payload.size() != all.cards.size() * sizeof(Card) ||
        end.kind != VerdictKind::kMet) {
        not_rank_0();
    }
    std::memcpy(all.cards.data(), payload.data(), payload.size());
    all.ties.push_back(std::move(socket_));
    return all;
}

// False when the connection closed instead. Rank 0's refusal or failure becomes this rank's.
bool Visitor::hear_verdict(Verdict *verdict, std::string *payload) {
    if (!hear(verdict, sizeof(*verdict))) {
        return false;
    }
    if (verdict->magic != kTcpMagic) {
        not_rank_0();
    }
    if (verdict->kind == VerdictKind::kRefused) {
        other_secret();
    }
    if (verdict->bytes > std::max<size_t>(kMaxSentence, static_cast<size_t>(size_) * sizeof(Card))) {
        not_rank_0();
    }
    payload->resize(verdict->bytes);
    if (!hear(payload->data(), payload->size())) {
        return false;
    }
    if (!same_mac(verdict->mac, verdict_mac(session_, verdict->kind, *payload))) {
        other_secret();
    }
    if (verdict->kind == VerdictKind::kFailed) {
        throw Error(ODC_ERROR_RENDEZVOUS, *payload);
    }
    return true;
}

bool Visitor::hear(void *out, size_t bytes) {
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

bool Visitor::tell(std::string_view bytes) {
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

// Rank 0 speaks at the deadline; only its silence after that is this rank's to report.
void Visitor::wait(short event) const {
    pollfd entry{socket_.get(), event, 0};
    poll(&entry, 1, kSliceMs);
    if (now_ns() > deadline_ns_ + kAnswerNs) {
        check_deadline();
    }
    patience_.check_interrupted("odc_init");
}

void Visitor::rest(int64_t ms) const {
    const int64_t until_ns = now_ns() + ms * 1'000'000;
    do {
        check_deadline();
        poll(nullptr, 0, static_cast<int>(std::min<int64_t>(ms, kSliceMs)));
    } while (now_ns() < until_ns);
}

void Visitor::check_deadline() const {
    patience_.check_interrupted("odc_init");
    if (now_ns() < deadline_ns_) {
        return;
    }
    fail(ODC_ERROR_RENDEZVOUS, "odc_init of rank ", rank_, " waited ", patience_.waited_s(), " s at ", endpoint_.text,
         "; missing: rank 0 (", why_, "; is it started, and is this its address?)");
}

void Visitor::not_rank_0() const {
    fail(ODC_ERROR_RENDEZVOUS, "what listens at ", endpoint_.text,
         " is not rank 0 of a libodc job; give the rendezvous a port of its own");
}

void Visitor::other_secret() const {
    fail(ODC_ERROR_RENDEZVOUS, "rank 0 at ", endpoint_.text, " does not know the secret of rank ", rank_,
         "; give all ranks the same ODC_SECRET, and each job its own rendezvous");
}

// The address is taken. If by another rank 0 of this job, it and its ranks learn of this one, too.
[[noreturn]] void meet_other_rank_0(const std::string &busy, const Endpoint &endpoint, const std::string &secret,
                                    int size, const Card &mine, const Patience &patience) {
    const int64_t deadline_ns = deadline_after(std::min(patience.remaining_ms(), kBusyMs));
    std::string why = "it does not answer";
    try {
        Visitor(endpoint, secret, 0, size, mine, patience, deadline_ns).run();
    } catch (const Error &error) {
        if (error.status() != ODC_ERROR_RENDEZVOUS) {
            throw;
        }
        why = error.what();
    }
    fail(ODC_ERROR_RENDEZVOUS, "rank 0 cannot listen at ", busy, ", where somebody else does: ", why);
}

}  // namespace

Exchanged exchange_tcp(const std::string &endpoint_text, const std::string &secret, int rank, int size,
                       const Card &mine, const Patience &patience) {
    const Endpoint endpoint = parse_endpoint(endpoint_text);
    if (rank != 0) {
        const int64_t deadline_ns = deadline_after(patience.remaining_ms());
        return Visitor(endpoint, secret, rank, size, mine, patience, deadline_ns).run();
    }
    Reception reception(endpoint, secret, size, mine, patience);
    const std::string busy = reception.open();
    if (!busy.empty()) {
        meet_other_rank_0(busy, endpoint, secret, size, mine, patience);
    }
    return reception.run();
}

}  // namespace odc
