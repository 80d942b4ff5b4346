// SPDX-License-Identifier: Apache-2.0
// Library threads block all signals, which belong to the program's own threads.
#pragma once

#include <functional>
#include <thread>

namespace odc {

// `name`: as debuggers show it; `description`: for the error. Throws ODC_ERROR_SYSTEM.
std::thread start_thread(const char *name, const char *description, std::function<void()> body);

}  // namespace odc
