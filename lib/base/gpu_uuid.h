// SPDX-License-Identifier: Apache-2.0
// The number by which all processes, the CUDA driver and NVML know a GPU, or a part of one (MIG).
#pragma once

#include <array>

namespace odc {

using GpuUuid = std::array<unsigned char, 16>;

}  // namespace odc
