// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver that libodc and `odc bench` call: types and values of its binary interface, and a table of
// functions. Building needs no CUDA header; where the toolkit is installed, a test compares these declarations with it. NVIDIA's
// CUDA driver API reference documents the functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace odc::cuda {

using Device = int;
using Address = unsigned long long;  // of device memory, or of host memory as mapped by the device
using Memory = unsigned long long;   // a physical allocation
using Context = struct ContextHandle *;
using Stream = struct StreamHandle *;  // NULL: the legacy default stream
using Event = struct EventHandle *;
using Module = struct ModuleHandle *;
using Function = struct FunctionHandle *;

struct Uuid {
    unsigned char bytes[16];

    bool operator==(const Uuid &) const = default;
};

// The results that libodc or its tests distinguish.
enum class Result : int {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    Deinitialized = 4,
    StubLibrary = 34,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidContext = 201,
    PeerAccessUnsupported = 217,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    IllegalAddress = 700,
    HostMemoryAlreadyRegistered = 712,
    LaunchFailed = 719,
    NotPermitted = 800,
    NotSupported = 801,
    StreamCaptureImplicit = 906,
    Unknown = 999
};

enum class DeviceAttribute : int {
    MaxThreadsPerBlock = 1,
    MultiprocessorCount = 16,
    CanMapHostMemory = 19,
    UnifiedAddressing = 41,
    ComputeCapabilityMajor = 75,
    ComputeCapabilityMinor = 76,
    HostRegisterSupported = 99,
    CanUseHostPointerForRegisteredMemory = 91,
    VirtualMemoryManagementSupported = 102,
    HandleTypePosixFileDescriptorSupported = 103,
    GpuDirectRdmaWithVmmSupported = 110,
    GpuDirectRdmaFlushWritesOptions = 117,
    GpuDirectRdmaWritesOrdering = 118,
    CanUseStreamMemOps64Bit = 122
};

// Writes of network adapters (GPUDirect RDMA): who sees them without a flush, and how they can be flushed.
enum class WritesOrdering : int { None = 0, Owner = 100, AllDevices = 200 };
constexpr int kFlushWritesByHost = 1 << 0;
enum class FlushTarget : int { CurrentContext = 0 };
enum class FlushScope : int { Owner = 100, AllDevices = 200 };

enum class P2PAttribute : int { AccessSupported = 2, NativeAtomicSupported = 3 };

enum class AllocationType : int { Pinned = 1 };
enum class HandleType : int { PosixFileDescriptor = 1 };
enum class LocationType : int { Gpu = 1 };
enum class Granularity : int { Minimum = 0, Recommended = 1 };
enum class Access : int { None = 0, Read = 1, ReadWrite = 3 };

struct Location {
    LocationType type;
    int id;
};

