// SPDX-License-Identifier: Apache-2.0
// Whether the way that a route would take leads anywhere. Before routes are final, each rank listens at the addresses of
// its ports, its doorsteps, and knocks at those of its peers. Kernels answer each other, so that a rank that is busy is
// not taken for one that cannot be reached.
#pragma once

#include "base/deadline.h"
#include "base/fd.h"
#include "routing/nic_address.h"

#include <array>
#include <cstdint>
#include <vector>

namespace odc {

class Porch {
public:
    // Moves to `ports.refused` where this rank cannot listen.
    explicit Porch(Ports &ports);

    const Doorsteps &doorsteps() const { return doorsteps_; }

    struct Visit {
        Port from;  // this rank's
        Port to;
        uint16_t doorstep;
    };
    // Knocks at all of them, many at once, and lets in as many who knock here. The places of the visits that got no
    // answer in 5 s each. Throws ODC_ERROR_RENDEZVOUS when `patience` is over before, and ODC_ERROR_SYSTEM when this
    // process may open no more sockets.
    std::vector<size_t> knock(const std::vector<Visit> &visits, const Patience &patience);

private:
    size_t let_in();

    Doorsteps doorsteps_{};
    std::vector<Fd> listeners_;
};

}  // namespace odc
