// SPDX-License-Identifier: Apache-2.0
// Injected failures.
#pragma once

#include <string_view>

#include "results.h"

namespace fake_cuda {

// The result that this call of `function` must return at once; Success: it proceeds.
Result injected(std::string_view function);

}  // namespace fake_cuda
