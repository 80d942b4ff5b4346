// SPDX-License-Identifier: Apache-2.0
#include "run/signals.h"

#include "cli/exit.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace odc_tool {

namespace {

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH};

}  // namespace

Signals::Signals() {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    for (const int signal : kPassedOn) {
        sigaddset(&wanted, signal);
    }
    fd_ = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) {
        throw Exit{1, fmt::format("signals cannot be received: {}", strerror(errno))};
    }
    sigprocmask(SIG_BLOCK, &wanted, &mask_before_);
    struct sigaction action = {};
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, &pipe_before_);
    action.sa_handler = SIG_DFL;  // the parent may have left it ignored, and then children cannot be waited for
    sigaction(SIGCHLD, &action, nullptr);
}

Signals::~Signals() {
    close(fd_);
    restore();
}

void Signals::restore() const {
    sigaction(SIGPIPE, &pipe_before_, nullptr);
    restore_mask();
}

void Signals::restore_mask() const { sigprocmask(SIG_SETMASK, &mask_before_, nullptr); }

int Signals::take() const {
    signalfd_siginfo info;
    return read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace odc_tool
