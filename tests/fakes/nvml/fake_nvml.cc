// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml.so.1 for tests: the functions of NVML that libodc calls, for fake_cuda's GPUs: they have the same UUIDs and
// PCI addresses, and CUDA_VISIBLE_DEVICES hides none. It is loaded by LD_LIBRARY_PATH. old/libnvidia-ml.so.1 is the same
// without the newest functions.
//
// Environment, besides FAKE_CUDA_DEVICES, FAKE_CUDA_P2P and FAKE_CUDA_MIG (fake_cuda.h):
//   FAKE_NVML_LINKS=LIST   "0-1:4,0-switch:18": GPU 0 has 4 links to GPU 1, and 18 to NVSwitch; none unless given
//   FAKE_NVML_WRITE=N      the status of writing to other GPUs, where they can be read; 0 (yes) unless given
//   FAKE_NVML_FAIL=LIST    "nvmlInit_v2:9,nvmlDeviceGetP2PStatus:999": each call of the function returns this
#include "topology/nvml_library.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace odc::nvml;

constexpr int kSwitch = -1;
constexpr unsigned kMostLinks = 18;

std::string setting(const char *name, const char *otherwise) {
    const char *const value = std::getenv(name);
    return value == nullptr || *value == '\0' ? otherwise : value;
}

int number(const std::string &text) { return static_cast<int>(std::strtol(text.c_str(), nullptr, 10)); }

int parts_of_each() { return number(setting("FAKE_CUDA_MIG", "0")); }
int gpus() { return number(setting("FAKE_CUDA_DEVICES", "1")) / std::max(1, parts_of_each()); }

std::vector<std::string> items(const std::string &list) {
    std::vector<std::string> all;
    std::istringstream stream(list);
    for (std::string item; std::getline(stream, item, ',');) {
        all.push_back(item);
    }
    return all;
}

// The remote end of each link of a GPU: another GPU, or kSwitch.
std::vector<int> links_of(int gpu) {
    std::vector<int> ends;
    for (const std::string &item : items(setting("FAKE_NVML_LINKS", ""))) {
        const std::string from = item.substr(0, item.find('-'));
        const std::string to = item.substr(item.find('-') + 1, item.find(':') - item.find('-') - 1);
        const auto count = static_cast<size_t>(number(item.substr(item.find(':') + 1)));
        if (number(from) == gpu) {
            ends.insert(ends.end(), count, to == "switch" ? kSwitch : number(to));
        } else if (to != "switch" && number(to) == gpu) {
            ends.insert(ends.end(), count, number(from));
        }
    }
    return ends;
}

bool linked(int a, int b) {
    const std::vector<int> ends = links_of(a);
    const std::vector<int> back = links_of(b);
    return std::count(ends.begin(), ends.end(), b) > 0 ||
           (std::count(ends.begin(), ends.end(), kSwitch) > 0 && std::count(back.begin(), back.end(), kSwitch) > 0);
}

// The status that FAKE_NVML_FAIL gives for the function.
Result outcome(const char *function) {
    for (const std::string &item : items(setting("FAKE_NVML_FAIL", ""))) {
        if (item.substr(0, item.find(':')) == function) {
            return static_cast<Result>(number(item.substr(item.find(':') + 1)));
        }
    }
    return Result::Success;
}

// A handle is the number of the GPU, or of its MIG instance after those, from 1 on.
Device handle_of(int gpu, int part) { return reinterpret_cast<Device>(static_cast<intptr_t>(gpu * 256 + part + 1)); }
int gpu_of(Device device) { return static_cast<int>((reinterpret_cast<intptr_t>(device) - 1) / 256); }
int part_of(Device device) { return static_cast<int>((reinterpret_cast<intptr_t>(device) - 1) % 256); }

Result put(char *to, unsigned bytes, const std::string &text) {
    if (text.size() >= bytes) {
        return Result::InsufficientSize;
    }
    std::memcpy(to, text.c_str(), text.size() + 1);
    return Result::Success;
}

void put_pci(PciInfo *info, unsigned bus) {
    *info = PciInfo{};
    info->bus = bus;
    std::snprintf(info->legacy_bus_id, sizeof(info->legacy_bus_id), "0000:%02X:00.0", bus);
    std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%02X:00.0", bus);
}

Result link_end(Device device, unsigned link, int *end) {
    const std::vector<int> ends = links_of(gpu_of(device));
    if (link >= kMostLinks) {
        return Result::InvalidArgument;
    }
    if (link >= ends.size()) {
        return Result::NotSupported;
    }
    *end = ends[link];
    return Result::Success;
}

}  // namespace

