// SPDX-License-Identifier: Apache-2.0
// What ranks that may be on several hosts tell each other when they join, in one card a round: first who they are, then,
// if there are several hosts, how the others reach them; in any round, why they cannot join.
#pragma once

#include "base/error.h"
#include "routing/nic_address.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

using Card = std::array<std::byte, 2048>;

// The card of round 1; text is cut to fit and ends with a zero.
struct IdentityCard {
    uint64_t magic;
    int32_t rank;
    int32_t size;
    int32_t pid;
    uint32_t transports;      // that it may use (route_options.h)
    char identity[96];        // of the host: equal for ranks that share memory
    char host[64];            // as errors show it
    char group[48];           // only to notice that two groups meet by mistake
    char gpu[64];             // its name; empty: it has none
    unsigned char nonce[16];  // random; its leader's names a host's meeting, so no leftover of another job knows it
};

// Of the later rounds, which only jobs on several hosts have: by which NICs a rank could be reached; who has not
// answered there; once all know which are used, the names of its endpoints; and that it is ready.
struct PortsCard {
    uint64_t magic;
    int32_t rank;
    uint32_t count;
    std::array<Port, kMaxPorts> ports;
    Doorsteps doorsteps;      // of the ports
    char why_no_fabric[256];  // empty: it can use libfabric
};
struct SilenceCard {
    static constexpr int kRanks = 8000;  // others are not knocked at

    uint64_t magic;
    int32_t rank;
    uint32_t count;  // of the silent ranks
    std::array<uint8_t, kRanks / 8> silent;

    bool is_silent(int other) const { return (silent[static_cast<size_t>(other) / 8] >> other % 8 & 1) != 0; }
    void set_silent(int other);
};
struct EndpointName {
    uint32_t bytes;  // 0: the port is not used
    std::array<std::byte, 92> name;
};
struct EndpointCard {
    uint64_t magic;
    int32_t rank;
    int32_t unused;
    std::array<unsigned char, 16> token;        // rank 0's is the job's: by it, endpoints know the members
    std::array<EndpointName, kMaxPorts> names;  // by place in `ports`
    char why_no_gpu_direct[96];                 // empty: they reach the memory of the rank's GPU
};
struct ReadyCard {
    uint64_t magic;
    int32_t rank;
    int32_t unused;
};

Card card_of(const IdentityCard &content);
Card card_of(const PortsCard &content);
Card card_of(const SilenceCard &content);
Card card_of(const EndpointCard &content);
Card card_of(const ReadyCard &content);
// The card of a rank that cannot join: the others need not wait for it.
Card regret_of(const Error &error);

// Throws ODC_ERROR_RENDEZVOUS with the words of a rank whose card is a regret; of several, the first whose own fault it
// is, as the others have met with it only. `cards`: by rank, zeros where there is none yet.
void check_regrets(const std::vector<Card> &cards);

// Throw ODC_ERROR_RENDEZVOUS when rank `rank` has handed in anything else. `magic` and `rank` of a card are set by who
// fills it, with these:
constexpr uint64_t kIdentityMagic = 0x6f64632d69642d39;  // "odc-id-9": changes with card, rounds, notices
constexpr uint64_t kPortsMagic = 0x6f64632d70742d33;     // "odc-pt-3": the same
constexpr uint64_t kSilenceMagic = 0x6f64632d73692d31;   // "odc-si-1": the same
constexpr uint64_t kEndpointMagic = 0x6f64632d65702d33;  // "odc-ep-3": the same
constexpr uint64_t kReadyMagic = 0x6f64632d72642d31;     // "odc-rd-1": the same
IdentityCard read_identity(const Card &card, int rank);
PortsCard read_ports(const Card &card, int rank);
SilenceCard read_silence(const Card &card, int rank);
EndpointCard read_endpoint(const Card &card, int rank);
void check_ready(const Card &card, int rank);

}  // namespace odc
