// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/gdr_setup.h"

#include "base/deadline.h"
#include "base/settings.h"
#include "routing/rank_descriptor.h"
#include "transport/cuda/cuda.h"
#include "transport/cuda/gdr_add.h"
#include "transport/cuda/staged_add.h"
#include "transport/cuda/staged_get.h"
#include "transport/fabric/fabric.h"

namespace odc {

std::string why_not_gpu_direct(const Cuda *cuda) {
    if (setting_number(Setting::kGpuDirect) == 0) {
        return kNoGpuDirect;
    }
    return cuda == nullptr ? "this rank has no GPU" : cuda->device().why_no_remote_writes();
}

void open_gpu_direct(Cuda &cuda, Fabric &fabric, int rank, const Deadline &deadline) {
    const auto bytes = static_cast<uint64_t>(setting_number(Setting::kStagingBytes));
    const auto slots = [&](size_t least) { return BouncePool::of_gpu_memory(cuda.device(), bytes, least, deadline); };
    fabric.register_memory(cuda.open_staged_gets(slots(StagedGets::kLeastSlots)).slots(), Access::Local);
    fabric.register_memory(cuda.open_gdr_staging_proxy(rank, slots(StagingProxy::kLeastSlots)).slots(),
                           Access::RemoteRead);
    GdrAdd &sums = cuda.open_gdr_add(slots(GdrAdd::kLeastSlots));
    fabric.register_memory(sums.slots(), Access::Local);
    fabric.use_gdr_add(sums);
}

}  // namespace odc
