// SPDX-License-Identifier: Apache-2.0
// Events: points in streams.
#pragma once

#include "streams.h"

namespace odc::cuda {

struct EventHandle {
    explicit EventHandle(ContextHandle &of) : context(of) {}

    ContextHandle &context;
    std::mutex mutex;
    fake_cuda::Point point;  // empty: never recorded
    bool captured = false;   // recorded into a graph
};

}  // namespace odc::cuda
