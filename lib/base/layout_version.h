// SPDX-License-Identifier: Apache-2.0
// One version for every struct that processes, hosts and builds of a job exchange; odc_init fails where ranks' versions differ.
// Raise it with every change that shared_layouts.cc detects, and with every change of a field's meaning.
#pragma once

#include <cstdint>
#include <string>

namespace odc {

uint32_t layout_version();

// The first word of a peer info: "odc", its kind, and the layout version.
enum class Layout : uint8_t { Identity = 1, Nics, Unreachable, Endpoints, Ready };
uint64_t layout_magic(Layout layout);

// The error message for a rank whose struct begins with `magic` instead of ours.
std::string other_version_text(uint64_t magic);

}  // namespace odc
