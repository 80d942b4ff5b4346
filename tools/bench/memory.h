// SPDX-License-Identifier: Apache-2.0
// Memory shared by all ranks of a job on this host.
#pragma once

#include <odc/odc.h>

#include <cstddef>

namespace odc_tool {

// Maps `bytes` of zeros shared by all ranks; collective, between sync and publish. The memory has no name and is freed with its
// last mapping. The address is a multiple of 2 MiB, as large pages need.
std::byte *share_memory(odc_context *context, size_t bytes);
// Converts the memory to large pages where the system can; called by one rank when the owners have touched their parts.
void gather_into_large_pages(std::byte *memory, size_t bytes);
void unshare_memory(std::byte *memory, size_t bytes);

}  // namespace odc_tool
