// SPDX-License-Identifier: Apache-2.0
// The NVIDIA GPUs of this host as NVML reports them now, whatever CUDA_VISIBLE_DEVICES.
#pragma once

#include "base/gpu_uuid.h"
#include "topology/gpu_link.h"

#include <optional>
#include <string>
#include <vector>

namespace odc {

struct GpuFacts {
    std::string bus_id;
    std::string uuid;                // "GPU-5af8..."
    std::string model;               // without the vendor
    std::vector<std::string> parts;  // UUIDs of its MIG instances, "MIG-..."
    std::vector<GpuLink> links;      // to each GPU of the report; to itself unknown
};

struct GpuReport {
    std::string why_not;  // "NVML unavailable: ..."; empty: the list is complete
    std::vector<GpuFacts> gpus;
};

// Takes seconds if the driver has to initialize GPUs (no persistence mode).
GpuReport gpus_by_nvml();

// A GPU or MIG instance in a report.
struct GpuMatch {
    size_t gpu = 0;        // index in the report
    bool is_part = false;  // it is a MIG instance of that GPU
};
// None if the report does not contain it.
std::optional<GpuMatch> find_gpu(const GpuReport &report, const GpuUuid &uuid);

}  // namespace odc
