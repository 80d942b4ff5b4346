// SPDX-License-Identifier: Apache-2.0
// The ranks of one host meet at an abstract Unix socket: their leader listens, the others come, and each is handed every
// other's shared memory and a pidfd, by which its death will be seen even while its children keep its sockets open.
#pragma once

#include "fd.h"
#include "patience.h"

#include <string>
#include <vector>

namespace odc {

struct Attendant {
    int pid = 0;
    Fd memory;   // of its arena
    Fd life;     // pidfd
    Fd program;  // program.h
    Fd slot;     // of its inbox (inbox.h); invalid: it has no GPU
};

// What a rank hands to the others; stays the caller's.
struct Handout {
    int memory;
    int program;
    int slot;  // -1: none
};

// Who meets.
struct Party {
    std::string name;        // what they share: the launcher's job id, a random word, or what the user calls the job
    std::vector<int> ranks;  // of the job, those of this host, ascending; the first leads
    int rank;                // this one
    int size;                // of the job
    // By rank, or none: rank 0's to all others, theirs to it. Who becomes readable gave up before it came; rank 0 may have
    // done so for the whole job. They stay the caller's.
    std::vector<int> ties;
    // What says that these ranks are one host: "ODC_HOST_ID=\"a\""; empty: it cannot be wrong. For words.
    std::string named_by;
};

constexpr const char *kJobEnded = "rank 0 died or gave up in odc_init";

// All of the party in order, this rank included. Under a name given by hand a rank of an earlier start that never found
// its leader cannot be told from a late rank of this one; who has found its leader ends with it and joins no other.
// Throws ODC_ERROR_RENDEZVOUS, on all ranks that have come, when a rank is missing at the
// deadline (the earliest of theirs), dies, has another's number or another size in mind.
std::vector<Attendant> meet(const Party &party, const Handout &mine, const Patience &patience);

}  // namespace odc
