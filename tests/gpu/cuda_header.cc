// SPDX-License-Identifier: Apache-2.0
// Compares cuda/cuda_interface.h with the CUDA toolkit's own headers; cuda_header_test.sh compiles and runs it.
#include "cuda_interface.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdio>

#include "same_interface.h"

namespace {

using namespace odc::cuda;

SAME(Result::Success, CUDA_SUCCESS);
SAME(Result::InvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME(Result::OutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(Result::NotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME(Result::Deinitialized, CUDA_ERROR_DEINITIALIZED);
SAME(Result::StubLibrary, CUDA_ERROR_STUB_LIBRARY);
SAME(Result::NoDevice, CUDA_ERROR_NO_DEVICE);
SAME(Result::InvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME(Result::InvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME(Result::PeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(Result::InvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME(Result::NotFound, CUDA_ERROR_NOT_FOUND);
SAME(Result::NotReady, CUDA_ERROR_NOT_READY);
SAME(Result::IllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(Result::HostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(Result::LaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
SAME(Result::NotPermitted, CUDA_ERROR_NOT_PERMITTED);
SAME(Result::NotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME(Result::StreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(Result::Unknown, CUDA_ERROR_UNKNOWN);

SAME(DeviceAttribute::MaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(DeviceAttribute::MultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(DeviceAttribute::CanMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
SAME(DeviceAttribute::UnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(DeviceAttribute::ComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(DeviceAttribute::ComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(DeviceAttribute::HostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
SAME(DeviceAttribute::CanUseHostPointerForRegisteredMemory,
     CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME(DeviceAttribute::VirtualMemoryManagementSupported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(DeviceAttribute::HandleTypePosixFileDescriptorSupported,
     CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(DeviceAttribute::GpuDirectRdmaWithVmmSupported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(DeviceAttribute::CanUseStreamMemOps64Bit, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);

SAME(DeviceAttribute::GpuDirectRdmaFlushWritesOptions, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
SAME(DeviceAttribute::GpuDirectRdmaWritesOrdering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
SAME(WritesOrdering::None, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE);
SAME(WritesOrdering::Owner, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
SAME(WritesOrdering::AllDevices, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES);
SAME(kFlushWritesByHost, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
SAME(FlushTarget::CurrentContext, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
SAME(FlushScope::Owner, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
SAME(FlushScope::AllDevices, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);

SAME(P2PAttribute::AccessSupported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED);
SAME(P2PAttribute::NativeAtomicSupported, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);

SAME(AllocationType::Pinned, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(HandleType::PosixFileDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(LocationType::Gpu, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(Granularity::Minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(Granularity::Recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME(Access::None, CU_MEM_ACCESS_FLAGS_PROT_NONE);
SAME(Access::Read, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME(Access::ReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

SAME(PointerAttribute::MemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(PointerAttribute::DeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(MemoryType::Host, CU_MEMORYTYPE_HOST);
SAME(MemoryType::Gpu, CU_MEMORYTYPE_DEVICE);
SAME(MemoryType::Unknown, 0);  // the toolkit has no name for it

SAME(SourceAccess::InStream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
SAME(kPreferOverlapWithCompute, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);

SAME(CaptureMode::Global, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(CaptureMode::ThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(CaptureMode::Relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CaptureStatus::None, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(CaptureStatus::Active, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(CaptureStatus::Invalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);

SAME(AtomicOperation::IntegerAdd, CU_ATOMIC_OPERATION_INTEGER_ADD);
SAME(AtomicOperation::Or, CU_ATOMIC_OPERATION_OR);
SAME(AtomicOperation::FloatAdd, CU_ATOMIC_OPERATION_FLOAT_ADD);
SAME(kAtomicReduction, CU_ATOMIC_CAPABILITY_REDUCTION);
SAME(kAtomicScalar32, CU_ATOMIC_CAPABILITY_SCALAR_32);
SAME(kAtomicScalar64, CU_ATOMIC_CAPABILITY_SCALAR_64);
SAME(kAtomicVector32x4, CU_ATOMIC_CAPABILITY_VECTOR_32x4);

SAME(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
SAME(kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME(kWriteValueDefault, CU_STREAM_WRITE_VALUE_DEFAULT);
SAME(kWaitValueGeq, CU_STREAM_WAIT_VALUE_GEQ);

SAME_SIZE(Device, CUdevice);
SAME_SIZE(Address, CUdeviceptr);
SAME_SIZE(Memory, CUmemGenericAllocationHandle);
SAME_SIZE(Uuid, CUuuid);
SAME_SIZE(Location, CUmemLocation);
SAME_MEMBER(Location, type, CUmemLocation, type);
SAME_MEMBER(Location, id, CUmemLocation, id);
SAME_SIZE(AllocationProperties, CUmemAllocationProp);
SAME_MEMBER(AllocationProperties, type, CUmemAllocationProp, type);
SAME_MEMBER(AllocationProperties, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_MEMBER(AllocationProperties, location, CUmemAllocationProp, location);
SAME_MEMBER(AllocationProperties, win32, CUmemAllocationProp, win32HandleMetaData);
SAME_MEMBER(AllocationProperties, compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_MEMBER(AllocationProperties, gpu_direct_rdma_capable, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_MEMBER(AllocationProperties, usage, CUmemAllocationProp, allocFlags.usage);
SAME_MEMBER(AllocationProperties, reserved, CUmemAllocationProp, allocFlags.reserved);
SAME_SIZE(AccessDescription, CUmemAccessDesc);
SAME_MEMBER(AccessDescription, location, CUmemAccessDesc, location);
SAME_MEMBER(AccessDescription, access, CUmemAccessDesc, flags);
SAME_SIZE(CopyAttributes, CUmemcpyAttributes);
SAME_MEMBER(CopyAttributes, source_access, CUmemcpyAttributes, srcAccessOrder);
SAME_MEMBER(CopyAttributes, source, CUmemcpyAttributes, srcLocHint);
SAME_MEMBER(CopyAttributes, destination, CUmemcpyAttributes, dstLocHint);
SAME_MEMBER(CopyAttributes, flags, CUmemcpyAttributes, flags);

SAME(kLegacyDefaultStream, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
static_assert(same_function(GetProcAddress{}, PFN_cuGetProcAddress_v12000{}));
// The toolkit's function of the requested version. Its header defines some names as macros, so members of Functions are not
// named.
#define SAME_FUNCTION(name, version, parameters) \
    static_assert(same_function(static_cast<Result(*) parameters>(nullptr), PFN_##name##_v##version{}));
ODC_CUDA_FUNCTIONS(SAME_FUNCTION)
ODC_CUDA_NEWER_FUNCTIONS(SAME_FUNCTION)

}  // namespace

int main() {
    // Pointers made from numbers, which a static_assert does not accept.
    if (reinterpret_cast<void *>(kLegacyStream) != reinterpret_cast<void *>(CU_STREAM_LEGACY) ||
        reinterpret_cast<void *>(kPerThreadStream) != reinterpret_cast<void *>(CU_STREAM_PER_THREAD)) {
        std::printf("the default streams' handles differ\n");
        return 1;
    }
    return 0;
}
