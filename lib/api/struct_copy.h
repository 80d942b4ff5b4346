// SPDX-License-Identifier: Apache-2.0
// Structs of odc.h in and out, by the size that the caller's odc.h gives them.
#pragma once

#include "base/error.h"

#include <odc/odc.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace odc {

std::string version();      // "0.1.0"
std::string this_libodc();  // the version, with its file, which is the program if libodc is linked statically

// The smallest valid struct sizes: those of the first release with the struct. Never change one.
constexpr uint64_t first_size(const odc_config *) { return 104; }
constexpr uint64_t first_size(const odc_shard_desc *) { return 64; }
constexpr uint64_t first_size(const odc_slice *) { return 56; }
constexpr uint64_t first_size(const odc_stats *) { return 88; }
constexpr uint64_t first_size(const odc_peer_stats *) { return 32; }
constexpr uint64_t first_size(const odc_plan_request *) { return 56; }
constexpr uint64_t first_size(const odc_plan_summary *) { return 24; }
constexpr uint64_t first_size(const odc_window_request *) { return 48; }
constexpr uint64_t first_size(const odc_window_summary *) { return 88; }
constexpr uint64_t first_size(const odc_transport *) { return 24; }
constexpr uint64_t first_size(const odc_setting *) { return 32; }
constexpr uint64_t first_size(const odc_route *) { return 64; }

template <class Struct>
uint64_t checked_size(const Struct *theirs, const char *name) {
    constexpr uint64_t kLargest = uint64_t{1} << 20;
    const uint64_t size = theirs->struct_size;
    if (size < first_size(theirs) || size > kLargest || size % sizeof(uint64_t) != 0) {
        fail(ODC_ERROR_ARGUMENT,
             "{}.struct_size is {}, which is not a multiple of 8 between the first libodc's {} and {}; set it to "
             "sizeof({}), here {} ({})",
             name, size, first_size(theirs), kLargest, name, sizeof(Struct), this_libodc());
    }
    return size;
}

// Copies a struct of the caller's size; fields that the caller lacks are zero, fields that we lack must be zero.
template <class Struct>
Struct copy_in(const Struct *theirs, const char *name) {
    Struct ours{};
    const uint64_t size = checked_size(theirs, name);
    const auto *bytes = reinterpret_cast<const unsigned char *>(theirs);
    for (uint64_t i = sizeof(Struct); i < size; ++i) {
        if (bytes[i] != 0) {
            fail(ODC_ERROR_UNSUPPORTED,
                 "{} is {} bytes with a field set beyond the {} that {}, knows; use a newer libodc "
                 "or leave that field zero",
                 name, size, sizeof(Struct), this_libodc());
        }
    }
    std::memcpy(&ours, theirs, std::min<uint64_t>(size, sizeof(Struct)));
    ours.struct_size = sizeof(Struct);
    return ours;
}

template <class Struct>
void copy_out(const Struct &ours, Struct *theirs, const char *name) {
    if (theirs == nullptr) {
        fail(ODC_ERROR_ARGUMENT, "the output {} is NULL", name);
    }
    const uint64_t size = checked_size(theirs, name);
    std::memcpy(theirs, &ours, std::min<uint64_t>(size, sizeof(Struct)));
    if (size > sizeof(Struct)) {
        std::memset(reinterpret_cast<char *>(theirs) + sizeof(Struct), 0, size - sizeof(Struct));
    }
    theirs->struct_size = size;
}

}  // namespace odc
