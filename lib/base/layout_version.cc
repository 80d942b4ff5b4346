// SPDX-License-Identifier: Apache-2.0
#include "base/layout_version.h"

#include "base/error.h"

namespace odc {

namespace {

#ifndef ODC_LAYOUT_VERSION  // a test builds with another version
#define ODC_LAYOUT_VERSION 24
#endif

constexpr uint64_t kName = 0x6f6463;  // "odc"

}  // namespace

uint32_t layout_version() { return ODC_LAYOUT_VERSION; }

uint64_t layout_magic(Layout layout) { return kName << 40 | static_cast<uint64_t>(layout) << 32 | layout_version(); }

std::string other_version_text(uint64_t magic) {
    const std::string theirs =
        magic >> 40 == kName ? formatted("version {}", static_cast<uint32_t>(magic)) : "another version";
    return formatted("uses {} of libodc's shared layout, this rank version {}; give all ranks the same libodc", theirs,
                     layout_version());
}

}  // namespace odc
