// SPDX-License-Identifier: Apache-2.0
#include "run/groups.h"

#include "cli/exit.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace odc_tool {

Groups::Groups(size_t count) : count_(count) {
    void *memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw Exit{1, fmt::format("no memory for the list of process groups: {}", strerror(errno))};
    }
    pids_ = static_cast<pid_t *>(memory);
}

Groups::~Groups() { munmap(pids_, bytes()); }

bool Groups::contains(pid_t group) const { return std::find(pids_, pids_ + count_, group) != pids_ + count_; }

void Groups::forget_ended() {
    std::replace_if(
        pids_, pids_ + count_, [](pid_t group) { return group != 0 && kill(-group, 0) != 0; }, 0);
}

void Groups::signal_all(int signal) const {
    for (size_t index = 0; index < count_; ++index) {
        if (pids_[index] != 0) {  // 0: the group is empty
            kill(-pids_[index], signal);
        }
    }
}

}  // namespace odc_tool
