// SPDX-License-Identifier: Apache-2.0
// The messages of both rendezvous protocols. A Hello stays as it is in every version from 3 on, so that versions can tell each
// other apart; numbers are little-endian.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace odc {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kRendezvousMagic = {'o', 'd', 'c', ' ', 'm', 'e', 'e', 't'};
constexpr size_t kMaxSentence = 4096;
constexpr size_t kMostNamed = 16;  // missing ranks that a sentence names before it counts the rest

// Connections that have not said who they are may be anybody's: at most this many at a time, plus one for each rank.
constexpr size_t kMostUndecided = 64;
constexpr int64_t kFailureNs = 2'000'000'000;  // for late ranks to come and read why the others did not meet

using Nonce = std::array<unsigned char, 32>;
using Mac = std::array<unsigned char, 32>;  // HMAC-SHA256

struct Hello {
    std::array<char, 8> magic;
    uint32_t version;
    int32_t rank;
    int32_t size;
    int32_t pid;
    int64_t remaining_ms;       // until this rank's deadline
    std::array<char, 64> host;  // empty: the server's
    Nonce nonce;                // zeros: what follows is not authenticated by a secret
};

enum class ReplyKind : uint32_t { kWelcome = 1, kRefused, kInfos, kFailed, kMet, kHandles };

struct Reply {
    std::array<char, 8> magic;
    ReplyKind kind;
    uint32_t bytes;  // that follow: what was handed in, or a sentence
    Mac mac;         // zeros where there is no secret
};

template <class Message>
std::string_view bytes_of(const Message &message) {
    return {reinterpret_cast<const char *>(&message), sizeof(message)};
}

// Without host and nonce.
Hello hello_of_rank(int rank, int size, int64_t remaining_ms);
// Whether `bytes` are a Hello, of any version, or begin one.
bool begins_hello(std::string_view bytes);
// Throws ODC_ERROR_RENDEZVOUS when that rank and `server` are of different versions or jobs.
void check_hello(const Hello &hello, const Hello &server);
// Whether it is one, and its `bytes` are at most those of a sentence or `most_payload`, whichever is more.
bool is_reply(const Reply &reply, size_t most_payload);

// "rank 2 (pid 77 on node1)"; the name comes over the network, so only plain characters are repeated.
std::string who(const Hello &hello);

}  // namespace odc
