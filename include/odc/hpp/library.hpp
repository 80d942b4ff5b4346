// SPDX-License-Identifier: Apache-2.0
// The loaded library and its version; its transports and settings; the machine's topology.
#ifndef ODC_HPP_LIBRARY_HPP
#define ODC_HPP_LIBRARY_HPP
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "status.hpp"

namespace odc {
inline namespace ODC_ABI {

struct Version {
    uint32_t major, minor, patch;

    // The version of the odc.h that this program was compiled with.
    static constexpr Version needed() noexcept { return {ODC_VERSION_MAJOR, ODC_VERSION_MINOR, ODC_VERSION_PATCH}; }
    static Version found() noexcept {
        const uint32_t number = odc_version();
        return {number >> 16, number >> 8 & 255, number & 255};
    }
    std::string text() const {
        return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
    }
};

// The file of the loaded libodc; the program itself if it is linked statically.
inline std::string library_path() {
    // From /proc/self/maps: in a non-PIE program the address of a function may be the program's own PLT entry.
    const auto address = reinterpret_cast<uintptr_t>(&odc_version);
    const auto is_libodc = [](const std::string &file) {
        return file.compare(file.rfind('/') + 1, 9, "libodc.so") == 0;  // also if there is no '/'
    };
    std::string around, named, line;
    std::ifstream maps("/proc/self/maps");
    while (std::getline(maps, line)) {
        const size_t dash = line.find('-'), path = line.find('/');
        if (dash == std::string::npos || path == std::string::npos) {
            continue;
        }
        const uintptr_t begin = std::strtoull(line.c_str(), nullptr, 16);
        const uintptr_t end = std::strtoull(line.c_str() + dash + 1, nullptr, 16);
        if (begin <= address && address < end) {
            around = line.substr(path);
        }
        if (is_libodc(line)) {
            named = line.substr(path);
        }
    }
    const bool is_around = is_libodc(around) || named.empty();
    const std::string &found = is_around ? around : named;
    return found.empty() ? "a place that the dynamic linker does not know" : found;
}

// Whether the loaded library has this header's binary interface: the same major version, and no earlier minor version.
// Context::join and the functions that need no context check this first. The dynamic linker itself reports, before main, a
// missing library and symbols of other versions, and missing functions before main or at their first call.
template <class... S, class = detail::Trailing<S...>>
bool check_library(S &...status) noexcept(detail::kQuiet<S...>) {
    const Version found = Version::found(), needed = Version::needed();
    if (found.major == needed.major && found.minor >= needed.minor) {
        return detail::check(ODC_OK, status...);
    }
    return detail::guard(
        [&] {
            const std::string major = std::to_string(needed.major), minor = std::to_string(needed.minor);
            return detail::refuse(ODC_ERROR_UNSUPPORTED,
                                  "libodc " + found.text() + " was loaded from " + library_path() +
                                      ", but this program was written for libodc " + needed.text() + " and needs " +
                                      major + "." + minor + " or a later " + major +
                                      ".x; install that, or put its folder first in LD_LIBRARY_PATH",
                                  status...);
        },
        status...);
}

// The library's version, build type and vector instructions, and the machine, as one line of text.
template <class... S, class = detail::Trailing<S...>>
const char *build(S &...status) noexcept(detail::kQuiet<S...>) {
    return check_library(status...) ? odc_build() : "";
}

struct Transport {
    std::string name;                    // "cuda", "shm", "fabric"
    std::optional<std::string> why_not;  // empty: it is ready
};

struct Setting {
    std::string name, fallback, help;  // of the environment variable; its default; what it means
};

struct Topology {
    std::string json, xml;  // as `odc topo --json` prints it; a record of this machine, which hwloc and topology() read
};

namespace detail {

// Reads rows until ODC_ERROR_ARGUMENT.
template <class Struct, class Make, class... S>
auto rows(odc_status (*get)(size_t, Struct *), Make make, S &...status) noexcept(kQuiet<S...>) {
    return guard(
        [&] {
            std::vector<decltype(make(Struct()))> made;
            if (check_library(status...)) {
                auto row = sized<Struct>();
                int32_t code = ODC_OK;
                while ((code = get(made.size(), &row)) == ODC_OK) {
                    made.push_back(make(row));
                }
                if (!check(code == ODC_ERROR_ARGUMENT ? ODC_OK : code, status...)) {
                    made.clear();
                }
            }
            return made;
        },
        status...);
}

template <class... S>
Topology topology(const std::string &file, S &...status) noexcept(kQuiet<S...>) {
    return guard(
        [&] {
            const char *name = nullptr, *json = nullptr, *xml = nullptr;
            if (check_library(status...) && to_c(file, "the file's name", name, status...) &&
                check(odc_get_topology(name, &json, &xml), status...)) {
                return Topology{text(json), text(xml)};
            }
            return Topology{};
        },
        status...);
}

}  // namespace detail

// The transports, in order of preference. Querying libfabric takes 0.3 s.
template <class... S, class = detail::Trailing<S...>>
std::vector<Transport> transports(S &...status) noexcept(detail::kQuiet<S...>) {
    const auto make = [](const odc_transport &row) {
        return Transport{row.name,
                         row.why_not == nullptr ? std::nullopt : std::make_optional(detail::text(row.why_not))};
    };
    return detail::rows<odc_transport>(odc_get_transport, make, status...);
}

// The settings that the library reads from the environment.
template <class... S, class = detail::Trailing<S...>>
std::vector<Setting> settings(S &...status) noexcept(detail::kQuiet<S...>) {
    const auto make = [](const odc_setting &row) { return Setting{row.name, row.fallback, row.help}; };
    return detail::rows<odc_setting>(odc_get_setting, make, status...);
}

// The topology of this machine, or of one that hwloc recorded in a file.
template <class... S, class = detail::Trailing<S...>>
Topology topology(S &...status) noexcept(detail::kQuiet<S...>) {
    return detail::topology("", status...);
}
template <class... S, class = detail::Trailing<S...>>
Topology topology(const std::string &file, S &...status) noexcept(detail::kQuiet<S...>) {
    return detail::topology(file, status...);
}

}  // namespace ODC_ABI
}  // namespace odc
#endif
