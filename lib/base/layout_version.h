// SPDX-License-Identifier: Apache-2.0
// One number for all that processes, hosts and builds of a job exchange: ranks whose numbers differ refuse each other in
// odc_init. It is raised with every change that shared_layouts.cc notices, and with every change of what the fields mean.
#pragma once

#include <cstdint>
#include <string>

namespace odc {

uint32_t layout_version();

// What a struct begins with: it says that it is libodc's, which struct it is, and the version.
enum class Layout : uint8_t { ControlBlock = 1, Identity, Nics, Unreachable, Endpoints, Ready };
uint64_t layout_magic(Layout layout);

// For errors: why `magic`, by which a rank's struct begins, is not ours.
std::string other_version_text(uint64_t magic);

}  // namespace odc
