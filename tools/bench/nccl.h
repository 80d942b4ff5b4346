// SPDX-License-Identifier: Apache-2.0
// NCCL, opened at run time, for comparison: its all-gather and reduce-scatter of the same bytes on the same GPUs.
#pragma once

#include "bench/gpu_operation.h"
#include "bench/group.h"
#include "gpu/device.h"

#include <odc/odc.h>

#include <cstddef>
#include <memory>
#include <string>

namespace odc_tool {

// Throws Exit that says what to install if it is missing.
void check_nccl();

class Nccl {
public:
    static constexpr size_t kIdBytes = 128;

    // Collective. The group's memory has kIdBytes for the id. Each rank must have its own GPU.
    Nccl(Group &group, const Gpu &gpu);
    ~Nccl();
    Nccl(const Nccl &) = delete;
    Nccl &operator=(const Nccl &) = delete;

    std::string version() const;  // "2.28.3"
    Contestant gather(const Layout &layout);
    // Sums have the gradient's type.
    Contestant addition(const Layout &layout);

private:
    void make_buffers(const Layout &layout, uint64_t from, uint64_t to);

    Group &group_;
    const Gpu &gpu_;
    void *communicator_ = nullptr;
    std::unique_ptr<GpuMemory> from_;
    std::unique_ptr<GpuMemory> to_;
};

}  // namespace odc_tool
