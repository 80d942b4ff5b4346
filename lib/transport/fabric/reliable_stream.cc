// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/reliable_stream.h"

#include <sodium.h>

#include <algorithm>
#include <cstddef>

#include "base/deadline.h"
#include "base/error.h"

namespace odc {

namespace {

constexpr size_t kPacketBytes = 8192;  // below every provider's limit for eager messages
constexpr unsigned kInFlight = 4;      // packets to one peer
constexpr uint64_t kEarly = 64;        // how far packets may come out of order
// A receiver has room for what a sender of another build sends: pinned as in bootstrap/shared_layouts.cc.
static_assert(kPacketBytes == 8192 && kInFlight == 4 && kEarly == 64);
constexpr size_t kSlab = 16;
constexpr size_t kReceives = 4 * kSlab;

}  // namespace

struct ReliableStream::Header {
    Token token;
    int32_t rank;
    uint32_t bytes;   // of control messages that follow
    uint64_t number;  // from 0, in the stream of two ranks
    // The sender's last call (ControlBlock).
    uint64_t last_call;
    uint64_t last_minibatch;
    int64_t last_call_age_ns;
};

struct ReliableStream::Packet final : OperationContext {
    ReliableStream *stream;
    FabricEndpoint *endpoint;
    RemoteRank *to;  // NULL: a receive
    void *descriptor;
    struct Wire {
        Header header;
        char text[kPacketBytes - sizeof(Header)];
    } wire;
    // Pinned as in bootstrap/shared_layouts.cc.
    static_assert(sizeof(Wire) == 8192);
    static_assert(offsetof(Wire, text) == 56);
    static_assert(sizeof(Header) == 56);
    static_assert(offsetof(Header, rank) == 16);
    static_assert(offsetof(Header, bytes) == 20);
    static_assert(offsetof(Header, number) == 24);
    static_assert(offsetof(Header, last_call) == 32);
    static_assert(offsetof(Header, last_minibatch) == 40);
    static_assert(offsetof(Header, last_call_age_ns) == 48);
    void completed(size_t bytes, const std::string &error) override {
        to != nullptr ? stream->sent(*this, error) : stream->received(*this, bytes, error);
    }
};

ReliableStream::ReliableStream(const ControlBlock &mine, const Token &token,
                               const std::vector<std::unique_ptr<RemoteRank>> &remotes, OnMessage on_message)
    : mine_(mine), token_(token), remotes_(remotes), on_message_(std::move(on_message)), streams_(remotes.size()) {}

ReliableStream::~ReliableStream() = default;

ReliableStream::Packet &ReliableStream::take(FabricEndpoint &endpoint) {
    const auto fits = [&](const Packet *one) { return one->endpoint == &endpoint; };
    auto found = std::find_if(free_.begin(), free_.end(), fits);
    if (found == free_.end()) {
        Slab slab{&endpoint, std::make_unique<Packet[]>(kSlab), {}};
        if (endpoint.needs_local()) {
            slab.region =
                endpoint.register_memory(slab.packets.get(), kSlab * sizeof(Packet), MemoryKind::Host, Access::Local);
        }
        for (size_t i = 0; i < kSlab; ++i) {
            Packet &one = slab.packets[i];
            one.stream = this;
            one.endpoint = &endpoint;
            one.descriptor = slab.region.descriptor;
            free_.push_back(&one);
        }
        slabs_.push_back(std::move(slab));
        found = std::find_if(free_.begin(), free_.end(), fits);
    }
    Packet &packet = **found;
    *found = free_.back();
    free_.pop_back();
    return packet;
}

// ---- Sending ----

void ReliableStream::send(RemoteRank &remote, const std::string &messages) {
    if (remote.gone) {
        return;
    }
    Stream &stream = streams_[static_cast<size_t>(remote.rank)];
    stream.out.insert(stream.out.end(), messages.begin(), messages.end());
    if (!stream.waiting) {
        stream.waiting = true;
        waiting_.push_back(&remote);
    }
}

bool ReliableStream::pump() {
    must_retry_ = false;
    while (!unposted_.empty()) {
        if (!try_post_receive(*unposted_.back())) {
            must_retry_ = true;
            break;
        }
        unposted_.pop_back();
    }
    bool any = false;
    std::erase_if(waiting_, [&](RemoteRank *remote) {
        Stream &stream = streams_[static_cast<size_t>(remote->rank)];
        while (!remote->gone && !stream.out.empty() && stream.in_flight < kInFlight && send_packet(*remote)) {
            any = true;
        }
        stream.waiting = !remote->gone && !stream.out.empty();
        return !stream.waiting;
    });
    return any;
}

bool ReliableStream::send_packet(RemoteRank &remote) {
    Stream &stream = streams_[static_cast<size_t>(remote.rank)];
    Packet &packet = take(*remote.endpoint);
    const size_t bytes = std::min(stream.out.size(), sizeof(packet.wire.text));
    packet.to = &remote;
    packet.wire.header = {token_,
                          mine_.rank,
                          static_cast<uint32_t>(bytes),
                          stream.next_sent,
                          mine_.last_call.load(std::memory_order_relaxed),
                          mine_.last_minibatch.load(std::memory_order_relaxed),
                          now_ns() - mine_.last_call_at_ns.load(std::memory_order_relaxed)};
    const auto end = stream.out.begin() + static_cast<ptrdiff_t>(bytes);
    std::copy(stream.out.begin(), end, packet.wire.text);
    if (!remote.endpoint->send(remote.address, &packet.wire, sizeof(Header) + bytes, packet.descriptor, packet)) {
        free_.push_back(&packet);
        must_retry_ = remote.may_retry() || must_retry_;
        return false;
    }
    stream.out.erase(stream.out.begin(), end);
    ++stream.next_sent;
    ++stream.in_flight;
    ++sent_;
    return true;
}

void ReliableStream::sent(Packet &packet, const std::string &error) {
    --streams_[static_cast<size_t>(packet.to->rank)].in_flight;
    free_.push_back(&packet);
    if (!error.empty()) {
        packet.to->mark_lost(odc::formatted("its connection ended ({})", error));
    }
}

bool ReliableStream::delivered(const RemoteRank &remote) const {
    const Stream &stream = streams_[static_cast<size_t>(remote.rank)];
    return remote.gone || (stream.out.empty() && stream.in_flight == 0);
}

// ---- Receiving ----

void ReliableStream::post_receives(FabricEndpoint &endpoint) {
    for (size_t i = 0; i < kReceives; ++i) {
        post_receive(take(endpoint));
    }
}

void ReliableStream::post_receive(Packet &packet) {
    packet.to = nullptr;
    if (!try_post_receive(packet)) {
        unposted_.push_back(&packet);
    }
}

// False if the provider has no room.
bool ReliableStream::try_post_receive(Packet &packet) {
    if (packet.endpoint->receive(&packet.wire, sizeof(packet.wire), packet.descriptor, packet)) {
        return true;
    }
    const std::string failure = packet.endpoint->take_failure();
    if (!failure.empty()) {
        fail(ODC_ERROR_SYSTEM, "control messages can no longer be received ({})", failure);
    }
    return false;
}

// Ignores errors: members' packets are never too long, and the heartbeat detects closed connections.
void ReliableStream::received(Packet &packet, size_t bytes, const std::string &error) {
    if (error.empty()) {
        try {
            deliver(packet, bytes);
        } catch (...) {
            unposted_.push_back(&packet);
            throw;
        }
    }
    post_receive(packet);
}

void ReliableStream::deliver(const Packet &packet, size_t bytes) {
    const Header &header = packet.wire.header;
    if (bytes < sizeof(Header) || sodium_memcmp(header.token.data(), token_.data(), token_.size()) != 0 ||
        header.bytes != bytes - sizeof(Header) || header.rank < 0 ||
        static_cast<size_t>(header.rank) >= remotes_.size()) {
        return;
    }
    RemoteRank *remote = remotes_[static_cast<size_t>(header.rank)].get();
    if (remote == nullptr || (remote->gone && !remote->closing)) {
        return;  // a rank that has been given up stays lost
    }
    remote->silent_since_ns = 0;
    remote->warned = false;
    Stream &stream = streams_[static_cast<size_t>(header.rank)];
    const bool is_newest = stream.early.empty() || header.number > stream.early.rbegin()->first;
    if (header.number < stream.next_received || header.number - stream.next_received >= kEarly ||
        !stream.early.emplace(header.number, std::string(packet.wire.text, header.bytes)).second) {
        fail(ODC_ERROR_INTERNAL, "packet {} of rank {} came when {} was next: the provider lost or repeated one",
             header.number, header.rank, stream.next_received);
    }
    if (is_newest) {
        remote->replica.last_call(header.last_call, header.last_minibatch, header.last_call_age_ns);
    }
    // Providers may reorder messages.
    for (auto next = stream.early.find(stream.next_received); next != stream.early.end();
         next = stream.early.find(stream.next_received)) {
        stream.in += next->second;
        stream.early.erase(next);
        ++stream.next_received;
    }
    // Handles each message once, even if the handler throws.
    std::string in = std::move(stream.in);
    std::string_view rest = in;
    const auto keep_rest = [&] { stream.in.assign(rest); };
    try {
        while (const std::optional<ControlMessage> message = decode(&rest, static_cast<int>(remotes_.size()))) {
            on_message_(*remote, *message);
        }
    } catch (...) {
        keep_rest();
        throw;
    }
    keep_rest();
}

}  // namespace odc
