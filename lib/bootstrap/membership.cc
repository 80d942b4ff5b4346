// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/membership.h"

#include "base/program.h"
#include "transport/cuda/cuda.h"
#include "transport/fabric/fabric.h"

namespace odc {

Membership::Membership(const JobConfig &job_config) : config(job_config) {}
Membership::Membership(Membership &&) noexcept = default;
Membership::~Membership() = default;

}  // namespace odc
