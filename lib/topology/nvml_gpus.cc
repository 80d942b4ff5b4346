// SPDX-License-Identifier: Apache-2.0
#include "topology/nvml_gpus.h"

#include "base/error.h"
#include "topology/nvml_library.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace odc {

using nvml::library;
using nvml::Result;

namespace {

// More than any GPU has; a GPU's links are numbered from 0.
constexpr unsigned kMostLinks = 64;

// Keeps NVML initialized.
class Session {
public:
    Session() {
        if (const std::string &why_not = nvml::why_not_library(); !why_not.empty()) {
            throw Error(ODC_ERROR_UNSUPPORTED, why_not);
        }
        check(library().nvmlInit_v2(), "nvmlInit");
    }
    ~Session() { library().nvmlShutdown(); }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    static void check(Result result, const char *call) {
        if (result != Result::Success) {
            const char *const text = library().nvmlErrorString(result);
            fail(ODC_ERROR_UNSUPPORTED, "{} failed: {}", call,
                 text != nullptr ? text : formatted("error {}", static_cast<int>(result)));
        }
    }
};

// The remote ends of a GPU's NVLinks.
struct Links {
    std::vector<std::string> gpus;  // bus id of each link's remote GPU
    int to_switches = 0;
};

struct Seen {
    nvml::Device device;
    Links links;
};

std::string bus_id_of(const nvml::PciInfo &info) {
    char text[32];
    std::snprintf(text, sizeof(text), "%04x:%02x:%02x.0", info.domain, info.bus, info.device);
    return text;
}

std::string uuid_of(nvml::Device device) {
    std::array<char, nvml::kUuidBytes> uuid{};
    return library().nvmlDeviceGetUUID(device, uuid.data(), nvml::kUuidBytes) == Result::Success ? uuid.data() : "";
}

std::string model_of(nvml::Device device) {
    const std::string vendor = "NVIDIA ";
    std::array<char, nvml::kNameBytes> name{};
    library().nvmlDeviceGetName(device, name.data(), nvml::kNameBytes);
    const std::string model = name.data();
    return model.rfind(vendor, 0) == 0 ? model.substr(vendor.size()) : model;
}

std::vector<std::string> parts_of(nvml::Device device) {
    std::vector<std::string> parts;
    unsigned count = 0;
    if (library().nvmlDeviceGetMaxMigDeviceCount(device, &count) != Result::Success) {
        return parts;
    }
    for (unsigned index = 0; index < count; ++index) {
        nvml::Device part = nullptr;
        if (library().nvmlDeviceGetMigDeviceHandleByIndex(device, index, &part) == Result::Success) {
            parts.push_back(uuid_of(part));
        }
    }
    return parts;
}

Links links_of(nvml::Device device) {
    Links links;
    for (unsigned link = 0; link < kMostLinks; ++link) {
        auto state = nvml::State::Disabled;
        auto type = nvml::RemoteDevice::Unknown;
        nvml::PciInfo end{};
        if (library().nvmlDeviceGetNvLinkState(device, link, &state) != Result::Success ||
            state != nvml::State::Enabled ||
            library().nvmlDeviceGetNvLinkRemoteDeviceType(device, link, &type) != Result::Success) {
            continue;
        }
        if (type == nvml::RemoteDevice::Switch) {
            ++links.to_switches;
        } else if (type == nvml::RemoteDevice::Gpu &&
                   library().nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &end) == Result::Success) {
            links.gpus.push_back(bus_id_of(end));
        }
    }
    return links;
}

Ability ask(nvml::Device from, nvml::Device to, nvml::Capability capability) {
    auto status = nvml::Status::Unknown;
    if (library().nvmlDeviceGetP2PStatus(from, to, capability, &status) != Result::Success ||
        status == nvml::Status::Unknown) {
        return Ability::Unknown;
    }
    return status == nvml::Status::Ok ? Ability::Yes : Ability::No;
}

// Asks the driver whether the two use NVLink: links may be up but unused, such as before the fabric manager has configured the
// switches.
GpuLink link_between(const Seen &from, const Seen &to, const std::string &to_bus_id) {
    GpuLink link;
    const Ability nvlink = ask(from.device, to.device, nvml::Capability::NvLink);
    const auto direct = static_cast<int>(std::count(from.links.gpus.begin(), from.links.gpus.end(), to_bus_id));
    if (nvlink == Ability::No) {
        link.nvlink = NvLink::None;
    } else if (nvlink == Ability::Yes) {
        const bool by_switch = direct == 0 && from.links.to_switches > 0;
        link.nvlink = by_switch ? NvLink::Switch : NvLink::Direct;
        link.links = by_switch ? from.links.to_switches : direct;
    }
    link.p2p =
        both(ask(from.device, to.device, nvml::Capability::Read), ask(from.device, to.device, nvml::Capability::Write));
    link.atomics = ask(from.device, to.device, nvml::Capability::Atomics);
    return link;
}

std::vector<GpuFacts> read_gpus() {
    const Session session;
    std::vector<GpuFacts> gpus;
    std::vector<Seen> seen;
    unsigned count = 0;
    Session::check(library().nvmlDeviceGetCount_v2(&count), "nvmlDeviceGetCount");
    for (unsigned index = 0; index < count; ++index) {
        nvml::Device device = nullptr;
        nvml::PciInfo info{};
        // Ignores GPUs that are broken or belong to another container.
        if (library().nvmlDeviceGetHandleByIndex_v2(index, &device) == Result::Success &&
            library().nvmlDeviceGetPciInfo_v3(device, &info) == Result::Success) {
            seen.push_back({device, links_of(device)});
            gpus.push_back({bus_id_of(info), uuid_of(device), model_of(device), parts_of(device), {}});
        }
    }
    for (size_t i = 0; i < gpus.size(); ++i) {
        for (size_t j = 0; j < gpus.size(); ++j) {
            gpus[i].links.push_back(i == j ? GpuLink{} : link_between(seen[i], seen[j], gpus[j].bus_id));
        }
    }
    return gpus;
}

// "5af8...": a UUID without its prefix "GPU-" or "MIG-".
std::string digits_of(const GpuUuid &uuid) {
    std::string text;
    for (size_t i = 0; i < uuid.size(); ++i) {
        char digits[4];
        std::snprintf(digits, sizeof(digits), "%02x", unsigned{uuid[i]});
        text += formatted("{}{}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", digits);
    }
    return text;
}

}  // namespace

GpuReport gpus_by_nvml() {
    try {
        return {"", read_gpus()};
    } catch (const Error &error) {
        return {formatted("NVML unavailable: {}", error.what()), {}};
    }
}

std::optional<GpuMatch> find_gpu(const GpuReport &report, const GpuUuid &uuid) {
    const std::string digits = digits_of(uuid);
    for (size_t i = 0; i < report.gpus.size(); ++i) {
        const GpuFacts &gpu = report.gpus[i];
        const bool is_part = std::find(gpu.parts.begin(), gpu.parts.end(), "MIG-" + digits) != gpu.parts.end();
        if (is_part || gpu.uuid == "GPU-" + digits) {
            return GpuMatch{i, is_part};
        }
    }
    return std::nullopt;
}

}  // namespace odc
