// SPDX-License-Identifier: Apache-2.0
// How processes failed, told in one line for all that failed in one way.
#pragma once

#include <string>
#include <vector>

namespace odc_tool {

// "rank 3", "ranks 0, 3", "ranks 0-6": numbers in a row are a range.
std::string enumerate(const std::string &noun, const std::vector<std::string> &labels);

struct Failure {
    std::string noun;   // "rank"
    std::string label;  // "3"
    std::string how;    // "exited with status 1"
};

class Failures {
public:
    void add(const Failure &failure);
    // The lines, the first failure's way first; then there are none left.
    std::vector<std::string> take();

private:
    struct Way {
        std::string noun;
        std::string how;
        std::vector<std::string> labels;  // in the order of failing
    };
    std::vector<Way> ways_;
};

}  // namespace odc_tool
