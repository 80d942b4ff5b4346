// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local/message.h"

#include "base/error.h"
#include "base/event_loop.h"
#include "base/layout_version.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace odc {

namespace {

constexpr size_t kMostPayload = std::max(kMaxSentence, kMostSentPeers * sizeof(SentPeer));
constexpr size_t kMostBytes = std::max(sizeof(Hello) + sizeof(SentPeer), sizeof(Reply) + kMostPayload);

bool send_datagram(int socket, std::string_view head, std::string_view payload, const std::vector<int> &fds,
                   const Deadline &deadline) {
    const std::string message = std::string(head).append(payload);
    EventLoop events(deadline, "odc_init");
    while (send_with_fds(socket, message.data(), message.size(), fds) < 0) {
        // ETOOMANYREFS: descriptors in flight are limited per user; no event says that their readers have taken them.
        const bool full = errno == EAGAIN;
        if ((!full && errno != EINTR && errno != ETOOMANYREFS) || deadline.over()) {
            return false;
        }
        if (full) {
            events.watch(socket, POLLOUT);
        }
        events.wait(now_ns() + (full ? deadline.remaining_ms() : 1) * 1'000'000);
    }
    return true;
}

Received receive_datagram(int socket, std::string *message, std::vector<Fd> *fds) {
    MessageFds received;
    message->resize(kMostBytes + 1);  // one byte more, to notice a message that is too long
    const ssize_t bytes = receive_with_fds(socket, message->data(), message->size(), &received);
    if (bytes < 0) {
        return errno == EAGAIN || errno == EINTR ? Received::Nothing : Received::Closed;
    }
    if (received.cut) {
        errno = EMFILE;  // or ENFILE, which the kernel does not tell apart here
        fail_errno("odc_init cannot receive a peer's descriptors");
    }
    message->resize(static_cast<size_t>(bytes));
    *fds = std::move(received.fds);
    return Received::Message;
}

std::string_view bytes_of_peers(const PeersToSend &peers) {
    return {reinterpret_cast<const char *>(peers.peers.data()), peers.peers.size() * sizeof(SentPeer)};
}

// Whether the message carries as many descriptors as it names.
bool take_peers(std::string_view payload, std::vector<Fd> &&fds, ReceivedPeers *out) {
    const size_t count = payload.size() / sizeof(SentPeer);
    if (payload.size() % sizeof(SentPeer) != 0 || count < 1 || count > kMostSentPeers) {
        return false;
    }
    out->peers.resize(count);
    std::memcpy(out->peers.data(), payload.data(), payload.size());
    size_t named = 0;
    for (const SentPeer &peer : out->peers) {
        if (peer.fds < 3 || peer.fds > 4) {
            return false;
        }
        named += static_cast<size_t>(peer.fds);
    }
    out->fds = std::move(fds);
    return named == out->fds.size();
}

}  // namespace

bool send_hello(int socket, const Hello &hello, const PeersToSend &self, const Deadline &deadline) {
    return send_datagram(socket, bytes_of(hello), bytes_of_peers(self), self.fds, deadline);
}

bool send_reply(int socket, ReplyKind kind, const PeersToSend &peers, const Deadline &deadline) {
    const std::string_view payload = bytes_of_peers(peers);
    const Reply reply{kRendezvousMagic, kind, static_cast<uint32_t>(payload.size()), {}};
    return send_datagram(socket, bytes_of(reply), payload, peers.fds, deadline);
}

bool send_failure(int socket, const std::string &why, const Deadline &deadline) {
    const std::string text = cut(why, kMaxSentence);
    const Reply reply{kRendezvousMagic, ReplyKind::kFailed, static_cast<uint32_t>(text.size()), {}};
    return send_datagram(socket, bytes_of(reply), text, {}, deadline);
}

Received receive_hello(int socket, Hello *hello, ReceivedPeers *self) {
    std::string message;
    std::vector<Fd> fds;
    if (const Received what = receive_datagram(socket, &message, &fds); what != Received::Message) {
        return what;
    }
    const std::string_view bytes = message;
    if (bytes.size() < sizeof(*hello) || !begins_hello(bytes.substr(0, sizeof(*hello)))) {
        return Received::Closed;
    }
    std::memcpy(hello, bytes.data(), sizeof(*hello));
    const bool whole = take_peers(bytes.substr(sizeof(*hello)), std::move(fds), self) && self->peers.size() == 1;
    return whole || hello->version != layout_version() ? Received::Message : Received::Closed;
}

Received receive_reply(int socket, ReplyKind *kind, std::string *why, ReceivedPeers *peers) {
    std::string message;
    std::vector<Fd> fds;
    if (const Received what = receive_datagram(socket, &message, &fds); what != Received::Message) {
        return what;
    }
    Reply reply{};
    if (message.size() < sizeof(reply)) {
        return Received::Closed;
    }
    std::memcpy(&reply, message.data(), sizeof(reply));
    const std::string_view payload = std::string_view(message).substr(sizeof(reply));
    if (!is_reply(reply, kMostPayload) || reply.bytes != payload.size()) {
        return Received::Closed;
    }
    *kind = reply.kind;
    if (reply.kind == ReplyKind::kFailed) {
        *why = payload;
        return Received::Message;
    }
    return take_peers(payload, std::move(fds), peers) ? Received::Message : Received::Closed;
}

}  // namespace odc
