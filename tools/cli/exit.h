// SPDX-License-Identifier: Apache-2.0
// How every part of the odc command ends it.
#pragma once

#include <string>

namespace odc_tool {

// Thrown: leaves the command with `status` after printing "odc: <message>" to stderr (nothing when empty).
struct Exit {
    int status;
    std::string message;
};

}  // namespace odc_tool
