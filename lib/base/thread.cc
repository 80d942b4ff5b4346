// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <pthread.h>

#include <system_error>

#include "base/error.h"

namespace odc {

BlockSignals::BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
}

BlockSignals::~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::thread start_thread(const char *name, const char *description, std::function<void()> body) {
    try {
        const BlockSignals block;
        std::thread thread(std::move(body));
        pthread_setname_np(thread.native_handle(), name);
        return thread;
    } catch (const std::system_error &refusal) {
        fail(ODC_ERROR_SYSTEM,
             "{} cannot be started ({}); the limit of processes may be too low (ulimit -u, or "
             "pids.max of the control group)",
             description, refusal.code().message());
    }
}

}  // namespace odc
