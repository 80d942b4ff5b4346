// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/gpu_error.h"

#include "base/error.h"

namespace odc {

using cuda::Result;

namespace {

// Errors of kernels or hardware that every later call repeats.
bool is_sticky(Result result) {
    switch (static_cast<int>(result)) {
        case 214:               // ECC_UNCORRECTABLE
        case 220:               // NVLINK_UNCORRECTABLE
        case 226:               // CONTAINED: an access of another GPU's memory
        case 700:               // ILLEGAL_ADDRESS
        case 702:               // LAUNCH_TIMEOUT
        case 710:               // ASSERT
        case 714:               // HARDWARE_STACK_ERROR
        case 715:               // ILLEGAL_INSTRUCTION
        case 716:               // MISALIGNED_ADDRESS
        case 717:               // INVALID_ADDRESS_SPACE
        case 718:               // INVALID_PC
        case 719:               // LAUNCH_FAILED
        case 721:               // TENSOR_MEMORY_LEAK
        case 911: return true;  // EXTERNAL_DEVICE
        default: return false;
    }
}

}  // namespace

// CUDA does not tell of which kernel.
void fail_gpu(const std::string &name, Result result) {
    fail(ODC_ERROR_DEVICE,
         "{} has failed: {}; something that was enqueued there earlier did it, most likely a kernel "
         "of the program (CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer finds it), and this process "
         "cannot use the GPU any more",
         name, cuda::result_text(result));
}

void check_not_failed(const std::string &name, Result result) {
    if (is_sticky(result)) {
        fail_gpu(name, result);
    }
}

std::string cure_of_loading(Result result) {
    switch (static_cast<int>(result)) {
        case 221:
            return "; it lacks its compiler, libnvidia-ptxjitcompiler.so.1: install it, or in a container mount it "
                   "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)";
        case 222: return "; it is older than the kernels: install one of CUDA 12.1 or later";
        case 223: return "; unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT";
        default: return "";
    }
}

}  // namespace odc