#define FAKE_FUNCTION(name, parameters) extern "C" __attribute__((visibility("default"))) Result name parameters
#define FAKE_BEGIN(name)                                                 \
    if (const Result fails = outcome(#name); fails != Result::Success) { \
        return fails;                                                    \
    }

FAKE_FUNCTION(nvmlInit_v2, ()) {
    FAKE_BEGIN(nvmlInit_v2)
    return Result::Success;
}

FAKE_FUNCTION(nvmlShutdown, ()) { return Result::Success; }

extern "C" __attribute__((visibility("default"))) const char *nvmlErrorString(Result result) {
    return result == Result::DriverNotLoaded ? "Driver Not Loaded" : "Unknown Error";
}

FAKE_FUNCTION(nvmlDeviceGetCount_v2, (unsigned *count)) {
    FAKE_BEGIN(nvmlDeviceGetCount_v2)
    *count = static_cast<unsigned>(gpus());
    return Result::Success;
}

FAKE_FUNCTION(nvmlDeviceGetHandleByIndex_v2, (unsigned index, Device *device)) {
    FAKE_BEGIN(nvmlDeviceGetHandleByIndex_v2)
    *device = handle_of(static_cast<int>(index), 0);
    return Result::Success;
}

FAKE_FUNCTION(nvmlDeviceGetPciInfo_v3, (Device device, PciInfo *info)) {
    FAKE_BEGIN(nvmlDeviceGetPciInfo_v3)
    put_pci(info, 0x10U + static_cast<unsigned>(gpu_of(device)));
    return Result::Success;
}

FAKE_FUNCTION(nvmlDeviceGetUUID, (Device device, char *uuid, unsigned bytes)) {
    FAKE_BEGIN(nvmlDeviceGetUUID)
    // "odc fake device", or "odc fake parts ", and the number that CUDA gives it.
    char text[64];
    if (part_of(device) == 0) {
        std::snprintf(text, sizeof(text), "GPU-6f646320-6661-6b65-2064-6576696365%02x", unsigned(gpu_of(device)));
    } else {
        std::snprintf(text, sizeof(text), "MIG-6f646320-6661-6b65-2070-6172747320%02x",
                      unsigned(gpu_of(device) * parts_of_each() + part_of(device) - 1));
    }
    return put(uuid, bytes, text);
}

FAKE_FUNCTION(nvmlDeviceGetName, (Device device, char *name, unsigned bytes)) {
    FAKE_BEGIN(nvmlDeviceGetName)
    return put(name, bytes, "NVIDIA Fake GPU " + std::to_string(gpu_of(device)));
}

FAKE_FUNCTION(nvmlDeviceGetMaxMigDeviceCount, (Device, unsigned *count)) {
    FAKE_BEGIN(nvmlDeviceGetMaxMigDeviceCount)
    *count = 7;
    return Result::Success;
}

FAKE_FUNCTION(nvmlDeviceGetMigDeviceHandleByIndex, (Device device, unsigned index, Device *part)) {
    FAKE_BEGIN(nvmlDeviceGetMigDeviceHandleByIndex)
    if (static_cast<int>(index) >= parts_of_each()) {
        return Result::NotFound;
    }
    *part = handle_of(gpu_of(device), static_cast<int>(index) + 1);
    return Result::Success;
}

FAKE_FUNCTION(nvmlDeviceGetP2PStatus, (Device from, Device to, Capability capability, Status *status)) {
    FAKE_BEGIN(nvmlDeviceGetP2PStatus)
    const std::string p2p = setting("FAKE_CUDA_P2P", "all");
    const bool access = p2p != "none" && parts_of_each() == 0;
    bool has = false;
    switch (capability) {
        case Capability::Read:
        case Capability::Write: has = access; break;
        case Capability::NvLink: has = access && linked(gpu_of(from), gpu_of(to)); break;
        case Capability::Atomics: has = access && p2p != "no-atomics"; break;
    }
    *status = has ? Status::Ok : Status::NotSupported;
    if (has && capability == Capability::Write) {
        *status = static_cast<Status>(number(setting("FAKE_NVML_WRITE", "0")));
    }
    return Result::Success;
}

FAKE_FUNCTION(nvmlDeviceGetNvLinkState, (Device device, unsigned link, State *state)) {
    FAKE_BEGIN(nvmlDeviceGetNvLinkState)
    int end = 0;
    *state = State::Enabled;
    return link_end(device, link, &end);
}

FAKE_FUNCTION(nvmlDeviceGetNvLinkRemoteDeviceType, (Device device, unsigned link, RemoteDevice *type)) {
    FAKE_BEGIN(nvmlDeviceGetNvLinkRemoteDeviceType)
    int end = 0;
    const Result result = link_end(device, link, &end);
    *type = end == kSwitch ? RemoteDevice::Switch : RemoteDevice::Gpu;
    return result;
}

FAKE_FUNCTION(nvmlDeviceGetNvLinkRemotePciInfo_v2, (Device device, unsigned link, PciInfo *info)) {
    FAKE_BEGIN(nvmlDeviceGetNvLinkRemotePciInfo_v2)
    int end = 0;
    const Result result = link_end(device, link, &end);
    put_pci(info, end == kSwitch ? 0x05 : 0x10U + static_cast<unsigned>(end));
    return result;
}
