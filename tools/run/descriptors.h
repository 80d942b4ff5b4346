// SPDX-License-Identifier: Apache-2.0
// The descriptors of this process: the three standard ones, and how many it may open.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace odc_tool {

// Opens /dev/null in place of a closed standard stream, whose number the next descriptor would get.
void open_standard_streams();

// The right to open more descriptors, for a supervisor with pipes to many ranks.
class DescriptorLimit {
public:
    // Raises the soft limit to the hard one if `ranks` times `each` more descriptors need it; throws Exit when that is
    // not enough.
    DescriptorLimit(int ranks, size_t each);
    // In a rank: the limit that we were started with.
    void restore() const;

private:
    rlimit before_ = {};
};

}  // namespace odc_tool
