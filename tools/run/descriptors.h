// SPDX-License-Identifier: Apache-2.0
// The descriptors of this process: the three standard ones, and their limit.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace odc_tool {

// Opens /dev/null in place of a closed standard stream, whose number the next descriptor would get.
void open_standard_streams();

// Raises the limit of open descriptors, for a supervisor with pipes to many ranks.
class DescriptorLimit {
public:
    // Raises the soft limit to the hard one if `ranks` times `each` more descriptors need it; throws Exit if that is not
    // enough.
    DescriptorLimit(int ranks, size_t each);
    // In a rank: restores the limit that this process was started with.
    void restore() const;

private:
    rlimit before_ = {};
};

}  // namespace odc_tool
