// SPDX-License-Identifier: Apache-2.0
// One clock for all processes of a host (CLOCK_MONOTONIC), so that times of different ranks can be compared.
#pragma once

#include <chrono>
#include <cstdint>

namespace odc_tool {

inline int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace odc_tool
