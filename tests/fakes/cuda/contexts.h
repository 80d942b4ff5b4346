// SPDX-License-Identifier: Apache-2.0
// Primary contexts, and which is current for a thread.
#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "results.h"

namespace odc::cuda {

// One for each device, for good.
struct ContextHandle {
    explicit ContextHandle(Device of) : device(of) {}

    const Device device;
    std::atomic<int> retained{0};                  // by cuDevicePrimaryCtxRetain
    std::atomic<bool> used{false};                 // by the user's program: fake_cuda_set_device and others
    std::atomic<Result> failure{Result::Success};  // sticky; the first one stays

    // The default streams, and those that wait for the legacy one, as long as they have work.
    std::shared_mutex streams_mutex;
    std::shared_ptr<StreamHandle> legacy;
    std::vector<std::shared_ptr<StreamHandle>> blocking;
};

}  // namespace odc::cuda

namespace fake_cuda {

ContextHandle &context_of(Device device);
bool is_live(Context context);
// NULL: none is.
Context current_context();
// The top of the thread's stack, which it becomes where the stack is empty.
void make_current(Context context);
// The first sticky error stays.
void fail_context(ContextHandle &context, Result result);

}  // namespace fake_cuda
