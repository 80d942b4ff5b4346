// SPDX-License-Identifier: Apache-2.0
// Calls that are to fail.
#pragma once

#include <string_view>

#include "results.h"

namespace fake_cuda {

// What this call of `function` returns without being carried out; Success: nothing, it is.
Result injected(std::string_view function);

}  // namespace fake_cuda
