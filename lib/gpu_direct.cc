// SPDX-License-Identifier: Apache-2.0
#include "gpu_direct.h"

#include "route.h"
#include "settings.h"

namespace odc {

std::string why_not_gpu_direct(const Cuda *cuda) {
    if (setting_number(Setting::kGpuDirect) == 0) {
        return kNoGpuDirect;
    }
    return cuda == nullptr ? "this rank has no GPU" : cuda->device().why_no_remote_writes();
}

void open_gpu_direct(Cuda &cuda, Fabric &fabric, int rank, const Patience &patience) {
    const auto bytes = static_cast<uint64_t>(setting_number(Setting::kStagingBytes));
    const auto lent = [&](size_t least, Access access) {
        auto slots = Slots::of_gpu_memory(cuda.device(), bytes, least, patience);
        fabric.lend(slots->start(), slots->bytes(), slots->kind(), access);
        return slots;
    };
    cuda.open_fetches(lent(Fetches::kLeastSlots, Access::Local));
    cuda.open_outward_porter(rank, lent(Porter::kLeastSlots, Access::Remote));
    fabric.add_by(cuda.open_sums(lent(GpuSums::kLeastSlots, Access::Local)));
}

}  // namespace odc
