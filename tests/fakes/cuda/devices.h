// SPDX-License-Identifier: Apache-2.0
// The GPUs of the machine, and those that the process sees.
#pragma once

#include <cstdint>
#include <vector>

#include "results.h"

namespace fake_cuda {

constexpr int kMostDevices = 16;

// By ordinal, their numbers in the machine.
const std::vector<int> &devices();
bool is_device(Device device);
// -1: the process does not see it.
int ordinal_of(int number);
bool can_access(Device from, Device to);
uint64_t device_memory();
// What becomes of accesses to another device's memory, whatever the attributes say.
enum class Wire { Good, Lossy, Blind };
Wire wire();
int interface_version();

}  // namespace fake_cuda
