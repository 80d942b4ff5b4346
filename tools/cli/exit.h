// SPDX-License-Identifier: Apache-2.0
// How the odc command exits on errors.
#pragma once

#include <string>

namespace odc_tool {

// Thrown to exit with `status` after printing "odc: <message>" to stderr (nothing if empty).
struct Exit {
    int status;
    std::string message;
};

}  // namespace odc_tool
