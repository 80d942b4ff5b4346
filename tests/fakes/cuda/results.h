// SPDX-License-Identifier: Apache-2.0
// Results of calls.
#pragma once

#include "cuda_interface.h"

namespace fake_cuda {

using namespace odc::cuda;

// Results that libodc does not distinguish.
constexpr Result kNoBinaryForGpu{209};
constexpr Result kInvalidPtx{218};
constexpr Result kJitDisabled{223};
constexpr Result kContained{226};
constexpr Result kMisalignedAddress{716};
constexpr Result kHostMemoryNotRegistered{713};
constexpr Result kCaptureUnsupported{900};
constexpr Result kCaptureInvalidated{901};
constexpr Result kCaptureUnmatched{903};
constexpr Result kCaptureImplicit{906};

// Whether it makes the context unusable.
bool sticks(Result result);

}  // namespace fake_cuda
