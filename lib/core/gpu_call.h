// SPDX-License-Identifier: Apache-2.0
// How core calls CUDA, and what it keeps with a shard there.
#pragma once

#include <new>

#include "core/job.h"
#include "core/shard.h"
#include "transport/cuda/device.h"

namespace odc {

class PinnedMemory;

// Calls what uses CUDA. A GPU that has failed is a job error at once.
template <class Body>
void call_gpu(Job &job, const CudaDevice &device, Body body) {
    try {
        const CudaDevice::Scope scope(device);
        body();
    } catch (const Error &error) {
        if (error.status() == ODC_ERROR_DEVICE) {
            job.fail_job(ODC_ERROR_DEVICE, formatted("{}: {}", job.who(job.rank()), error.what()));
        }
        throw;
    }
}

// Calls what enqueues pending work. If it fails halfway, the work before is never seen done, so the job fails.
template <class Body>
void enqueue(Job &job, const CudaDevice &device, Call call, Body body) {
    call_gpu(job, device, [&] {
        try {
            body();
        } catch (const std::bad_alloc &) {
            job.fail_halfway(call);
        }
    });
}

// What a shard's own slice needs, if it is not empty.
struct GpuSliceState : EngineState {
    cuda::Event published = nullptr;  // recorded behind the slice's publish, for this rank's other streams
    cuda::Address word = 0;           // of the record's `published`, for streams
    uint64_t reduced = 0;             // the generation whose shadow's sums are on their way to the GPU's
    // For exact sums only:
    uint64_t converting = 0;               // the generation whose sums are becoming f32
    const PinnedMemory *totals = nullptr;  // receives their ExactTotals when they are converted
};
// NULL: the own slice is empty.
inline GpuSliceState *slice_state_of(const Shard &shard) {
    return static_cast<GpuSliceState *>(shard.engine_state.get());
}

}  // namespace odc
