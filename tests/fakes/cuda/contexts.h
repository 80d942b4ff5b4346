// SPDX-License-Identifier: Apache-2.0
// Primary contexts, and the threads' current ones.
#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "results.h"

namespace odc::cuda {

// One per device, never destroyed.
struct ContextHandle {
    explicit ContextHandle(Device of) : device(of) {}

    const Device device;
    std::atomic<int> retained{0};                  // by cuDevicePrimaryCtxRetain
    std::atomic<bool> used{false};                 // by the user's program: fake_cuda_set_device and others
    std::atomic<Result> failure{Result::Success};  // sticky; the first one stays

    // The default streams, and the streams that are ordered with the legacy one, as long as they have work.
    std::shared_mutex streams_mutex;
    std::shared_ptr<StreamHandle> legacy;
    std::vector<std::shared_ptr<StreamHandle>> blocking;
};

}  // namespace odc::cuda

namespace fake_cuda {

ContextHandle &context_of(Device device);
bool is_live(Context context);
// NULL: none.
Context current_context();
// Replaces the top of the thread's stack, or pushes where the stack is empty.
void make_current(Context context);
// Keeps the first sticky error.
void fail_context(ContextHandle &context, Result result);

}  // namespace fake_cuda
