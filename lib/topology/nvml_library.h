// SPDX-License-Identifier: Apache-2.0
// The part of NVIDIA's management library that libodc calls: types and values of its binary interface, and a table of functions
// loaded from libnvidia-ml.so.1. Building needs no NVIDIA header; where there is one, a test compares these declarations with
// it. NVIDIA's NVML API reference documents the functions.
#pragma once

#include <cstdint>
#include <string>

namespace odc::nvml {

using Device = struct DeviceHandle *;

// The results that libodc or its tests distinguish.
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
    unsigned device_id;  // with the vendor's id
    unsigned subsystem_id;
    char bus_id[32];
};

constexpr unsigned kUuidBytes = 96;  // enough for all
constexpr unsigned kNameBytes = 96;

// name, parameters. All exist in drivers for CUDA 12.1, which shards in GPU memory need, too.
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

// Empty if the library was loaded and has all functions; else the reason. Loads it once per process.
const std::string &why_not_library();
// Valid only if why_not_library() is empty.
const Library &library();

}  // namespace odc::nvml
