// SPDX-License-Identifier: Apache-2.0
// The NVIDIA GPUs of this host, as NVML tells of them now; CUDA_VISIBLE_DEVICES hides none from it.
#pragma once

#include "base/gpu_uuid.h"
#include "topology/gpu_link.h"

#include <string>
#include <vector>

namespace odc {

struct GpuFacts {
    std::string bus_id;
    std::string uuid;                // "GPU-5af8..."
    std::string model;               // without the vendor
    std::vector<std::string> parts;  // of a divided one (MIG): their uuids, "MIG-..."
    std::vector<GpuLink> links;      // from it to each, by place; to itself: nothing is known
};

struct GpuReport {
    std::string why_not;  // "NVML unavailable: ..."; empty: it is known what there is
    std::vector<GpuFacts> gpus;
};

// Takes seconds where the driver has GPUs asleep (no persistence mode).
GpuReport gpus_by_nvml();

// A GPU, or a part of one, by the identity that CUDA gives it.
struct GpuPlace {
    size_t gpu = 0;        // in the report
    bool is_part = false;  // of a divided one
};
// False: the report does not have it.
bool find_gpu(const GpuReport &report, const GpuUuid &uuid, GpuPlace &place);

}  // namespace odc
