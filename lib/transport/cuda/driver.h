// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, loaded from libcuda.so.1 if there is one; no other CUDA library is needed.
#pragma once

#include <string>

#include "cuda_interface.h"

namespace odc::cuda {

struct Driver : Functions {
    int version;  // 13000 is CUDA 13.0
};

// Why this process cannot use CUDA; empty if there is a driver with a device. Loads the driver once per process.
const std::string &why_not_driver();
// Valid only if why_not_driver() is empty.
const Driver &driver();

// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
std::string result_text(Result result);

}  // namespace odc::cuda
