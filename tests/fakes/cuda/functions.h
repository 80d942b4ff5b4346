// SPDX-License-Identifier: Apache-2.0
// The driver's functions; calls.cc adds the common checks and hands them out.
#pragma once

#include "results.h"

namespace fake_cuda {

#define FAKE_DECLARE(name, version, parameters) Result name parameters;
ODC_CUDA_FUNCTIONS(FAKE_DECLARE)
ODC_CUDA_NEWER_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

}  // namespace fake_cuda
