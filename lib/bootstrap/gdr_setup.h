// SPDX-License-Identifier: Apache-2.0
// GPUDirect RDMA: network adapters that read and write the memory of this rank's GPU themselves. It is each rank's own
// affair: peers see an address and a key, whatever memory is behind them.
#pragma once

#include <string>

namespace odc {

class Cuda;
class Deadline;
class Fabric;

// Empty: it may be tried. Else why not.
std::string why_not_gpu_direct(const Cuda *cuda);
// Everything that goes between hosts from and to GPU memory goes through slots there from now on. `fabric`: reaches the GPU,
// and is not started yet. Throws where the provider or the driver refuses; once `fabric` is gone, Cuda::close_gdr
// undoes it.
void open_gpu_direct(Cuda &cuda, Fabric &fabric, int rank, const Deadline &deadline);

}  // namespace odc
