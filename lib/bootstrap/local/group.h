// SPDX-License-Identifier: Apache-2.0
// The ranks of one host that meet, and what they hand each other.
#pragma once

#include "base/fd.h"
#include "bootstrap/local/message.h"

#include <string>
#include <vector>

namespace odc {

struct LocalPeer {
    int rank = -1;
    int pid = 0;
    Fd memory;  // of its arena
    Fd pidfd;
    Fd program;  // program.h
    Fd ipc;      // of its IPC channel (ipc_channel.h); invalid: it has no GPU
};

// What a rank hands to the others; stays the caller's.
struct PeerHandles {
    int memory;
    int program;
    int ipc;  // -1: none
};

// The ranks of one host, as one of them meets the others.
struct LocalGroup {
    std::string name;        // what they share: the launcher's job id, a random word, or what the user calls the job
    std::vector<int> ranks;  // of the job, those of this host, ascending; the first leads
    int rank;                // this one
    int size;                // of the job
    // By rank, as Allgather::liveness_fds, or empty; the caller keeps owning them. A readable one says that its rank gave up before
    // it came here, perhaps (rank 0) for the whole job.
    std::vector<int> liveness_fds;
    // What says that these ranks are one host: "ODC_HOST_ID=\"a\""; empty: it cannot be wrong. For messages.
    std::string named_by;
};

// Convert what ranks hand each other, from and to the descriptors of a message.
std::vector<LocalPeer> local_peers_of(ReceivedPeers &&received);
void add_peer(const LocalPeer &one, PeersToSend *to);
// This rank's own.
LocalPeer own_local_peer(int rank, const PeerHandles &mine);

// What to add to the message about ranks that have not found each other.
std::string doubt(const LocalGroup &group);

}  // namespace odc
