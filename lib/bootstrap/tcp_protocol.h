// SPDX-License-Identifier: Apache-2.0
// What rank 0 and another rank say to each other over TCP, and how each proves that it knows the job's secret:
//
//     rank r                                             rank 0
//     Hello (who, its nonce)             ─────────►
//                                        ◄─────────      Challenge (its nonce)
//     Proof (MAC of all so far)          ─────────►
//                                        ◄─────────      Reply: welcome, or refused and closed
//   and in each round
//     Entry (peer info, at once in round 1)   ─────────►
//                                        ◄─────────      Reply: all peer infos, or why they cannot join
//                                        ◄─────────      Reply: all ranks were handed them, or why not
//
// The MACs of entries and replies have a key made from the secret and both nonces, and the round's number in them, so
// they are worth nothing in any other conversation or round. Only "refused" has none: there is no common secret. Challenge and
// Proof stay as they are in every version from 3 on, like Hello (protocol/message.h).
#pragma once

#include "bootstrap/peer_info.h"
#include "bootstrap/protocol/message.h"

#include <sodium.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace odc {

struct Challenge {
    std::array<char, 8> magic;
    Nonce nonce;
};
static_assert(sizeof(Challenge) == 40 && offsetof(Challenge, nonce) == 8);

struct Proof {
    Mac mac;
};
static_assert(sizeof(Proof) == 32);

struct Entry {
    Mac mac;
    PeerInfo info;
};
static_assert(sizeof(Entry) == 2080 && offsetof(Entry, info) == 32);

static_assert(sizeof(Mac) == crypto_auth_hmacsha256_BYTES);

template <class... Parts>
Mac mac_of(std::string_view key, const Parts &...parts) {
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char *>(key.data()), key.size());
    const auto add = [&](std::string_view part) {
        crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char *>(part.data()), part.size());
    };
    (add(parts), ...);
    Mac mac;
    crypto_auth_hmacsha256_final(&state, mac.data());
    return mac;
}

inline bool same_mac(const Mac &left, const Mac &right) {
    return sodium_memcmp(left.data(), right.data(), left.size()) == 0;
}

// The labels keep either side from sending back what it was sent.
inline Mac proof_mac(const std::string &secret, const Hello &hello, const Challenge &challenge) {
    return mac_of(secret, "odc rank proves", bytes_of(hello), bytes_of(challenge));
}

inline Mac session_key(const std::string &secret, const Hello &hello, const Challenge &challenge) {
    return mac_of(secret, "odc rank 0 answers", bytes_of(hello), bytes_of(challenge));
}

// `round`: 1, 2, ...
inline Mac entry_mac(const Mac &session, uint32_t round, const PeerInfo &info) {
    return mac_of(bytes_of(session), "odc rank hands in", bytes_of(round), bytes_of(info));
}

// kFailed holds for every round, and may be sent between two.
inline Mac reply_mac(const Mac &session, uint32_t round, ReplyKind kind, std::string_view payload) {
    const uint32_t bound = kind == ReplyKind::kFailed ? 0 : round;
    return mac_of(bytes_of(session), bytes_of(kind), bytes_of(bound), payload);
}

inline Nonce random_nonce() {
    Nonce nonce;
    randombytes_buf(nonce.data(), nonce.size());
    return nonce;
}

// `host`: as errors name this rank's.
inline Hello hello_of(const std::string &host, int rank, int size, int64_t remaining_ms) {
    Hello hello = hello_of_rank(rank, size, remaining_ms);
    host.copy(hello.host.data(), hello.host.size() - 1);
    hello.nonce = random_nonce();
    return hello;
}

}  // namespace odc
