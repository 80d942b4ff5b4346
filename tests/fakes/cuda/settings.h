// SPDX-License-Identifier: Apache-2.0
// Settings from the environment (listed in fake_cuda.h).
#pragma once

#include <cstdint>
#include <string>

namespace fake_cuda {

std::string text_setting(const char *name, const char *otherwise);
uint64_t number_setting(const char *name, uint64_t otherwise);

// The seed of all random choices.
uint64_t seed();
bool verbose();

}  // namespace fake_cuda
