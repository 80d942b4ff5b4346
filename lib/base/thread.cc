// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "base/error.h"

namespace odc {

namespace {

class NoSignals {
public:
    NoSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    NoSignals(const NoSignals &) = delete;
    NoSignals &operator=(const NoSignals &) = delete;

private:
    sigset_t before_{};
};

}  // namespace

std::thread start_quietly(const char *name, const char *words, std::function<void()> body) {
    try {
        const NoSignals quiet;
        std::thread thread(std::move(body));
        pthread_setname_np(thread.native_handle(), name);
        return thread;
    } catch (const std::system_error &refusal) {
        fail(ODC_ERROR_SYSTEM, words, " cannot be started (", refusal.code().message(),
             "); the limit of processes may be too low (ulimit -u, or pids.max of the control group)");
    }
}

}  // namespace odc
