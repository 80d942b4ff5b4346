// SPDX-License-Identifier: Apache-2.0
// The engine of each kind of memory: the one place that knows which there are.
#pragma once

#include "core/operation.h"
#include "core/remote_memory.h"

#include <memory>
#include <vector>

namespace odc {

struct Counters;
struct Membership;
class ShardDirectory;

class Engines {
public:
    Engines(Membership &membership, Job &job, ShardDirectory &directory, Counters &counters);

    // Throws ODC_ERROR_UNSUPPORTED where this rank has no such memory, or cannot reach that of a rank of the shard.
    Engine &engine_for(const Description &description) const;
    const std::vector<std::unique_ptr<Engine>> &all() const { return engines_; }

private:
    Job &job_;
    RemoteMemory remote_memory_;
    std::vector<std::unique_ptr<Engine>> engines_;
    Engine *host_;
    Engine *gpu_ = nullptr;  // NULL: this rank has no GPU
};

}  // namespace odc
