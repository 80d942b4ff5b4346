// SPDX-License-Identifier: Apache-2.0
// Launches the kernels that add gradients to sums in GPU memory, and those that make f32 of exact ones.
#pragma once

#include "transport/cuda/device.h"
#include "transport/cuda/kernels/exact.h"
#include "transport/transport.h"

#include <cstdint>
#include <vector>

namespace odc {

enum class AddScope {
    OwnGpu,       // all sums are in this GPU's memory, or in host memory
    SeveralGpus,  // some are in another one's
};

// A part of a gradient, or of sums, for one slice.
struct SliceAddend {
    RemoteSlice to;
    uint64_t first;  // element of the slice
    uint64_t count;
    const void *from;        // of element `first` on
    uint64_t additions = 0;  // to exact sums: see ExactAddend
};

// The totals behind a slice's exact sums in GPU memory.
ExactTotals *totals_of(const RemoteSlice &slice);

// Thread-safe. The caller has a CudaDevice::Scope. All addends of a call are to sums of one kind, of one exponent.
class AddKernel {
public:
    explicit AddKernel(const CudaDevice &device);

    // Adds gradients in the order of the addends.
    void enqueue(const std::vector<SliceAddend> &addends, AddScope scope, cuda::Stream stream) const;
    // Adds sums that were made in host memory to those of this GPU.
    void enqueue_sums(const std::vector<SliceAddend> &addends, cuda::Stream stream) const;
    // Makes f32 of a slice's exact sums, in place.
    void enqueue_conversion(const RemoteSlice &slice, cuda::Stream stream) const;

private:
    template <class Additions>
    void launch(cuda::Function kernel, Additions additions, const std::vector<SliceAddend> &addends, AddScope scope,
                cuda::Stream stream) const;
    unsigned most_blocks(AddScope scope) const;

    const CudaDevice &device_;
    unsigned limit_;  // 0: none was given
};

}  // namespace odc
