// SPDX-License-Identifier: Apache-2.0
// Control messages to and from the ranks of other hosts: a stream each way between two ranks, cut into numbered packets that
// carry the job's token. What does not carry it comes from a stranger and is dropped; so is no word of a member.
#pragma once

#include "transport/fabric/remote_rank.h"

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace odc {

using Token = std::array<unsigned char, 16>;  // random, known to the job's ranks only

class ReliableStream {
public:
    using Heard = std::function<void(RemoteRank &, const ControlMessage &)>;

    // `mine`: this rank's block. `remotes`: by rank, NULL for this host's.
    ReliableStream(const ControlBlock &mine, const Token &token,
                   const std::vector<std::unique_ptr<RemoteRank>> &remotes, Heard heard);
    ~ReliableStream();
    ReliableStream(const ReliableStream &) = delete;
    ReliableStream &operator=(const ReliableStream &) = delete;

    void listen(FabricEndpoint &endpoint);
    // Appends encoded control messages to what the peer will hear.
    void say(RemoteRank &remote, const std::string &messages);
    // Sends what there is room for; true if anything was sent.
    bool pump();
    bool refused() const { return refused_; }
    // Whether the provider has all that was said to it.
    bool delivered(const RemoteRank &remote) const;

    uint64_t sent() const { return sent_; }  // packets

private:
    struct Packet;
    struct Stream {
        std::deque<char> out;  // not yet in a packet
        uint64_t packed = 0;   // packets, numbers the next
        unsigned in_flight = 0;
        bool waiting = false;  // is in waiting_
        std::string in;        // of a control message that has not come as a whole
        uint64_t heard = 0;
        std::map<uint64_t, std::string> early;  // packets that have overtaken others
    };
    Packet &take(FabricEndpoint &endpoint);
    bool send(RemoteRank &remote);
    void sent(Packet &packet, const std::string &error);
    void received(Packet &packet, size_t bytes, const std::string &error);
    void hear(const Packet &packet, size_t bytes);
    void post(Packet &packet);
    bool receive(Packet &packet);

    const ControlBlock &mine_;
    Token token_;
    const std::vector<std::unique_ptr<RemoteRank>> &remotes_;
    Heard heard_;
    std::vector<Stream> streams_;        // by rank
    std::vector<RemoteRank *> waiting_;  // have something to say
    bool refused_ = false;
    uint64_t sent_ = 0;
    struct Slab {
        FabricEndpoint *endpoint;
        std::unique_ptr<Packet[]> packets;
        Exposed exposed;
    };
    std::vector<Slab> slabs_;
    std::vector<Packet *> free_;
    std::vector<Packet *> unposted_;  // receives that the provider had no room for
};

}  // namespace odc
