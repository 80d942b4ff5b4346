// SPDX-License-Identifier: Apache-2.0
// Whether the way that a route would take leads anywhere. Before routes are final, each rank listens at the addresses of
// its NICs, at its probe ports, and probes those of its peers. Kernels answer each other, so that a rank that is busy is
// not taken for one that cannot be reached.
#pragma once

#include "base/acceptor.h"
#include "base/deadline.h"
#include "routing/nic_address.h"

#include <array>
#include <cstdint>
#include <vector>

namespace odc {

class ReachabilityProbe {
public:
    // Moves the NICs at which this rank cannot listen to `addresses.refused`.
    explicit ReachabilityProbe(NicAddresses &addresses);

    const ProbePorts &probe_ports() const { return probe_ports_; }

    struct Target {
        NicAddress from;  // this rank's
        NicAddress to;
        uint16_t probe_port;
    };
    // Probes all of them, many at once, and accepts the probes of as many ranks. Which targets, by index, gave no
    // answer in 5 s each. Throws ODC_ERROR_RENDEZVOUS when `deadline` is over before, and ODC_ERROR_SYSTEM when this
    // process may open no more sockets.
    std::vector<size_t> probe(const std::vector<Target> &targets, const Deadline &deadline);

private:
    size_t accept_probes();

    ProbePorts probe_ports_{};
    Acceptor acceptor_;
};

}  // namespace odc
