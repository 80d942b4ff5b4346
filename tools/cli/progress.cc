// SPDX-License-Identifier: Apache-2.0
// Draws the progress bar.
#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace odc_tool {
namespace {

constexpr int kWidth = 32;
constexpr double kLineEvery = 5;     // seconds
constexpr double kDrawEvery = 0.05;  // seconds
constexpr const char *kClearLine = "\r\033[K";

size_t columns() {
    winsize size{};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(double total)
    : total_(total), terminal_(isatty(STDERR_FILENO) == 1), next_line_(kLineEvery),
      begin_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
    if (terminal_) {
        fmt::print(stderr, "{}", kClearLine);
    }
}

void Progress::show(double done, const std::string &doing) {
    const double share = total_ > 0 ? std::clamp(done / total_, 0.0, 1.0) : 1.0;
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const std::string left = share > 0 ? fmt::format("{:.0f} s left", elapsed / share - elapsed) : "";
    if (terminal_) {
        if (elapsed < next_draw_) {
            return;
        }
        next_draw_ = elapsed + kDrawEvery;
        const int full = static_cast<int>(share * kWidth);
        const std::string line =
            fmt::format("[{:=<{}}{: <{}}] {:3.0f} %  {}  {}", "", full, "", kWidth - full, share * 100, left, doing);
        fmt::print(stderr, "{}{}", kClearLine, line.substr(0, columns() - 1));
        std::fflush(stderr);
    } else if (elapsed >= next_line_) {
        fmt::print(stderr, "{:3.0f} %  {}{}{}\n", share * 100, left, left.empty() ? "" : "  ", doing);
        next_line_ = elapsed + kLineEvery;
    }
}

}  // namespace odc_tool