struct AllocationProperties {
    AllocationType type;
    HandleType handle_types;  // 0: not exportable
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

enum class PointerAttribute : int { MemoryType = 2, DeviceOrdinal = 9 };
enum class MemoryType : unsigned { Unknown = 0, Host = 1, Gpu = 2 };

enum class SourceAccess : int { InStream = 1 };
constexpr unsigned kPreferOverlapWithCompute = 1;
struct CopyAttributes {
    SourceAccess source_access;
    Location source;
    Location destination;
    unsigned flags;
};

enum class CaptureMode : int { Global = 0, ThreadLocal = 1, Relaxed = 2 };
enum class CaptureStatus : int { None = 0, Active = 1, Invalidated = 2 };

enum class AtomicOperation : int { IntegerAdd = 0, Or = 6, FloatAdd = 10 };
constexpr unsigned kAtomicReduction = 1 << 2;
constexpr unsigned kAtomicScalar32 = 1 << 3;
constexpr unsigned kAtomicScalar64 = 1 << 4;
constexpr unsigned kAtomicVector32x4 = 1 << 6;

constexpr unsigned kHostRegisterPortable = 1;
constexpr unsigned kHostRegisterDeviceMap = 2;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kWriteValueDefault = 0;  // with a fence before the write
constexpr unsigned kWaitValueGeq = 0;       // until the word is at least the value
inline const Stream kLegacyStream = reinterpret_cast<Stream>(1);
inline const Stream kPerThreadStream = reinterpret_cast<Stream>(2);

// cuGetProcAddress_v2. The library exports some functions under bare names with old signatures; this call selects the version.
using GetProcAddress = Result (*)(const char *name, void **function, int version, uint64_t flags, int *found);
constexpr uint64_t kLegacyDefaultStream = 1;  // a NULL stream means the legacy default stream

// name, version of the signature, parameters. All exist since CUDA 12.1.
#define ODC_CUDA_FUNCTIONS(X)                                                                                        \
    X(cuInit, 2000, (unsigned flags))                                                                                \
    X(cuDriverGetVersion, 2020, (int *version))                                                                      \
    X(cuGetErrorName, 6000, (Result error, const char **text))                                                       \
    X(cuGetErrorString, 6000, (Result error, const char **text))                                                     \
    X(cuDeviceGetCount, 2000, (int *count))                                                                          \
    X(cuDeviceGet, 2000, (Device * device, int ordinal))                                                             \
    X(cuDeviceGetName, 2000, (char *name, int bytes, Device device))                                                 \
    X(cuDeviceGetUuid, 11040, (Uuid * uuid, Device device))                                                          \
    X(cuDeviceGetPCIBusId, 4010, (char *bus_id, int bytes, Device device))                                           \
    X(cuDeviceGetAttribute, 2000, (int *value, DeviceAttribute attribute, Device device))                            \
    X(cuDeviceGetP2PAttribute, 8000, (int *value, P2PAttribute attribute, Device from, Device to))                   \
    X(cuDevicePrimaryCtxRetain, 7000, (Context * context, Device device))                                            \
    X(cuDevicePrimaryCtxRelease, 11000, (Device device))                                                             \
    X(cuCtxPushCurrent, 4000, (Context context))                                                                     \
    X(cuCtxPopCurrent, 4000, (Context * context))                                                                    \
    X(cuMemGetInfo, 3020, (size_t * free, size_t * total))                                                           \
    X(cuMemGetAllocationGranularity, 10020,                                                                          \
      (size_t * bytes, const AllocationProperties *properties, Granularity granularity))                             \
    X(cuMemCreate, 10020,                                                                                            \
      (Memory * memory, size_t bytes, const AllocationProperties *properties, unsigned long long flags))             \
    X(cuMemRelease, 10020, (Memory memory))                                                                          \
    X(cuMemExportToShareableHandle, 10020, (void *handle, Memory memory, HandleType type, unsigned long long flags)) \
    X(cuMemImportFromShareableHandle, 10020, (Memory * memory, void *handle, HandleType type))                       \
    X(cuMemAddressReserve, 10020,                                                                                    \
      (Address * address, size_t bytes, size_t alignment, Address hint, unsigned long long flags))                   \
    X(cuMemAddressFree, 10020, (Address address, size_t bytes))                                                      \
    X(cuMemMap, 10020, (Address address, size_t bytes, size_t offset, Memory memory, unsigned long long flags))      \
    X(cuMemUnmap, 10020, (Address address, size_t bytes))                                                            \
    X(cuMemSetAccess, 10020, (Address address, size_t bytes, const AccessDescription *access, size_t count))         \
    X(cuMemHostRegister, 6050, (void *start, size_t bytes, unsigned flags))                                          \
    X(cuMemHostUnregister, 4000, (void *start))                                                                      \
    X(cuMemHostGetDevicePointer, 3020, (Address * address, void *start, unsigned flags))                             \
    X(cuPointerGetAttributes, 7000, (unsigned count, PointerAttribute *attributes, void **values, Address address))  \
    X(cuMemsetD8Async, 3020, (Address to, unsigned char value, size_t bytes, Stream stream))                         \
    X(cuMemcpyAsync, 4000, (Address to, Address from, size_t bytes, Stream stream))                                  \
    X(cuFlushGPUDirectRDMAWrites, 11030, (FlushTarget target, FlushScope scope))                                     \
    X(cuStreamCreate, 2000, (Stream * stream, unsigned flags))                                                       \
    X(cuStreamDestroy, 4000, (Stream stream))                                                                        \
    X(cuStreamQuery, 2000, (Stream stream))                                                                          \
    X(cuStreamGetCtx, 9020, (Stream stream, Context * context))                                                      \
    X(cuStreamWaitEvent, 3020, (Stream stream, Event event, unsigned flags))                                         \
    X(cuStreamIsCapturing, 10000, (Stream stream, CaptureStatus * status))                                           \
    X(cuThreadExchangeStreamCaptureMode, 10010, (CaptureMode * mode))                                                \
    X(cuStreamWriteValue64, 11070, (Stream stream, Address to, uint64_t value, unsigned flags))                      \
    X(cuStreamWaitValue64, 11070, (Stream stream, Address word, uint64_t value, unsigned flags))                     \
    X(cuEventCreate, 2000, (Event * event, unsigned flags))                                                          \
    X(cuEventRecord, 2000, (Event event, Stream stream))                                                             \
    X(cuEventQuery, 2000, (Event event))                                                                             \
    X(cuEventDestroy, 4000, (Event event))                                                                           \
    X(cuModuleLoadData, 2000, (Module * module, const void *image))                                                  \
    X(cuModuleUnload, 2000, (Module module))                                                                         \
    X(cuModuleGetFunction, 2000, (Function * function, Module module, const char *name))                             \
    X(cuLaunchKernel, 4000,                                                                                          \
      (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,     \
       unsigned block_z, unsigned shared_bytes, Stream stream, void **parameters, void **extra))

// Newer functions: NULL if the driver lacks them.
#define ODC_CUDA_NEWER_FUNCTIONS(X)                                                                               \
    X(cuMemcpyBatchAsync, 13000,                                                                                  \
      (Address * to, Address * from, size_t * bytes, size_t count, CopyAttributes * attributes, size_t * indices, \
       size_t attribute_count, Stream stream))                                                                    \
    X(cuDeviceGetP2PAtomicCapabilities, 13000,                                                                    \
      (unsigned *capabilities, const AtomicOperation *operations, unsigned count, Device from, Device to))        \
    X(cuFuncLoad, 12040, (Function function))

struct Functions {
// NOLINTNEXTLINE(bugprone-macro-parentheses): these are declarations
#define ODC_DECLARE(name, pinned, parameters) Result(*name) parameters;
    ODC_CUDA_FUNCTIONS(ODC_DECLARE)
    ODC_CUDA_NEWER_FUNCTIONS(ODC_DECLARE)
#undef ODC_DECLARE
};

}  // namespace odc::cuda
