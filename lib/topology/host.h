// SPDX-License-Identifier: Apache-2.0
// What hardware is here, by hwloc; read once per process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace odc {

struct Topology {
    int cores = 1;                // processing units that this process may use
    size_t last_level_cache = 0;  // bytes; 0: unknown
    int numa_nodes = 1;
    std::string description;  // "2 cores, 1 NUMA node, 32 MiB last-level cache"
};

const Topology &topology();

// Asks for the pages of [start, start + bytes) near the calling thread. They are not touched, nothing happens on a
// machine with one NUMA node, and a refusal is not an error: memory then comes from where it is first touched.
void place_near(void *start, size_t bytes);

// Of a file of /proc or /sys; empty where it cannot be read.
std::string first_line(const std::string &path);

// Names what can share memory with this process: the running kernel, the network namespace, in which abstract sockets
// lie, and the user, to whom alone they answer. Not the pid namespace: each rank hands out a pidfd of its own.
std::string host_identity();
std::string host_name();

// Bytes that can be taken now without swapping or being killed: the machine's and this control group's, the smaller.
uint64_t available_memory();

}  // namespace odc
