// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/reliable_stream.h"

#include <sodium.h>

#include <algorithm>

#include "base/deadline.h"
#include "base/error.h"

namespace odc {

namespace {

constexpr size_t kPacketBytes = 8192;  // below every provider's limit for eager messages
constexpr unsigned kFlying = 4;        // packets to one peer
constexpr uint64_t kEarly = 64;        // packets that may overtake others
constexpr size_t kSlab = 16;
constexpr size_t kReceives = 4 * kSlab;

struct Header {
    Token token;
    int32_t rank;
    uint32_t bytes;   // of control messages that follow
    uint64_t number;  // from 0, between two ranks
    // What the sender last did (ControlBlock).
    uint64_t last_call;
    uint64_t last_minibatch;
    int64_t did_age_ns;
};

}  // namespace

struct ReliableStream::Packet final : Started {
    ReliableStream *packets;
    FabricEndpoint *endpoint;
    RemoteRank *to;  // NULL: a receive
    void *descriptor;
    struct {
        Header header;
        char text[kPacketBytes - sizeof(Header)];
    } wire;
    void completed(size_t bytes, const std::string &error) override {
        to != nullptr ? packets->sent(*this, error) : packets->received(*this, bytes, error);
    }
};

ReliableStream::ReliableStream(const ControlBlock &mine, const Token &token,
                               const std::vector<std::unique_ptr<RemoteRank>> &remotes, Heard heard)
    : mine_(mine), token_(token), remotes_(remotes), heard_(std::move(heard)), streams_(remotes.size()) {}

ReliableStream::~ReliableStream() = default;

ReliableStream::Packet &ReliableStream::take(FabricEndpoint &endpoint) {
    const auto fits = [&](const Packet *one) { return one->endpoint == &endpoint; };
    auto found = std::find_if(free_.begin(), free_.end(), fits);
    if (found == free_.end()) {
        Slab slab{&endpoint, std::make_unique<Packet[]>(kSlab), {}};
        if (endpoint.needs_local()) {
            slab.exposed = endpoint.expose(slab.packets.get(), kSlab * sizeof(Packet), MemoryKind::Host, Access::Local);
        }
        for (size_t i = 0; i < kSlab; ++i) {
            Packet &one = slab.packets[i];
            one.packets = this;
            one.endpoint = &endpoint;
            one.descriptor = slab.exposed.descriptor;
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

// ---- Speaking ----

void ReliableStream::say(RemoteRank &remote, const std::string &messages) {
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
    refused_ = false;
    while (!unposted_.empty()) {
        if (!receive(*unposted_.back())) {
            refused_ = true;
            break;
        }
        unposted_.pop_back();
    }
    bool any = false;
    std::erase_if(waiting_, [&](RemoteRank *remote) {
        Stream &stream = streams_[static_cast<size_t>(remote->rank)];
        while (!remote->gone && !stream.out.empty() && stream.in_flight < kFlying && send(*remote)) {
            any = true;
        }
        stream.waiting = !remote->gone && !stream.out.empty();
        return !stream.waiting;
    });
    return any;
}

bool ReliableStream::send(RemoteRank &remote) {
    Stream &stream = streams_[static_cast<size_t>(remote.rank)];
    Packet &packet = take(*remote.endpoint);
    const size_t bytes = std::min(stream.out.size(), sizeof(packet.wire.text));
    packet.to = &remote;
    packet.wire.header = {token_,
                          mine_.rank,
                          static_cast<uint32_t>(bytes),
                          stream.packed,
                          mine_.last_call.load(std::memory_order_relaxed),
                          mine_.last_minibatch.load(std::memory_order_relaxed),
                          now_ns() - mine_.last_call_at_ns.load(std::memory_order_relaxed)};
    const auto end = stream.out.begin() + static_cast<ptrdiff_t>(bytes);
    std::copy(stream.out.begin(), end, packet.wire.text);
    if (!remote.endpoint->send(remote.address, &packet.wire, sizeof(Header) + bytes, packet.descriptor, packet)) {
        free_.push_back(&packet);
        refused_ = remote.may_retry() || refused_;
        return false;
    }
    stream.out.erase(stream.out.begin(), end);
    ++stream.packed;
    ++stream.in_flight;
    ++sent_;
    return true;
}

void ReliableStream::sent(Packet &packet, const std::string &error) {
    --streams_[static_cast<size_t>(packet.to->rank)].in_flight;
    free_.push_back(&packet);
    if (!error.empty()) {
        packet.to->lose(odc::say("its connection ended (", error, ")"));
    }
}

bool ReliableStream::delivered(const RemoteRank &remote) const {
    const Stream &stream = streams_[static_cast<size_t>(remote.rank)];
    return remote.gone || (stream.out.empty() && stream.in_flight == 0);
}

// ---- Listening ----

void ReliableStream::listen(FabricEndpoint &endpoint) {
    for (size_t i = 0; i < kReceives; ++i) {
        post(take(endpoint));
    }
}

void ReliableStream::post(Packet &packet) {
    packet.to = nullptr;
    if (!receive(packet)) {
        unposted_.push_back(&packet);
    }
}

// False: there is no room now.
bool ReliableStream::receive(Packet &packet) {
    if (packet.endpoint->receive(&packet.wire, sizeof(packet.wire), packet.descriptor, packet)) {
        return true;
    }
    const std::string failure = packet.endpoint->take_failure();
    if (!failure.empty()) {
        fail(ODC_ERROR_SYSTEM, "nothing can be received any more (", failure, ")");
    }
    return false;
}

// An error here (a message too long, a connection that ended) is not a member's: their packets fit, and whoever waits
// for one that is gone asks it (see Pulses).
void ReliableStream::received(Packet &packet, size_t bytes, const std::string &error) {
    if (error.empty()) {
        try {
            hear(packet, bytes);
        } catch (...) {
            unposted_.push_back(&packet);
            throw;
        }
    }
    post(packet);
}

void ReliableStream::hear(const Packet &packet, size_t bytes) {
    const Header &header = packet.wire.header;
    if (bytes < sizeof(Header) || sodium_memcmp(header.token.data(), token_.data(), token_.size()) != 0 ||
        header.bytes != bytes - sizeof(Header) || header.rank < 0 ||
        static_cast<size_t>(header.rank) >= remotes_.size()) {
        return;
    }
    RemoteRank *remote = remotes_[static_cast<size_t>(header.rank)].get();
    if (remote == nullptr || (remote->gone && !remote->closing)) {
        return;  // who has been given up does not come back
    }
    remote->silent_since_ns = 0;
    Stream &stream = streams_[static_cast<size_t>(header.rank)];
    const bool is_newest = stream.early.empty() || header.number > stream.early.rbegin()->first;
    if (header.number < stream.heard || header.number - stream.heard >= kEarly ||
        !stream.early.emplace(header.number, std::string(packet.wire.text, header.bytes)).second) {
        fail(ODC_ERROR_INTERNAL, "packet ", header.number, " of rank ", header.rank, " came when ", stream.heard,
             " was next: the provider lost or repeated one");
    }
    if (is_newest) {
        remote->replica.last_call(header.last_call, header.last_minibatch, header.did_age_ns);
    }
    // Providers need not keep the order.
    for (auto next = stream.early.find(stream.heard); next != stream.early.end();
         next = stream.early.find(stream.heard)) {
        stream.in += next->second;
        stream.early.erase(next);
        ++stream.heard;
    }
    // Each once, even if hearing it throws.
    std::string in = std::move(stream.in);
    std::string_view rest = in;
    const auto keep_rest = [&] { stream.in.assign(rest); };
    try {
        while (const std::optional<ControlMessage> message = decode(&rest, static_cast<int>(remotes_.size()))) {
            heard_(*remote, *message);
        }
    } catch (...) {
        keep_rest();
        throw;
    }
    keep_rest();
}

}  // namespace odc
