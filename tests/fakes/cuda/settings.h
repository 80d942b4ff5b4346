// SPDX-License-Identifier: Apache-2.0
// What the environment asks for (fake_cuda.h lists it).
#pragma once

#include <cstdint>
#include <string>

namespace fake_cuda {

std::string text_setting(const char *name, const char *otherwise);
uint64_t number_setting(const char *name, uint64_t otherwise);

// Where every random choice begins.
uint64_t seed();
bool verbose();

}  // namespace fake_cuda
