// SPDX-License-Identifier: Apache-2.0
// Compares lib/topology/nvml_library.h with NVML's own header; nvml_header_test.sh compiles it.
#include "topology/nvml_library.h"

#include NVML_HEADER

#include <type_traits>

#include "same_interface.h"

namespace {

namespace mine = odc::nvml;

SAME(mine::Result::Success, NVML_SUCCESS);
SAME(mine::Result::Uninitialized, NVML_ERROR_UNINITIALIZED);
SAME(mine::Result::InvalidArgument, NVML_ERROR_INVALID_ARGUMENT);
SAME(mine::Result::NotSupported, NVML_ERROR_NOT_SUPPORTED);
SAME(mine::Result::NotFound, NVML_ERROR_NOT_FOUND);
SAME(mine::Result::InsufficientSize, NVML_ERROR_INSUFFICIENT_SIZE);
SAME(mine::Result::DriverNotLoaded, NVML_ERROR_DRIVER_NOT_LOADED);
SAME(mine::Result::Unknown, NVML_ERROR_UNKNOWN);

SAME(mine::State::Disabled, NVML_FEATURE_DISABLED);
SAME(mine::State::Enabled, NVML_FEATURE_ENABLED);

SAME(mine::RemoteDevice::Gpu, NVML_NVLINK_DEVICE_TYPE_GPU);
SAME(mine::RemoteDevice::IbmNpu, NVML_NVLINK_DEVICE_TYPE_IBMNPU);
SAME(mine::RemoteDevice::Switch, NVML_NVLINK_DEVICE_TYPE_SWITCH);
SAME(mine::RemoteDevice::Unknown, NVML_NVLINK_DEVICE_TYPE_UNKNOWN);

SAME(mine::Capability::Read, NVML_P2P_CAPS_INDEX_READ);
SAME(mine::Capability::Write, NVML_P2P_CAPS_INDEX_WRITE);
SAME(mine::Capability::NvLink, NVML_P2P_CAPS_INDEX_NVLINK);
SAME(mine::Capability::Atomics, NVML_P2P_CAPS_INDEX_ATOMICS);

SAME(mine::Status::Ok, NVML_P2P_STATUS_OK);
SAME(mine::Status::ChipsetNotSupported, NVML_P2P_STATUS_CHIPSET_NOT_SUPPORED);
SAME(mine::Status::GpuNotSupported, NVML_P2P_STATUS_GPU_NOT_SUPPORTED);
SAME(mine::Status::TopologyNotSupported, NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED);
SAME(mine::Status::Disabled, NVML_P2P_STATUS_DISABLED_BY_REGKEY);
SAME(mine::Status::NotSupported, NVML_P2P_STATUS_NOT_SUPPORTED);
SAME(mine::Status::Unknown, NVML_P2P_STATUS_UNKNOWN);

static_assert(mine::kUuidBytes >= NVML_DEVICE_UUID_V2_BUFFER_SIZE);
static_assert(mine::kNameBytes >= NVML_DEVICE_NAME_V2_BUFFER_SIZE);

SAME_SIZE(mine::PciInfo, nvmlPciInfo_t);
SAME_MEMBER(mine::PciInfo, legacy_bus_id, nvmlPciInfo_t, busIdLegacy);
SAME_MEMBER(mine::PciInfo, domain, nvmlPciInfo_t, domain);
SAME_MEMBER(mine::PciInfo, bus, nvmlPciInfo_t, bus);
SAME_MEMBER(mine::PciInfo, device, nvmlPciInfo_t, device);
SAME_MEMBER(mine::PciInfo, device_id, nvmlPciInfo_t, pciDeviceId);
SAME_MEMBER(mine::PciInfo, subsystem_id, nvmlPciInfo_t, pciSubSystemId);
SAME_MEMBER(mine::PciInfo, bus_id, nvmlPciInfo_t, busId);

#define SAME_FUNCTION(name, parameters) \
    static_assert(same_function(decltype(mine::Library::name){}, static_cast<decltype(&(name))>(nullptr)));
ODC_NVML_FUNCTIONS(SAME_FUNCTION)
static_assert(std::is_same_v<decltype(&nvmlErrorString), const char *(*)(nvmlReturn_t)>);

}  // namespace
