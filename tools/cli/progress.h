// SPDX-License-Identifier: Apache-2.0
// The progress of a long command on stderr: a bar that redraws itself on a terminal, otherwise a line every
// five seconds, so that a command of seconds prints none.
#pragma once

#include <chrono>
#include <string>

namespace odc_tool {

class Progress {
public:
    explicit Progress(double total);
    ~Progress();  // removes the bar
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;

    // Adds work to the total.
    void extend(double more) { total_ += more; }
    // `done` of `total` are done; `doing` describes the next step.
    void show(double done, const std::string &doing);

private:
    double total_;
    bool terminal_;
    double next_draw_ = 0;  // seconds since the construction
    double next_line_;      // the same, of plain lines
    std::chrono::steady_clock::time_point begin_;
};

}  // namespace odc_tool
