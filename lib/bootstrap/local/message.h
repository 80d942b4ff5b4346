// SPDX-License-Identifier: Apache-2.0
// What ranks of one host hand each other when they meet: fixed messages with descriptors, over Unix sockets.
#pragma once

#include "base/deadline.h"
#include "base/unix_socket.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <sys/socket.h>

namespace odc {

// A rank, and how many of the message's descriptors are its own: memory, life, program, and a slot if it has one.
struct Member {
    int32_t rank;
    int32_t pid;
    int32_t fds;
};

constexpr size_t kMostMembers = kMostFds / 4;  // in one message

struct Message {
    enum Kind : uint32_t { Hello = 1, Welcome, Members, Refused };
    uint32_t magic;
    Kind kind;
    int32_t rank;  // of the sender
    int32_t size;
    int32_t pid;
    int32_t member_count;
    int64_t remaining_ms;  // Hello: until the sender's deadline
    union {
        Member members[kMostMembers];  // Hello, Welcome: the sender; Members: all but the leader, in order
        char text[1024];               // Refused
    };
};

struct ReceivedMessage {
    Message message;
    std::vector<Fd> fds;  // the members', in order
};

// Sends one message, with at most kMostFds descriptors; false if the other side is gone, or the time is over. A full
// socket is waited for: its reader is in odc_init too.
bool send_message(int socket, const Message &message, const std::vector<int> &fds, const Deadline &deadline);

enum class Received { Message, Nothing, Closed };
Received receive_message(int socket, ReceivedMessage *out);

Message make_message(Message::Kind kind, int rank, int size);

// Of the process that called connect() or listen() at the other end.
ucred peer_of(int socket);
// Whether a pidfd's process has ended, or a silent connection; not for -1.
bool dead(int life);
// A process of another pid namespace shows as 0: then nothing is known.
bool gone(int pid);

}  // namespace odc
