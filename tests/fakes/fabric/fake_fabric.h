// SPDX-License-Identifier: Apache-2.0
// A libfabric.so.1 for tests: RDMA adapters that access GPU memory, on a machine with only loopback TCP and the fake CUDA
// driver (fake_cuda). It is the machine's libfabric, whose tcp;ofi_rxm on lo it presents as another provider of a newer
// version, with FI_HMEM for registered GPU memory added. An operation impossible on an adapter ends the program.
//
// Environment:
//   FAKE_FABRIC_DOMAINS=NAMES  the provider's domains, rdmap79s0-rdm unless given; the provider is efa
//   FAKE_FABRIC_VERSION=1.22   of libfabric, as it says; 1.22 unless given
//   FAKE_FABRIC_GPU=WHAT       GPU memory can be reached (yes, unless given), only by calls of CUDA (calls), not at all
//                              (no), or it is refused when it is registered (refused)
//   FAKE_FABRIC_LOCAL=1        the adapters reach registered host memory only (FI_MR_LOCAL)
//   FAKE_FABRIC_STUCK_BYTES=N  reads of N bytes or more never complete, and their endpoints stay open
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <string>

namespace fake_fabric {

struct Real {
    decltype(&::fi_getinfo) getinfo;
    decltype(&::fi_freeinfo) freeinfo;
    decltype(&::fi_dupinfo) dupinfo;
    decltype(&::fi_fabric) fabric;
    decltype(&::fi_strerror) strerror;
};
const Real &real();

std::string setting(const char *name, const char *otherwise);
bool is_local();  // FAKE_FABRIC_LOCAL

// The same as the real libfabric's, to be freed.
fi_info *translated(const fi_info &info);

// Gives a domain opened by the real libfabric an adapter's operations, and no others.
void take_over(fid_domain &domain);

}  // namespace fake_fabric
