// SPDX-License-Identifier: Apache-2.0
// tools/gpu_driver.h against the CUDA toolkit's own headers; cuda_header_test.sh compiles it.
#include "gpu_driver.h"

#include "cuda_header.h"

namespace {

using namespace odc_tool::cuda;

SAME(Result::Success, CUDA_SUCCESS);
SAME(Result::OutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(Result::NotReady, CUDA_ERROR_NOT_READY);

SAME(P2PAttribute::AccessSupported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED);
SAME(AllocationType::Pinned, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(LocationType::Gpu, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(Granularity::Minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(Access::ReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

SAME(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
SAME(kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);

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

ODC_TOOL_CUDA_FUNCTIONS(SAME_FUNCTION)

}  // namespace

int main() { return 0; }
