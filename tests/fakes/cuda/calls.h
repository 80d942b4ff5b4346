// SPDX-License-Identifier: Apache-2.0
// What every call begins with.
#pragma once

#include "results.h"

namespace fake_cuda {

// cuInit was called in this process, not only in the one that it was forked from.
Result check_initialized();

}  // namespace fake_cuda
