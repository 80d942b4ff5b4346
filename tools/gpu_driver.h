// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, as far as `odc bench` calls it beside libodc: a table of functions filled from libcuda.so.1, and what
// its binary interface calls things. No CUDA header is needed to build. Where the toolkit is found, a test compares this
// with its header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace odc_tool::cuda {

using Device = int;
using Address = unsigned long long;  // of device memory, or of host memory as the device sees it
using Memory = unsigned long long;   // a physical allocation
using Context = struct ContextHandle *;
using Stream = struct StreamHandle *;
using Event = struct EventHandle *;
using Module = struct ModuleHandle *;
using Function = struct FunctionHandle *;

struct Uuid {
    unsigned char bytes[16];

    bool operator==(const Uuid &) const = default;
};

// Those that the tool tells from others.
enum class Result : int { Success = 0, OutOfMemory = 2, NotReady = 600 };

enum class P2PAttribute : int { AccessSupported = 2 };

enum class AllocationType : int { Pinned = 1 };
enum class LocationType : int { Gpu = 1 };
enum class Granularity : int { Minimum = 0 };
enum class Access : int { ReadWrite = 3 };

struct Location {
    LocationType type;
    int id;
};

struct AllocationProperties {
    AllocationType type;
    int handle_types;  // 0: the memory stays in this process
    Location location;
    void *win32;
    unsigned char compression;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
};

struct AccessDescription {
    Location location;
    Access access;
};

constexpr unsigned kHostRegisterPortable = 1;
constexpr unsigned kHostRegisterDeviceMap = 2;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;

// name, version of the interface that is asked for, parameters. All are there from CUDA 12.1 on.
#define ODC_TOOL_CUDA_FUNCTIONS(X)                                                                               \
    X(cuInit, 2000, (unsigned flags))                                                                            \
    X(cuGetErrorName, 6000, (Result error, const char **text))                                                   \
    X(cuGetErrorString, 6000, (Result error, const char **text))                                                 \
    X(cuDeviceGetCount, 2000, (int *count))                                                                      \
    X(cuDeviceGet, 2000, (Device * device, int ordinal))                                                         \
    X(cuDeviceGetName, 2000, (char *name, int bytes, Device device))                                             \
    X(cuDeviceGetUuid, 11040, (Uuid * uuid, Device device))                                                      \
    X(cuDeviceGetP2PAttribute, 8000, (int *value, P2PAttribute attribute, Device from, Device to))               \
    X(cuDevicePrimaryCtxRetain, 7000, (Context * context, Device device))                                        \
    X(cuDevicePrimaryCtxRelease, 11000, (Device device))                                                         \
    X(cuCtxPushCurrent, 4000, (Context context))                                                                 \
    X(cuCtxPopCurrent, 4000, (Context * context))                                                                \
    X(cuMemGetInfo, 3020, (size_t * free, size_t * total))                                                       \
    X(cuMemGetAllocationGranularity, 10020,                                                                      \
      (size_t * bytes, const AllocationProperties *properties, Granularity granularity))                         \
    X(cuMemCreate, 10020,                                                                                        \
      (Memory * memory, size_t bytes, const AllocationProperties *properties, unsigned long long flags))         \
    X(cuMemRelease, 10020, (Memory memory))                                                                      \
    X(cuMemAddressReserve, 10020,                                                                                \
      (Address * address, size_t bytes, size_t alignment, Address wish, unsigned long long flags))               \
    X(cuMemAddressFree, 10020, (Address address, size_t bytes))                                                  \
    X(cuMemMap, 10020, (Address address, size_t bytes, size_t offset, Memory memory, unsigned long long flags))  \
    X(cuMemUnmap, 10020, (Address address, size_t bytes))                                                        \
    X(cuMemSetAccess, 10020, (Address address, size_t bytes, const AccessDescription *access, size_t count))     \
    X(cuMemHostRegister, 6050, (void *start, size_t bytes, unsigned flags))                                      \
    X(cuMemHostUnregister, 4000, (void *start))                                                                  \
    X(cuMemHostGetDevicePointer, 3020, (Address * address, void *start, unsigned flags))                         \
    X(cuMemsetD8Async, 3020, (Address to, unsigned char value, size_t bytes, Stream stream))                     \
    X(cuMemcpyAsync, 4000, (Address to, Address from, size_t bytes, Stream stream))                              \
    X(cuStreamCreate, 2000, (Stream * stream, unsigned flags))                                                   \
    X(cuStreamDestroy, 4000, (Stream stream))                                                                    \
    X(cuStreamQuery, 2000, (Stream stream))                                                                      \
    X(cuStreamWaitEvent, 3020, (Stream stream, Event event, unsigned flags))                                     \
    X(cuEventCreate, 2000, (Event * event, unsigned flags))                                                      \
    X(cuEventRecord, 2000, (Event event, Stream stream))                                                         \
    X(cuEventDestroy, 4000, (Event event))                                                                       \
    X(cuModuleLoadData, 2000, (Module * module, const void *image))                                              \
    X(cuModuleUnload, 2000, (Module module))                                                                     \
    X(cuModuleGetFunction, 2000, (Function * function, Module module, const char *name))                         \
    X(cuLaunchKernel, 4000,                                                                                      \
      (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
       unsigned block_z, unsigned shared_bytes, Stream stream, void **parameters, void **extra))

struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): these are declarations
#define ODC_TOOL_DECLARE(name, pinned, parameters) Result(*name) parameters;
    ODC_TOOL_CUDA_FUNCTIONS(ODC_TOOL_DECLARE)
#undef ODC_TOOL_DECLARE
};

// Loaded once per process. Throws Exit where there is none; odc_get_transport says why, and comes first.
const Driver &driver();
// Throws Exit with CUDA's words for what `call` did not do.
void check(Result result, const char *call);

}  // namespace odc_tool::cuda
