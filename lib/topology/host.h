// SPDX-License-Identifier: Apache-2.0
// Facts about this host: processors (by hwloc, read once per process), identity, available memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace odc {

struct Topology {
    int cores = 1;                // hardware threads that this process may use
    size_t last_level_cache = 0;  // bytes; 0: unknown
    int numa_nodes = 1;
    std::string description;  // "2 cores, 1 NUMA node, 32 MiB last-level cache"
};

const Topology &topology();

// Binds the pages of [start, start + bytes) to the calling thread's NUMA node without touching them. Does nothing on a machine
// with one node. Failure is not an error: pages are then placed at first touch.
void place_near(void *start, size_t bytes);

// The first line of a file in /proc or /sys; empty if it cannot be read.
std::string first_line(const std::string &path);

// Equal for processes that can share memory: those of one boot, one network namespace (abstract sockets belong to it) and one
// user (whose sockets serve only that user). The pid namespace does not matter, as each rank passes on its own pidfd.
std::string host_identity();
std::string host_name();

// Bytes that can be allocated now without swapping or an out-of-memory kill: the smaller of the machine's and this control
// group's.
uint64_t available_memory();

}  // namespace odc
