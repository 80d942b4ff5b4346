// SPDX-License-Identifier: Apache-2.0
// What is between two GPUs of a host, as a value, and as text in the record of a machine.
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

// One way, or both: then what both ways have.
struct GpuLink {
    NvLink nvlink = NvLink::Unknown;
    int links = 0;                       // of NVLink: between them, or to NVSwitch; 0: unknown
    Ability p2p = Ability::Unknown;      // whether one reads and writes the other's memory
    Ability atomics = Ability::Unknown;  // whether it does so with native atomics

    bool operator==(const GpuLink &) const = default;
};

// No is certain from one side, yes from both.
Ability both(Ability there, Ability back);
GpuLink both_ways(const GpuLink &there, const GpuLink &back);

constexpr bool has_nvlink(const GpuLink &link) {
    return link.nvlink == NvLink::Direct || link.nvlink == NvLink::Switch;
}

std::string nvlink_text(const GpuLink &link);  // "NVSwitch (18 links)", "no NVLink", "NVLink unknown"
std::string p2p_text(const GpuLink &link);     // "P2P with native atomics", "no P2P", "P2P unknown"

// ---- Attributes of a GPU: "BUS_ID=VALUE BUS_ID=VALUE ...", for each other one ----

struct PeerValue {
    std::string bus_id;
    std::string value;
};

// Throws ODC_ERROR_ARGUMENT, with the word that is none.
std::vector<PeerValue> parse_peers(const std::string &text);

// "no", "NVLink:4", "NVSwitch:18", without ":N" where the number is unknown. "" for what is not known at all.
std::string nvlink_value(const GpuLink &link);
// False for a value that says nothing.
bool parse_nvlink(const std::string &value, GpuLink &link);

std::string ability_value(Ability ability);  // "yes", "no"; "": unknown
bool parse_ability(const std::string &value, Ability &ability);

}  // namespace odc
