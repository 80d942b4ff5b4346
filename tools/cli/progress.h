// SPDX-License-Identifier: Apache-2.0
// How far a long command is, on stderr: a bar that redraws itself on a terminal, elsewhere a line now and then.
#pragma once

#include <chrono>
#include <string>

namespace odc_tool {

class Progress {
public:
    explicit Progress(double total);
    ~Progress();  // takes the bar away
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;

    // `done` of `total` are done; `doing` says what comes next.
    void show(double done, const std::string &doing);

private:
    double total_;
    bool terminal_;
    double next_line_ = 0;  // the share from which on the next plain line is written
    std::chrono::steady_clock::time_point begin_;
};

}  // namespace odc_tool
