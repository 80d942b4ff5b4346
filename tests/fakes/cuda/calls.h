// SPDX-License-Identifier: Apache-2.0
// The checks at the beginning of every call.
#pragma once

#include "results.h"

namespace fake_cuda {

// Whether cuInit was called in this process, not only in its parent.
Result check_initialized();

}  // namespace fake_cuda
