// SPDX-License-Identifier: Apache-2.0
#include "contexts.h"

#include <iterator>

#include "devices.h"
#include "functions.h"

namespace fake_cuda {

namespace {

// Never destroyed: the program may make calls until it ends.
struct Stack {
    Context contexts[256];
    size_t depth;
};
thread_local Stack stack;

std::vector<std::unique_ptr<ContextHandle>> *make_contexts() {
    auto *all = new std::vector<std::unique_ptr<ContextHandle>>;
    for (int device = 0; device < static_cast<int>(devices().size()); ++device) {
        all->push_back(std::make_unique<ContextHandle>(device));
    }
    return all;
}

std::vector<std::unique_ptr<ContextHandle>> &contexts() {
    static auto *one = make_contexts();
    return *one;
}

}  // namespace

ContextHandle &context_of(Device device) { return *contexts()[static_cast<size_t>(device)]; }

bool is_live(Context context) {
    for (const auto &one : contexts()) {
        if (one.get() == context) {
            return one->retained > 0 || one->used;
        }
    }
    return false;
}

Context current_context() {
    const Context top = stack.depth == 0 ? nullptr : stack.contexts[stack.depth - 1];
    return is_live(top) ? top : nullptr;
}

void make_current(Context context) {
    stack.depth += stack.depth == 0 ? 1 : 0;
    stack.contexts[stack.depth - 1] = context;
}

void fail_context(ContextHandle &context, Result result) {
    Result none = Result::Success;
    context.failure.compare_exchange_strong(none, result);
}

Result cuDevicePrimaryCtxRetain(Context *context, Device device) {
    if (!is_device(device)) {
        return Result::InvalidDevice;
    }
    ContextHandle &one = context_of(device);
    if (one.failure != Result::Success) {
        return one.failure;
    }
    ++one.retained;
    *context = &one;
    return Result::Success;
}

Result cuDevicePrimaryCtxRelease(Device device) {
    if (!is_device(device)) {
        return Result::InvalidDevice;
    }
    std::atomic<int> &retained = context_of(device).retained;
    int count = retained;
    while (count > 0 && !retained.compare_exchange_weak(count, count - 1)) {
    }
    return count > 0 ? Result::Success : Result::InvalidContext;
}

Result cuCtxPushCurrent(Context context) {
    if (!is_live(context) || stack.depth == std::size(stack.contexts)) {
        return Result::InvalidContext;
    }
    stack.contexts[stack.depth++] = context;
    return Result::Success;
}

Result cuCtxPopCurrent(Context *context) {
    if (stack.depth == 0) {
        return Result::InvalidContext;
    }
    --stack.depth;
    if (context != nullptr) {
        *context = stack.contexts[stack.depth];
    }
    return Result::Success;
}

}  // namespace fake_cuda
