// SPDX-License-Identifier: Apache-2.0
// The machine's GPUs, and those visible to the process.
#pragma once

#include <cstdint>
#include <vector>

#include "results.h"

namespace fake_cuda {

constexpr int kMostDevices = 16;

// The visible devices' numbers in the machine, by ordinal.
const std::vector<int> &devices();
bool is_device(Device device);
// -1: not visible to the process.
int ordinal_of(int number);
bool can_access(Device from, Device to);
// Whether GPUs can reduce vectors in each other's memory.
bool has_vector_atomics();
uint64_t device_memory();
// The effect of accesses to another device's memory, regardless of the attributes.
enum class Wire { Good, Lossy, Blind };
Wire wire();
int interface_version();
int compute_capability();  // 90: 9.0

}  // namespace fake_cuda
