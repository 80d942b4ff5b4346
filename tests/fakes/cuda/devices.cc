// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "functions.h"
#include "settings.h"

namespace fake_cuda {

namespace {

enum class P2P { All, None, NoAtomics, FloatAtomics, ScalarAtomics };

// How many devices are MIG instances of one GPU; 0: none.
int parts_of_each() {
    static const auto one = static_cast<int>(number_setting("FAKE_CUDA_MIG", 0));
    return one;
}

P2P read_p2p() {
    const std::string text = text_setting("FAKE_CUDA_P2P", "all");
    return text == "none" || parts_of_each() > 0 ? P2P::None
           : text == "no-atomics"                ? P2P::NoAtomics
           : text == "floats"                    ? P2P::FloatAtomics
           : text == "scalars"                   ? P2P::ScalarAtomics
                                                 : P2P::All;
}

P2P p2p() {
    static const P2P one = read_p2p();
    return one;
}

// As in CUDA, numbers count up to the first invalid one.
std::vector<int> look() {
    const auto count = static_cast<int>(number_setting("FAKE_CUDA_DEVICES", 1));
    std::vector<int> all;
    if (std::getenv("CUDA_VISIBLE_DEVICES") == nullptr) {
        for (int number = 0; number < std::min(count, kMostDevices); ++number) {
            all.push_back(number);
        }
        return all;
    }
    std::istringstream items(text_setting("CUDA_VISIBLE_DEVICES", ""));
    for (std::string item; std::getline(items, item, ',');) {
        char *end = nullptr;
        const long number = std::strtol(item.c_str(), &end, 10);
        if (end == item.c_str() || *end != '\0' || number < 0 || number >= count) {
            break;
        }
        all.push_back(static_cast<int>(number));
    }
    return all;
}

Result put(char *to, int bytes, const std::string &text) {
    if (to == nullptr || bytes <= 0) {
        return Result::InvalidValue;
    }
    std::snprintf(to, static_cast<size_t>(bytes), "%s", text.c_str());
    return Result::Success;
}

int attribute_value(DeviceAttribute attribute) {
    static const std::string adapters = text_setting("FAKE_CUDA_ADAPTERS", "flush");
    switch (attribute) {
        case DeviceAttribute::MaxThreadsPerBlock: return 1024;
        case DeviceAttribute::MultiprocessorCount: return 132;
        case DeviceAttribute::ComputeCapabilityMajor: return compute_capability() / 10;
        case DeviceAttribute::ComputeCapabilityMinor: return compute_capability() % 10;
        case DeviceAttribute::CanMapHostMemory:
        case DeviceAttribute::UnifiedAddressing:
        case DeviceAttribute::HostRegisterSupported:
        case DeviceAttribute::CanUseHostPointerForRegisteredMemory:
        case DeviceAttribute::VirtualMemoryManagementSupported:
        case DeviceAttribute::HandleTypePosixFileDescriptorSupported:
        case DeviceAttribute::CanUseStreamMemOps64Bit: return 1;
        case DeviceAttribute::GpuDirectRdmaWithVmmSupported: return adapters != "none";
        case DeviceAttribute::GpuDirectRdmaFlushWritesOptions: return adapters == "flush" ? kFlushWritesByHost : 0;
        case DeviceAttribute::GpuDirectRdmaWritesOrdering:
            return static_cast<int>(adapters == "ordered" ? WritesOrdering::Owner : WritesOrdering::None);
    }
    return -1;
}

Result check_pair(Device from, Device to) {
    return is_device(from) && is_device(to) && from != to ? Result::Success : Result::InvalidDevice;
}

}  // namespace

const std::vector<int> &devices() {
    static const auto *one = new std::vector<int>(look());
    return *one;
}

bool is_device(Device device) { return device >= 0 && device < static_cast<int>(devices().size()); }

int ordinal_of(int number) {
    const auto found = std::find(devices().begin(), devices().end(), number);
    return found == devices().end() ? -1 : static_cast<int>(found - devices().begin());
}

Wire wire() {
    static const std::string text = text_setting("FAKE_CUDA_P2P", "all");
    return text == "lossy" ? Wire::Lossy : text == "blind" ? Wire::Blind : Wire::Good;
}

bool can_access(Device from, Device to) { return from == to || p2p() != P2P::None; }

uint64_t device_memory() {
    static const uint64_t bytes = number_setting("FAKE_CUDA_MEMORY", uint64_t{1} << 30);
    return bytes;
}

int compute_capability() {
    static const auto one = static_cast<int>(number_setting("FAKE_CUDA_CAPABILITY", 90));
    return one;
}

int interface_version() {
    static const auto version = static_cast<int>(number_setting("FAKE_CUDA_VERSION", 13000));
    return version;
}

Result cuDriverGetVersion(int *version) {
    *version = interface_version();
    return Result::Success;
}

bool has_vector_atomics() { return p2p() == P2P::All || p2p() == P2P::FloatAtomics; }

Result cuDeviceGetCount(int *count) {
    *count = static_cast<int>(devices().size());
    return Result::Success;
}

Result cuDeviceGet(Device *device, int ordinal) {
    *device = ordinal;
    return is_device(ordinal) ? Result::Success : Result::InvalidDevice;
}

Result cuDeviceGetName(char *name, int bytes, Device device) {
    return is_device(device) ? put(name, bytes, "Fake GPU " + std::to_string(devices()[device]))
                             : Result::InvalidDevice;
}

Result cuDeviceGetUuid(Uuid *uuid, Device device) {
    if (!is_device(device)) {
        return Result::InvalidDevice;
    }
    std::memcpy(uuid->bytes, parts_of_each() > 0 ? "odc fake parts " : "odc fake device", sizeof(uuid->bytes));
    uuid->bytes[15] = static_cast<unsigned char>(devices()[device]);
    return Result::Success;
}

Result cuDeviceGetPCIBusId(char *bus_id, int bytes, Device device) {
    char text[16];
    if (!is_device(device)) {
        return Result::InvalidDevice;
    }
    const int gpu = devices()[device] / std::max(1, parts_of_each());
    std::snprintf(text, sizeof(text), "0000:%02x:00.0", 0x10U + static_cast<unsigned>(gpu));
    return put(bus_id, bytes, text);
}

Result cuDeviceGetAttribute(int *value, DeviceAttribute attribute, Device device) {
    const int known = attribute_value(attribute);
    if (!is_device(device)) {
        return Result::InvalidDevice;
    }
    *value = known;
    return known < 0 ? Result::InvalidValue : Result::Success;
}

Result cuDeviceGetP2PAttribute(int *value, P2PAttribute attribute, Device from, Device to) {
    if (const Result result = check_pair(from, to); result != Result::Success) {
        return result;
    }
    switch (attribute) {
        case P2PAttribute::AccessSupported: *value = p2p() == P2P::None ? 0 : 1; return Result::Success;
        case P2PAttribute::NativeAtomicSupported: *value = p2p() == P2P::All ? 1 : 0; return Result::Success;
    }
    return Result::InvalidValue;
}

Result cuDeviceGetP2PAtomicCapabilities(unsigned *capabilities, const AtomicOperation *operations, unsigned count,
                                        Device from, Device to) {
    if (const Result result = check_pair(from, to); result != Result::Success) {
        return result;
    }
    if (capabilities == nullptr || operations == nullptr || count == 0) {
        return Result::InvalidValue;
    }
    for (unsigned i = 0; i < count; ++i) {
        const AtomicOperation one = operations[i];
        if (one != AtomicOperation::FloatAdd && one != AtomicOperation::IntegerAdd && one != AtomicOperation::Or) {
            return Result::InvalidValue;
        }
        const unsigned vector = one == AtomicOperation::FloatAdd && has_vector_atomics() ? kAtomicVector32x4 : 0;
        const unsigned all = kAtomicReduction | kAtomicScalar32 | kAtomicScalar64 | vector;
        const bool can = p2p() == P2P::All || p2p() == P2P::ScalarAtomics ||
                         (p2p() == P2P::FloatAtomics && one == AtomicOperation::FloatAdd);
        capabilities[i] = can ? all : 0;
    }
    return Result::Success;
}

}  // namespace fake_cuda
