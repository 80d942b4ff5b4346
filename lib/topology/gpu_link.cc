// SPDX-License-Identifier: Apache-2.0
#include "topology/gpu_link.h"

#include "base/error.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <system_error>

namespace odc {

namespace {

NvLink both(NvLink there, NvLink back) {
    if (there == NvLink::None || back == NvLink::None) {
        return NvLink::None;
    }
    return there == NvLink::Unknown || back == NvLink::Unknown ? NvLink::Unknown : std::min(there, back);
}

}  // namespace

Ability both(Ability there, Ability back) {
    if (there == Ability::No || back == Ability::No) {
        return Ability::No;
    }
    return there == Ability::Yes && back == Ability::Yes ? Ability::Yes : Ability::Unknown;
}

GpuLink both_ways(const GpuLink &there, const GpuLink &back) {
    GpuLink link{both(there.nvlink, back.nvlink), 0, both(there.p2p, back.p2p), both(there.atomics, back.atomics)};
    if (has_nvlink(link)) {
        link.links = std::min(there.links, back.links);
    }
    return link;
}

std::string nvlink_text(const GpuLink &link) {
    switch (link.nvlink) {
        case NvLink::Unknown: return "NVLink unknown";
        case NvLink::None: return "no NVLink";
        case NvLink::Direct:
        case NvLink::Switch: break;
    }
    return formatted("{}{}", name_of(link.nvlink),
                     link.links == 0 ? "" : formatted(" ({}{}", link.links, link.links == 1 ? " link)" : " links)"));
}

std::string p2p_text(const GpuLink &link) {
    switch (link.p2p) {
        case Ability::Unknown: return "P2P unknown";
        case Ability::No: return "no P2P";
        case Ability::Yes: break;
    }
    switch (link.atomics) {
        case Ability::Unknown: break;
        case Ability::No: return "P2P without native atomics";
        case Ability::Yes: return "P2P with native atomics";
    }
    return "P2P, native atomics unknown";
}

std::vector<PeerValue> parse_peers(const std::string &text) {
    std::vector<PeerValue> peers;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        if (equals == std::string::npos) {
            fail(ODC_ERROR_ARGUMENT, "\"{}\" is not BUS_ID=VALUE", word);
        }
        peers.push_back({word.substr(0, equals), word.substr(equals + 1)});
    }
    return peers;
}

std::string nvlink_value(const GpuLink &link) {
    if (link.nvlink == NvLink::Unknown) {
        return "";
    }
    return formatted("{}{}", name_of(link.nvlink), link.links == 0 ? "" : formatted(":{}", link.links));
}

bool parse_nvlink(const std::string &value, GpuLink &link) {
    constexpr int kMost = 1000;
    const size_t colon = std::min(value.find(':'), value.size());
    const auto *const name = std::find(kNvLinks.begin() + 1, kNvLinks.end(), value.substr(0, colon));
    if (name == kNvLinks.end()) {
        return false;
    }
    link.nvlink = static_cast<NvLink>(name - kNvLinks.begin());
    link.links = 0;
    if (colon == value.size()) {
        return true;
    }
    const char *const end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data() + colon + 1, end, link.links);
    return link.nvlink != NvLink::None && error == std::errc() && stop == end && link.links > 0 && link.links <= kMost;
}

std::string ability_value(Ability ability) {
    return ability == Ability::Unknown ? "" : ability == Ability::Yes ? "yes" : "no";
}

bool parse_ability(const std::string &value, Ability &ability) {
    ability = value == "yes" ? Ability::Yes : Ability::No;
    return value == "yes" || value == "no";
}

}  // namespace odc
