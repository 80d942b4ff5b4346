// SPDX-License-Identifier: Apache-2.0
// Gathers and additions of libodc in GPU memory as contestants, and the checks of their results.
#pragma once

#include "bench/operation.h"
#include "gpu/device.h"

#include <odc/odc.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace odc_tool {

// The pattern in GPU memory; both functions return when it is done.
void fill_gpu(const Gpu &gpu, odc_type type, std::byte *to, uint64_t first, uint64_t count);
// Throws Exit that names `what` unless each element is `times` the pattern's.
void check_gpu(const Gpu &gpu, odc_type type, const std::byte *from, uint64_t first, uint64_t count, uint64_t times,
               const std::string &what);

// The caller's full-size buffer on its GPU, filled with the pattern.
class GpuTensor {
public:
    GpuTensor(const Gpu &gpu, const Layout &layout);

    const Gpu &gpu() const { return gpu_; }
    const Layout &layout() const { return layout_; }
    std::byte *full() const { return full_.start(); }
    // For a gather into the buffer: clears it, and checks it.
    void clear() const;
    void check(const std::string &what) const;

private:
    const Gpu &gpu_;
    const Layout &layout_;
    GpuMemory full_;
};

// For ranks that do not take part.
Contestant parked();

// Collective. The contestant does nothing on ranks without a tensor.
class GpuGather {
public:
    GpuGather(odc_context *context, const Gpu &gpu, const Layout &layout);
    Contestant contestant(const GpuTensor *tensor) const;

private:
    odc_context *context_;
    odc_shard *shard_;
};

// `adders` ranks have a tensor. Must not outlive the layout.
class GpuAddition {
public:
    GpuAddition(odc_context *context, const Gpu &gpu, const Layout &layout, int adders, Sums sums);
    Contestant contestant(const GpuTensor *tensor);
    // After sync: checks this rank's sums.
    void check_slice() const;

private:
    odc_context *context_;
    const Gpu &gpu_;
    const Layout &layout_;
    uint64_t adders_;
    odc_shard *shard_;
    uint64_t additions_ = 0;  // by each adder since publish
};

}  // namespace odc_tool
