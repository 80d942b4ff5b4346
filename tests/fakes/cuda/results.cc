// SPDX-License-Identifier: Apache-2.0
#include "results.h"

#include <algorithm>
#include <iterator>

#include "functions.h"

namespace fake_cuda {

namespace {

struct Words {
    int result;
    const char *name;
    const char *text;
    bool sticks;
};

constexpr Words kWords[] = {
    {0, "CUDA_SUCCESS", "no error", false},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument", false},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory", false},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error", false},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down", false},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected", false},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal", false},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context", false},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered", true},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices", false},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed", false},
    {219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid OpenGL or DirectX context", true},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution", true},
    {226, "CUDA_ERROR_CONTAINED", "invalid access of memory or hardware error", true},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle", false},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found", false},
    {600, "CUDA_ERROR_NOT_READY", "device not ready", false},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered", true},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated", true},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered", true},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped",
     false},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region", false},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error", true},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered", true},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address", true},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space", true},
    {718, "CUDA_ERROR_INVALID_PC", "invalid program counter", true},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure", true},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted", false},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported", false},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing", false},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture", false},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not initiated in this stream", false},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream", false},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error", false},
};

const Words *words(Result result) {
    const auto *found = std::find_if(std::begin(kWords), std::end(kWords),
                                     [result](const Words &words) { return words.result == static_cast<int>(result); });
    return found == std::end(kWords) ? nullptr : found;
}

}  // namespace

bool sticks(Result result) {
    const Words *found = words(result);
    return found != nullptr && found->sticks;
}

Result cuGetErrorName(Result error, const char **text) {
    const Words *found = words(error);
    *text = found == nullptr ? nullptr : found->name;
    return found == nullptr ? Result::InvalidValue : Result::Success;
}

Result cuGetErrorString(Result error, const char **text) {
    const Words *found = words(error);
    *text = found == nullptr ? nullptr : found->text;
    return found == nullptr ? Result::InvalidValue : Result::Success;
}

}  // namespace fake_cuda
