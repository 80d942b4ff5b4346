// SPDX-License-Identifier: Apache-2.0
// Library threads block all signals, which belong to the program's own threads.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

namespace odc {

// All signals, on this thread, while it exists; a thread that is started meanwhile inherits that.
class BlockSignals {
public:
    BlockSignals();
    ~BlockSignals();
    BlockSignals(const BlockSignals &) = delete;
    BlockSignals &operator=(const BlockSignals &) = delete;

private:
    sigset_t before_{};
};

// `name`: as debuggers show it; `description`: for the error. Throws ODC_ERROR_SYSTEM.
std::thread start_thread(const char *name, const char *description, std::function<void()> body);

}  // namespace odc
