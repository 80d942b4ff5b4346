// SPDX-License-Identifier: Apache-2.0
// Opens and counts descriptors.
#include "run/descriptors.h"

#include "cli/exit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>

namespace odc_tool {

namespace {

constexpr rlim_t kPassing = 16;  // open for a moment while a rank starts or ends, and some spare ones

rlim_t open_now() {
    std::error_code ignored;  // without /proc the count is too low, and pipe() will fail
    const std::filesystem::directory_iterator own("/proc/self/fd", ignored);
    return static_cast<rlim_t>(std::distance(begin(own), end(own)));
}

}  // namespace

void open_standard_streams() {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            open("/dev/null", O_RDWR);  // gets the lowest free number: fd
        }
    }
}

DescriptorLimit::DescriptorLimit(int ranks, size_t each) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlim_t needed = open_now() + static_cast<rlim_t>(ranks) * each + kPassing;
    if (needed > before_.rlim_max) {
        throw Exit{1,
                   fmt::format("{} ranks need {} open files, but 'ulimit -n' can be raised to {} at most; start fewer "
                               "ranks, or have the hard limit raised",
                               ranks, needed, before_.rlim_max)};
    }
    if (needed > before_.rlim_cur) {
        const rlimit raised = {before_.rlim_max, before_.rlim_max};
        setrlimit(RLIMIT_NOFILE, &raised);
    }
}

void DescriptorLimit::restore() const { setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace odc_tool
