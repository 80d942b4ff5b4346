// SPDX-License-Identifier: Apache-2.0
// Ways by which ranks that may be on several hosts tell each other who they are, in rounds: in each, every rank hands in
// one peer info and gets all peer infos in rank order. What follows on each host is in local/rendezvous.h.
#pragma once

#include "base/deadline.h"
#include "bootstrap/peer_info.h"

#include <memory>
#include <string>
#include <vector>

namespace odc {

// Used by one thread. Failures are ODC_ERROR_RENDEZVOUS, when they concern the rendezvous, and then most ways tell them to
// all ranks; after one, and after leave(), there is no further round.
class Allgather {
public:
    virtual ~Allgather() = default;
    // Takes part in the next round, to which all ranks must come.
    virtual std::vector<PeerInfo> all_gather(const PeerInfo &mine) = 0;
    // Takes the place of the next round: hands in `join_error`, and waits for the others only where it would not reach them
    // otherwise.
    virtual void leave(const PeerInfo &join_error) = 0;
    // By rank, between two rounds: rank 0 has a descriptor to each other rank, the others one to rank 0; -1 or past the end: none.
    // One is readable if its rank has gone, has handed in its next peer info, or (rank 0) has said why the job fails.
    virtual std::vector<int> liveness_fds() const { return {}; }
};

// The `deadline` of all rounds must outlive the all-gather.

// Rank 0 listens at `endpoint` ("host:port", "[v6]:port"); the others prove that they know `secret`, which is not empty
// (HMAC challenge-response in both directions), before anything of theirs is believed. `host`: as errors name this rank's. After
// sodium_init.
std::unique_ptr<Allgather> make_allgather_tcp(const std::string &endpoint, const std::string &secret,
                                              const std::string &host, int rank, int size, const Deadline &deadline);

// Through the PMIx server of the launcher; the library is opened at run time.
std::unique_ptr<Allgather> make_allgather_pmix(int rank, int size, const Deadline &deadline);
// NULL when make_allgather_pmix can be tried here, else why not.
const char *why_not_pmix();

// Through the caller's function, which is called once a round.
std::unique_ptr<Allgather> make_allgather_callback(odc_all_gather_fn all_gather, void *arg, int size);

}  // namespace odc
