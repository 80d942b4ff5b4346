// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library, as far as libodc calls it: types and values of its binary interface, and one table of
// functions, filled from libnvidia-ml.so.1 where there is one. No header of NVIDIA's is needed to build; where it is
// found, a test compares all this with it. What the functions do is said in NVIDIA's NVML API reference.
#pragma once

#include <cstdint>
#include <string>

namespace odc::nvml {

using Device = struct DeviceHandle *;

// Those that libodc tells from others, and some for tests.
enum class Result : int {
    Success = 0,
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    Unknown = 999
};

enum class State : int { Disabled = 0, Enabled = 1 };
enum class RemoteDevice : int { Gpu = 0, IbmNpu = 1, Switch = 2, Unknown = 255 };
enum class Capability : int { Read = 0, Write = 1, NvLink = 2, Atomics = 3 };
enum class Status : int {
    Ok = 0,
    ChipsetNotSupported = 1,
    GpuNotSupported = 2,
    TopologyNotSupported = 3,
    Disabled = 4,
    NotSupported = 5,
    Unknown = 6
};

struct PciInfo {
    char legacy_bus_id[16];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned device_id;  // and the vendor's
    unsigned subsystem_id;
    char bus_id[32];
};

constexpr unsigned kUuidBytes = 96;  // enough for each
constexpr unsigned kNameBytes = 96;

// name, parameters. All are there in drivers of CUDA 12.1 on, which GPU memory needs, too.
#define ODC_NVML_FUNCTIONS(X)                                                                   \
    X(nvmlInit_v2, ())                                                                          \
    X(nvmlShutdown, ())                                                                         \
    X(nvmlDeviceGetCount_v2, (unsigned *count))                                                 \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned index, Device *device))                          \
    X(nvmlDeviceGetPciInfo_v3, (Device device, PciInfo * info))                                 \
    X(nvmlDeviceGetUUID, (Device device, char *uuid, unsigned bytes))                           \
    X(nvmlDeviceGetName, (Device device, char *name, unsigned bytes))                           \
    X(nvmlDeviceGetMaxMigDeviceCount, (Device device, unsigned *count))                         \
    X(nvmlDeviceGetMigDeviceHandleByIndex, (Device device, unsigned index, Device *part))       \
    X(nvmlDeviceGetP2PStatus, (Device from, Device to, Capability capability, Status * status)) \
    X(nvmlDeviceGetNvLinkState, (Device device, unsigned link, State *state))                   \
    X(nvmlDeviceGetNvLinkRemoteDeviceType, (Device device, unsigned link, RemoteDevice *type))  \
    X(nvmlDeviceGetNvLinkRemotePciInfo_v2, (Device device, unsigned link, PciInfo *info))

struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): these are declarations
#define ODC_DECLARE(name, parameters) Result(*name) parameters;
    ODC_NVML_FUNCTIONS(ODC_DECLARE)
#undef ODC_DECLARE
    const char *(*nvmlErrorString)(Result result);
};

// Empty: the library is there, with all of these. Else why not, in words. Loads it once per process.
const std::string &why_not_library();
// Only where there is one.
const Library &library();

}  // namespace odc::nvml
