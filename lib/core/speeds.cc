// SPDX-License-Identifier: Apache-2.0
#include "core/speeds.h"

#include <algorithm>

namespace odc {

Arrivals::Arrivals(Job &job) {
    for (int rank = 0; rank < job.size(); ++rank) {
        measured_.push_back({&job.block(rank), 0});
    }
    const std::vector<int> &local_peers = job.local_peers();
    for (size_t local_rank = 0; local_rank < local_peers.size(); ++local_rank) {
        ControlBlock &first = job.block(local_peers[local_rank / kTreeFan * kTreeFan]);
        measured_[static_cast<size_t>(local_peers[local_rank])] = {&first, local_rank % kTreeFan};
    }
}

double SpeedMeter::end(int64_t now_ns, uint64_t wait_ns) {
    constexpr double kOfNewest = 0.3;
    if (cost_ > 0 && began_.now_ns != 0) {
        const int64_t waited_ns = static_cast<int64_t>(wait_ns - began_.wait_ns);
        const auto ns = static_cast<double>(std::max<int64_t>(1, now_ns - began_.now_ns - waited_ns));
        const double newest = cost_ / (ns * 1e-9);
        speed_ = speed_ > 0 ? (1 - kOfNewest) * speed_ + kOfNewest * newest : newest;
    }
    cost_ = 0;
    began_ = {};
    return speed_;
}

}  // namespace odc
