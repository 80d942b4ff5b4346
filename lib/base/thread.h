// SPDX-License-Identifier: Apache-2.0
// Threads of the library: signals are for the program's own, so these get none.
#pragma once

#include <functional>
#include <thread>

namespace odc {

// `name`: as tools show it; `words`: as an error names it. Throws ODC_ERROR_SYSTEM.
std::thread start_quietly(const char *name, const char *words, std::function<void()> body);

}  // namespace odc
