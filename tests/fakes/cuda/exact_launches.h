// SPDX-License-Identifier: Apache-2.0
// The kernels of exact sums in streams.
#pragma once

#include <string>

#include "modules.h"
#include "streams.h"

namespace fake_cuda {

bool is_exact(const std::string &kernel);
// What a launch does, whose parameters are copied; empty if a GPU would not stay within bounds. Additions to another GPU over a
// link that loses some are all lost.
Work exact_work(const FunctionHandle &function, unsigned grid_x, unsigned block_x, void **parameters);

}  // namespace fake_cuda
