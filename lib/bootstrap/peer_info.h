// SPDX-License-Identifier: Apache-2.0
// What ranks that may be on several hosts tell each other when they join, in one peer info a round: first who they are, then,
// if there are several hosts, how the others reach them; in any round, why they cannot join.
#pragma once

#include "base/error.h"
#include "routing/nic_address.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

using PeerInfo = std::array<std::byte, 2048>;

// The peer info of round 1; text is cut to fit and ends with a zero.
struct IdentityInfo {
    uint64_t magic;
    int32_t rank;
    int32_t size;
    int32_t pid;
    uint32_t transports;  // that it may use (route_options.h)
    char identity[96];    // of the host: equal for ranks that share memory
    char host[64];        // as errors show it
    char group[48];       // only to notice that two groups meet by mistake
    char gpu[64];         // its name; empty: it has none
    // Random; the leader's is the name of its host's rendezvous, which no leftover of another job knows.
    unsigned char nonce[16];
};

// The peer infos of the later rounds, which only jobs on several hosts have: the NICs by which a rank can be reached; the ranks
// that did not answer there; the names of the endpoints at the NICs in use; and that the rank is ready.
struct NicInfo {
    uint64_t magic;
    int32_t rank;
    uint32_t count;
    std::array<NicAddress, kMaxNics> nics;
    ProbePorts probe_ports;   // of the NICs
    char why_no_fabric[256];  // empty: it can use libfabric
};
struct UnreachableInfo {
    static constexpr int kRanks = 8000;  // others are not probed

    uint64_t magic;
    int32_t rank;
    uint32_t count;  // of them
    std::array<uint8_t, kRanks / 8> ranks;

    bool is_unreachable(int other) const { return (ranks[static_cast<size_t>(other) / 8] >> other % 8 & 1) != 0; }
    void set_unreachable(int other);
};
struct EndpointName {
    uint32_t bytes;  // 0: the NIC is not used
    std::array<std::byte, 92> name;
};
struct EndpointInfo {
    uint64_t magic;
    int32_t rank;
    int32_t unused;
    std::array<unsigned char, 16> token;       // rank 0's is the job's: by it, endpoints know the members
    std::array<EndpointName, kMaxNics> names;  // by index among the NICs
    char why_no_gpu_direct[96];                // empty: they reach the memory of the rank's GPU
};
struct ReadyInfo {
    uint64_t magic;
    int32_t rank;
    int32_t unused;
};

PeerInfo peer_info_of(const IdentityInfo &content);
PeerInfo peer_info_of(const NicInfo &content);
PeerInfo peer_info_of(const UnreachableInfo &content);
PeerInfo peer_info_of(const EndpointInfo &content);
PeerInfo peer_info_of(const ReadyInfo &content);
// The peer info of a rank that cannot join: the others need not wait for it.
PeerInfo join_error_of(const Error &error);

// Throws ODC_ERROR_RENDEZVOUS with the message of a rank whose peer info is a join error; if there are several, of the first
// that did not fail because another had. `infos`: by rank, zeros where there is none yet.
void check_join_errors(const std::vector<PeerInfo> &infos);

// Throw ODC_ERROR_RENDEZVOUS when rank `rank` has handed in anything else. `magic` is the layout_magic() of its kind, which is
// set, with `rank`, by who fills it.
IdentityInfo read_identity(const PeerInfo &info, int rank);
NicInfo read_nics(const PeerInfo &info, int rank);
UnreachableInfo read_unreachable(const PeerInfo &info, int rank);
EndpointInfo read_endpoint(const PeerInfo &info, int rank);
void check_ready(const PeerInfo &info, int rank);

}  // namespace odc
