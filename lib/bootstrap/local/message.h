// SPDX-License-Identifier: Apache-2.0
// The rendezvous messages (protocol/message.h) of the ranks of one host: each is a datagram, which carries the descriptors of the
// ranks that it is about.
#pragma once

#include "base/deadline.h"
#include "base/unix_socket.h"
#include "bootstrap/protocol/message.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace odc {

// A rank, and how many of the message's descriptors are its own: memory, pidfd, program, and the IPC channel if it has a GPU.
struct SentPeer {
    int32_t rank;
    int32_t pid;
    int32_t fds;
};

constexpr size_t kMostSentPeers = kMostFds / 4;  // in one message

// With their descriptors, in order.
struct PeersToSend {
    std::vector<SentPeer> peers;
    std::vector<int> fds;
};
struct ReceivedPeers {
    std::vector<SentPeer> peers;
    std::vector<Fd> fds;
};

// They send one message each; false if the other side is gone, or the time is over. A full socket is waited for: its reader is
// in odc_init too.
bool send_hello(int socket, const Hello &hello, const PeersToSend &self, const Deadline &deadline);
bool send_reply(int socket, ReplyKind kind, const PeersToSend &peers, const Deadline &deadline);
bool send_failure(int socket, const std::string &why, const Deadline &deadline);

enum class Received { Message, Nothing, Closed };
// A Hello of another version comes without the rest.
Received receive_hello(int socket, Hello *hello, ReceivedPeers *self);
Received receive_reply(int socket, ReplyKind *kind, std::string *why, ReceivedPeers *peers);

}  // namespace odc
