// SPDX-License-Identifier: Apache-2.0
// What the driver's errors are to libodc, and what to do about them.
#pragma once

#include <string>

#include "transport/cuda/driver.h"

namespace odc {

// Throws ODC_ERROR_DEVICE: work that was enqueued on this GPU earlier has failed.
[[noreturn]] void fail_gpu(const std::string &name, cuda::Result result);

// The same if `result` is an error of a kernel or the hardware, which every later call repeats.
void check_not_failed(const std::string &name, cuda::Result result);

// What to do if the driver cannot compile PTX; "" for other results.
std::string cure_of_loading(cuda::Result result);

}  // namespace odc
