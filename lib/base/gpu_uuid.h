// SPDX-License-Identifier: Apache-2.0
// The UUID of a GPU or a MIG instance: the same in every process, in the CUDA driver and in NVML.
#pragma once

#include <array>

namespace odc {

using GpuUuid = std::array<unsigned char, 16>;

}  // namespace odc
