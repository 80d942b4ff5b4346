// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, found in libcuda.so.1 where there is one: no CUDA library is needed to run.
#pragma once

#include <string>

#include "cuda_interface.h"

namespace odc::cuda {

struct Driver : Functions {
    int version;  // of the interface: 13000 is CUDA 13.0
};

// Empty: there is a driver, and a device that it may use. Else why not, in words. Loads and asks it once per process.
const std::string &why_not_driver();
// Only where there is a driver.
const Driver &driver();

// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
std::string words_of(Result result);

}  // namespace odc::cuda
