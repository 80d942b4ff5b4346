// SPDX-License-Identifier: Apache-2.0
// The link between two GPUs of a host, and its text form in a recorded machine.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace odc {

enum class Ability : uint8_t { Unknown, No, Yes };

enum class NvLink : uint8_t { Unknown, None, Direct, Switch };

inline constexpr std::array<const char *, 4> kNvLinks = {"unknown", "no", "NVLink", "NVSwitch"};

constexpr const char *name_of(NvLink link) { return kNvLinks[static_cast<size_t>(link)]; }

// From one GPU to another, or in both directions: then what both directions have.
struct GpuLink {
    NvLink nvlink = NvLink::Unknown;
    int links = 0;                       // number of NVLinks between them, or to NVSwitch; 0: unknown
    Ability p2p = Ability::Unknown;      // reads and writes of the other's memory
    Ability atomics = Ability::Unknown;  // native atomics on it

    bool operator==(const GpuLink &) const = default;
};

// No if either is No, Yes if both are.
Ability both(Ability there, Ability back);
GpuLink both_ways(const GpuLink &there, const GpuLink &back);

constexpr bool has_nvlink(const GpuLink &link) {
    return link.nvlink == NvLink::Direct || link.nvlink == NvLink::Switch;
}

std::string nvlink_text(const GpuLink &link);  // "NVSwitch (18 links)", "no NVLink", "NVLink unknown"
std::string p2p_text(const GpuLink &link);     // "P2P with native atomics", "no P2P", "P2P unknown"

// ---- Attributes of a GPU: "BUS_ID=VALUE BUS_ID=VALUE ...", one for each other GPU ----

struct PeerValue {
    std::string bus_id;
    std::string value;
};

// Throws ODC_ERROR_ARGUMENT with the word that is not BUS_ID=VALUE.
std::vector<PeerValue> parse_peers(const std::string &text);

// "no", "NVLink:4", "NVSwitch:18"; without ":N" if the number is unknown; "" if nothing is known.
std::string nvlink_value(const GpuLink &link);
// False for an invalid value.
bool parse_nvlink(const std::string &value, GpuLink &link);

std::string ability_value(Ability ability);  // "yes", "no"; "" if unknown
bool parse_ability(const std::string &value, Ability &ability);

}  // namespace odc
