// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "base/error.h"

namespace odc {

namespace {

class BlockSignals {
public:
    BlockSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    BlockSignals(const BlockSignals &) = delete;
    BlockSignals &operator=(const BlockSignals &) = delete;

private:
    sigset_t before_{};
};

}  // namespace

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
