// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>
#include <string_view>
#include <system_error>

#include "capture.h"
#include "contexts.h"
#include "devices.h"
#include "fake_cuda.h"
#include "faults.h"
#include "functions.h"
#include "settings.h"

namespace fake_cuda {

namespace {

std::atomic<pid_t> initialized_in{0};

constexpr std::string_view kBeforeInit[] = {"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"};

// Functions that need a current context that has not failed.
constexpr std::string_view kInContext[] = {"cuFlushGPUDirectRDMAWrites",
                                           "cuMemGetInfo",
                                           "cuMemHostRegister",
                                           "cuMemHostGetDevicePointer",
                                           "cuMemsetD8Async",
                                           "cuMemcpyAsync",
                                           "cuMemcpyBatchAsync",
                                           "cuStreamCreate",
                                           "cuStreamQuery",
                                           "cuStreamGetCtx",
                                           "cuStreamWaitEvent",
                                           "cuStreamIsCapturing",
                                           "cuStreamWriteValue64",
                                           "cuStreamWaitValue64",
                                           "cuEventCreate",
                                           "cuEventRecord",
                                           "cuModuleLoadData",
                                           "cuModuleGetFunction",
                                           "cuFuncLoad",
                                           "cuLaunchKernel"};

// Functions that need a current context, failed or not.
constexpr std::string_view kReleasing[] = {"cuMemHostUnregister", "cuStreamDestroy", "cuEventDestroy",
                                           "cuModuleUnload"};

// Functions that a capture in global mode forbids in all threads.
constexpr std::string_view kUnsafeInCapture[] = {"cuMemCreate",       "cuMemUnmap",          "cuMemSetAccess",
                                                 "cuMemHostRegister", "cuMemHostUnregister", "cuModuleLoadData",
                                                 "cuModuleUnload",    "cuEventQuery",        "cuStreamQuery"};

template <size_t kCount>
bool is_in(const std::string_view (&names)[kCount], std::string_view name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Result check_context(std::string_view name) {
    const bool works = is_in(kInContext, name);
    if (!works && !is_in(kReleasing, name)) {
        return Result::Success;
    }
    const Context context = current_context();
    if (context == nullptr) {
        return Result::InvalidContext;
    }
    return works ? context->failure.load() : Result::Success;
}

// A sticky injected error fails the context.
Result inject(const char *name) {
    const Result result = injected(name);
    if (const Context context = sticks(result) ? current_context() : nullptr; context != nullptr) {
        fail_context(*context, result);
    }
    return result;
}

Result before(const char *name) {
    if (!is_in(kBeforeInit, name)) {
        if (const Result result = check_initialized(); result != Result::Success) {
            return result;
        }
    }
    if (const Result result = inject(name); result != Result::Success) {
        return result;
    }
    if (const Result result = check_context(name); result != Result::Success) {
        return result;
    }
    return is_in(kUnsafeInCapture, name) ? check_unsafe_call() : Result::Success;
}

// The address returned for a function.
template <class Name, class Function, Function *function>
struct Entry;
template <class Name, class... Arguments, Result (*function)(Arguments...)>
struct Entry<Name, Result(Arguments...), function> {
    static Result call(Arguments... arguments) {
        Result result = before(Name::text);
        try {
            result = result == Result::Success ? function(arguments...) : result;
        } catch (const std::bad_alloc &) {
            result = Result::OutOfMemory;
        } catch (const std::system_error &) {  // no thread could be started
            result = Result::OutOfMemory;
        }
        if (verbose() && result != Result::Success && result != Result::NotReady) {
            std::fprintf(stderr, "fake CUDA: %s returns %d\n", Name::text, static_cast<int>(result));
        }
        return result;
    }
};

struct Listed {
    std::string_view name;
    int version;
    void *function;
};

#define FAKE_NAME(name, version, parameters)       \
    struct Name_##name {                           \
        static constexpr const char *text = #name; \
    };
ODC_CUDA_FUNCTIONS(FAKE_NAME)
ODC_CUDA_NEWER_FUNCTIONS(FAKE_NAME)
#undef FAKE_NAME

const Listed *find(std::string_view name) {
#define FAKE_LIST(name, version, parameters) \
    {#name, version, reinterpret_cast<void *>(&Entry<Name_##name, decltype(fake_cuda::name), fake_cuda::name>::call)},
    static const Listed all[] = {ODC_CUDA_FUNCTIONS(FAKE_LIST) ODC_CUDA_NEWER_FUNCTIONS(FAKE_LIST)};
#undef FAKE_LIST
    const Listed *found =
        std::find_if(std::begin(all), std::end(all), [name](const Listed &listed) { return listed.name == name; });
    return found == std::end(all) ? nullptr : found;
}

}  // namespace

Result check_initialized() { return initialized_in == getpid() ? Result::Success : Result::NotInitialized; }

// Not in a process forked from one that called it.
Result cuInit(unsigned flags) {
    if (flags != 0) {
        return Result::InvalidValue;
    }
    pid_t none = 0;
    if (!initialized_in.compare_exchange_strong(none, getpid()) && none != getpid()) {
        return Result::NotInitialized;
    }
    return devices().empty() ? Result::NoDevice : Result::Success;
}

}  // namespace fake_cuda

// Only with the version in libodc's table, so that a wrong version there is noticed. `found`, if given, is the reason.
extern "C" FAKE_CUDA_API odc::cuda::Result cuGetProcAddress_v2(const char *name, void **function, int version,
                                                               uint64_t flags, int *found) {
    const fake_cuda::Listed *listed = fake_cuda::find(name);
    const bool too_new = listed != nullptr && listed->version > fake_cuda::interface_version();
    *function = nullptr;
    if (found != nullptr) {
        *found = listed == nullptr ? 1 : too_new || listed->version != version ? 2 : 0;
    }
    if (flags != odc::cuda::kLegacyDefaultStream || listed == nullptr || too_new || listed->version != version) {
        return odc::cuda::Result::NotFound;
    }
    *function = listed->function;
    return odc::cuda::Result::Success;
}
