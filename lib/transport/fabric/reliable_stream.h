// SPDX-License-Identifier: Apache-2.0
// Control messages to and from ranks of other hosts: a stream in each direction between two ranks, cut into numbered packets
// with the job's token. Packets without the token are dropped. A lost or repeated packet of a member is a fatal error.
#pragma once

#include "transport/fabric/remote_rank.h"
#include "transport/fabric/types.h"

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace odc {

class ReliableStream {
public:
    using OnMessage = std::function<void(RemoteRank &, const ControlMessage &)>;

    // `mine`: this rank's control block. `remotes`: by rank, NULL for this host's ranks.
    ReliableStream(const ControlBlock &mine, const Token &token,
                   const std::vector<std::unique_ptr<RemoteRank>> &remotes, OnMessage on_message);
    ~ReliableStream();
    ReliableStream(const ReliableStream &) = delete;
    ReliableStream &operator=(const ReliableStream &) = delete;

    void post_receives(FabricEndpoint &endpoint);
    // Queues encoded control messages for the rank.
    void send(RemoteRank &remote, const std::string &messages);
    // Sends packets while the provider takes them; true if it sent any.
    bool pump();
    // The provider had no room (FI_EAGAIN), and does not tell when it has: call pump() again soon.
    bool must_retry() const { return must_retry_; }
    // Whether the provider has sent all messages to the rank.
    bool delivered(const RemoteRank &remote) const;

    uint64_t sent() const { return sent_; }  // packets

private:
    struct Header;
    struct Packet;
    struct Stream {
        std::deque<char> out;    // not in a packet yet
        uint64_t next_sent = 0;  // number of the next packet
        unsigned in_flight = 0;
        bool waiting = false;                   // is in waiting_
        std::string in;                         // the beginning of an incomplete message
        uint64_t next_received = 0;             // number of the next packet in order
        std::map<uint64_t, std::string> early;  // packets that came out of order, by number
    };
    Packet &take(FabricEndpoint &endpoint);
    bool send_packet(RemoteRank &remote);
    void sent(Packet &packet, const std::string &error);
    void received(Packet &packet, size_t bytes, const std::string &error);
    void deliver(const Packet &packet, size_t bytes);
    void post_receive(Packet &packet);
    bool try_post_receive(Packet &packet);

    const ControlBlock &mine_;
    Token token_;
    const std::vector<std::unique_ptr<RemoteRank>> &remotes_;
    OnMessage on_message_;
    std::vector<Stream> streams_;        // by rank
    std::vector<RemoteRank *> waiting_;  // have messages to send
    bool must_retry_ = false;
    uint64_t sent_ = 0;
    struct Slab {
        FabricEndpoint *endpoint;
        std::unique_ptr<Packet[]> packets;
        MemoryRegion region;
    };
    std::vector<Slab> slabs_;
    std::vector<Packet *> free_;
    std::vector<Packet *> unposted_;  // receives to be posted when the provider has room
};

}  // namespace odc
