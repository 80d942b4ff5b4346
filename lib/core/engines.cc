// SPDX-License-Identifier: Apache-2.0
#include "core/engines.h"

#include <algorithm>

#include "bootstrap/membership.h"
#include "core/gpu_operations.h"
#include "core/host_operations.h"
#include "core/shard_directory.h"
#include "transport/cuda/cuda.h"
#include "transport/fabric/fabric.h"

namespace odc {

Engines::Engines(Membership &membership, Job &job, ShardDirectory &directory, Counters &counters)
    : job_(job), remote_memory_(membership.fabric.get()) {
    engines_.push_back(std::make_unique<HostOperations>(job, directory, remote_memory_, counters, membership.node_cache,
                                                        membership.cuda ? &CudaDevice::check_host_buffer : nullptr));
    host_ = engines_.back().get();
    if (membership.cuda) {
        engines_.push_back(std::make_unique<GpuOperations>(job, directory, remote_memory_, membership.cuda, counters));
        gpu_ = engines_.back().get();
    }
}

Engine &Engines::engine_for(const Description &description) const {
    if (description.memory == ODC_HOST_MEMORY) {
        return *host_;
    }
    if (gpu_ == nullptr) {
        fail(ODC_ERROR_UNSUPPORTED,
             "shard \"{}\" is to be in GPU memory, but rank {} has no GPU: name one by config.device or "
             "ODC_DEVICE, such as cuda:0",
             description.name, job_.rank());
    }
    const std::vector<int32_t> &ranks = description.ranks;
    for (int rank = 0; rank < job_.size(); ++rank) {
        const RouteChoice &choice = job_.peer(rank).gpu_route.choice;
        const bool listed = ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
        if (listed && choice.transport.empty()) {
            fail(ODC_ERROR_UNSUPPORTED,
                 "shard \"{}\" is to be in GPU memory, but from {} there is no route to that of {}: {}",
                 description.name, job_.who(job_.rank()), job_.who(rank), choice.why);
        }
    }
    return *gpu_;
}

}  // namespace odc
