// SPDX-License-Identifier: Apache-2.0
#include "topology/host.h"

#include <fcntl.h>
#include <hwloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "base/fd.h"
#include "base/fork_gate.h"

namespace odc {

std::string first_line(const std::string &path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

namespace {

struct Hardware {
    Hardware() {
        hwloc_topology_init(&tree);
        // /sys has all that is needed. x86 would run on every core (15 ms instead of 2); the others query drivers and X
        // displays for I/O devices.
        for (const char *one : {"x86", "pci", "gl", "opencl", "cuda", "nvml", "rsmi", "levelzero"}) {
            hwloc_topology_set_components(tree, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, one);
        }
        if (hwloc_topology_load(tree) != 0) {
            return;
        }
        loaded = true;
        facts.cores = std::max(1, hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_PU));
        facts.numa_nodes = std::max(1, hwloc_get_nbobjs_by_type(tree, HWLOC_OBJ_NUMANODE));
        hwloc_obj_t pu = hwloc_get_obj_by_type(tree, HWLOC_OBJ_PU, 0);
        for (hwloc_obj_t above = pu; above != nullptr; above = above->parent) {
            if (hwloc_obj_type_is_cache(above->type)) {
                facts.last_level_cache = std::max<size_t>(facts.last_level_cache, above->attr->cache.size);
            }
        }
        facts.description = formatted(
            "{}{}{}{}{} MiB last-level cache", facts.cores, facts.cores == 1 ? " core, " : " cores, ", facts.numa_nodes,
            facts.numa_nodes == 1 ? " NUMA node, " : " NUMA nodes, ", facts.last_level_cache >> 20);
    }
    hwloc_topology_t tree = nullptr;
    bool loaded = false;
    Topology facts;
};

const Hardware &hardware() { return made_once<Hardware>(Locks::Hwloc); }

// The file names of one version of control groups.
struct GroupFiles {
    const char *limit;
    const char *usage;
    const char *prefix;  // of the memory.stat fields that include the group's children
};

// Bytes of a group's page cache, from memory.stat: lines of "name number".
uint64_t file_pages(const std::string &group, const std::string &prefix) {
    std::ifstream file(group + "/memory.stat");
    std::string name;
    uint64_t sum = 0;
    for (uint64_t value = 0; file >> name >> value;) {
        if (name == prefix + "inactive_file" || name == prefix + "active_file") {
            sum += value;
        }
    }
    return sum;
}

constexpr uint64_t kNoLimit = uint64_t{1} << 62;  // v1 writes the most pages that it can count

// Bytes left in one control group; the largest number if it has no limit. Its usage includes the page cache, which the kernel
// reclaims on demand.
uint64_t headroom(const std::string &group, const GroupFiles &files) {
    const uint64_t unlimited = std::numeric_limits<uint64_t>::max();
    uint64_t limit = 0;
    uint64_t usage = 0;
    if (!(std::istringstream(first_line(group + files.limit)) >> limit) || limit >= kNoLimit ||
        !(std::istringstream(first_line(group + files.usage)) >> usage)) {
        return unlimited;
    }
    usage -= std::min(usage, file_pages(group, files.prefix));
    return limit > usage ? limit - usage : 0;
}

// The least of the group and its ancestors. Inside a container the path may be the host's and lead nowhere.
uint64_t least_headroom(const std::string &mount, std::string path, const GroupFiles &files) {
    uint64_t least = headroom(mount, files);
    while (path.size() > 1) {
        least = std::min(least, headroom(mount + path, files));
        path.erase(path.rfind('/'));
    }
    return least;
}

// The path of this process's control group: `controller` "" for v2, "memory" for v1.
std::string control_group(const std::string &controller) {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':');
        const size_t second = line.find(':', first + 1);
        if (second == std::string::npos || line[second + 1] != '/') {
            continue;
        }
        const std::string controllers = formatted(",{},", line.substr(first + 1, second - first - 1));
        if (controllers.find(formatted(",{},", controller)) != std::string::npos) {
            return line.substr(second + 1);
        }
    }
    return "";
}

}  // namespace

const Topology &topology() { return hardware().facts; }

void place_near(void *start, size_t bytes) {
    if (topology().numa_nodes < 2 || !hardware().loaded) {
        return;
    }
    std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> cpus(hwloc_bitmap_alloc(), hwloc_bitmap_free);
    if (cpus && hwloc_get_last_cpu_location(hardware().tree, cpus.get(), HWLOC_CPUBIND_THREAD) == 0) {
        hwloc_set_area_membind(hardware().tree, start, bytes, cpus.get(), HWLOC_MEMBIND_BIND, 0);
    }
}

// Without streams, which ignore failed allocations: a truncated identity would be another host's.
std::string host_identity() {
    struct stat network {};
    stat("/proc/self/ns/net", &network);
    char boot[64] = "";
    if (const Fd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)); file.valid()) {
        const ssize_t bytes = read(file.get(), boot, sizeof(boot) - 1);
        boot[bytes > 0 ? bytes : 0] = 0;
        boot[std::strcspn(boot, "\n")] = 0;
    }
    return (boot[0] != 0 ? boot : host_name()) + "/" + std::to_string(network.st_ino) + "/" + std::to_string(geteuid());
}

std::string host_name() {
    char name[256] = "";
    gethostname(name, sizeof(name) - 1);
    return name;
}

uint64_t available_memory() {
    uint64_t available = std::numeric_limits<uint64_t>::max();
    std::ifstream file("/proc/meminfo");
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("MemAvailable:", 0) == 0) {
            available = std::stoull(line.substr(13)) * 1024;
            break;
        }
    }
    const std::string groups = "/sys/fs/cgroup";
    return std::min({available, least_headroom(groups, control_group(""), {"/memory.max", "/memory.current", ""}),
                     least_headroom(groups + "/memory", control_group("memory"),
                                    {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_"})});
}

}  // namespace odc
