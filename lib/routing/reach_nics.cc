// SPDX-License-Identifier: Apache-2.0
// Other hosts: which NIC of this rank leads to which NIC of another one.
#include "base/error.h"
#include "routing/reach.h"
#include "routing/route.h"

#include <algorithm>
#include <optional>
#include <tuple>

namespace odc {

namespace {

// How one NIC leads to another.
enum class Link { Subnet, Own, Unknown, Routed, LinkLocal };

// Nothing when it does not.
std::optional<Link> link_between(const NicAddress &a, const NicAddress &b) {
    const ProviderRow &row = provider_of(a);
    if (&row != &provider_of(b)) {
        return std::nullopt;
    }
    if (row.addressing == Addressing::Own) {
        return Link::Own;
    }
    // Wires that differ: verbs serves InfiniBand and RoCE.
    if (row.wire == Wire::Rdma && a.kind != b.kind) {
        return std::nullopt;
    }
    if (a.family == 0 || b.family == 0) {
        return Link::Unknown;
    }
    const Network one = network_of(a);
    const Network other = network_of(b);
    if (a.family != b.family || is_link_local(one) != is_link_local(other)) {
        return std::nullopt;
    }
    if (is_link_local(one)) {
        return Link::LinkLocal;
    }
    if (same_subnet(one, other)) {
        return Link::Subnet;
    }
    if (a.kind == static_cast<uint8_t>(NicKind::InfiniBand)) {
        return std::nullopt;  // IP routers do not forward it
    }
    return Link::Routed;
}

struct Pair {
    size_t low;  // NIC of the rank with the lower number
    size_t high;
    Link link;
};

bool is_tunnel(const NicAddress &nic) { return nic.kind == static_cast<uint8_t>(NicKind::Tunnel); }

// Lower is better; the same whichever rank asks.
auto score(const NicAddress &a, const NicAddress &b, Link link) {
    return std::tuple(link == Link::LinkLocal, &provider_of(a), is_tunnel(a) || is_tunnel(b), link,
                      ~std::min(a.speed, b.speed), std::max(a.distance, b.distance), unsigned{a.distance} + b.distance,
                      a.family);
}

// The pairs with the best score. `is_unreachable`: of indexes in `low` and `high`.
template <class IsUnreachable>
std::vector<Pair> best_pairs(const std::vector<NicAddress> &low, const std::vector<NicAddress> &high,
                             const IsUnreachable &is_unreachable) {
    std::vector<Pair> best;
    for (size_t i = 0; i < low.size(); ++i) {
        for (size_t j = 0; j < high.size(); ++j) {
            const std::optional<Link> link = link_between(low[i], high[j]);
            if (!link || is_unreachable(i, j)) {
                continue;
            }
            const auto mine = score(low[i], high[j], *link);
            if (!best.empty()) {
                const auto theirs = score(low[best[0].low], high[best[0].high], best[0].link);
                if (theirs < mine) {
                    continue;
                }
                if (mine < theirs) {
                    best.clear();
                }
            }
            best.push_back({i, j, *link});
        }
    }
    return best;
}

// Keeps the pairs with the NIC that this rank takes among its host's equal ones; returns how many of these there were.
template <class Side>
size_t spread(std::vector<Pair> &pairs, int index, Side side) {
    std::vector<size_t> nics;
    for (const Pair &pair : pairs) {
        if (std::find(nics.begin(), nics.end(), pair.*side) == nics.end()) {
            nics.push_back(pair.*side);
        }
    }
    std::sort(nics.begin(), nics.end());
    const size_t taken = nics[static_cast<size_t>(index) % nics.size()];
    pairs.erase(std::remove_if(pairs.begin(), pairs.end(), [&](const Pair &pair) { return pair.*side != taken; }),
                pairs.end());
    return nics.size();
}

std::string link_text(Link link, const NicAddress &mine, const NicAddress &theirs) {
    switch (link) {
        case Link::Subnet: return formatted("one subnet ({})", subnet_text(network_of(mine)));
        case Link::Own: return "the provider's own addresses";
        case Link::Unknown: return "addresses not known";
        case Link::Routed:
            return formatted("by the routing table ({} to {})", network_text(network_of(mine)),
                             network_text(network_of(theirs)));
        case Link::LinkLocal: return "addresses of one link only";
    }
    return "";
}

std::string speed_text(const NicAddress &mine, const NicAddress &theirs) {
    const uint32_t slower = std::min(mine.speed, theirs.speed);
    return slower == 0 ? "speed unknown" : formatted("{:g} Gbit/s", slower / 1000.0);
}

std::string nics_text(const RankDescriptor &rank) {
    if (!rank.why_no_fabric.empty()) {
        return formatted("rank {} cannot use it: {}", rank.rank, rank.why_no_fabric);
    }
    if (rank.nics.empty()) {
        return formatted("rank {} has no NIC that can be used", rank.rank);
    }
    std::vector<std::string> nics;
    for (const NicAddress &nic : rank.nics) {
        nics.push_back(formatted("{} by {}{}", nic.name, provider_of(nic).name,
                                 nic.family != 0 ? formatted(" in {}", network_text(network_of(nic))) : ""));
    }
    return formatted("rank {} has {}", rank.rank, listed(nics, ", "));
}

// "eth1 (192.0.2.1/24) to eth1 (192.0.2.2/24), ..."
std::string unreachable_text(const RankPair &pair) {
    const auto nic_text = [](const RankDescriptor &rank, int index) {
        const NicAddress &nic = rank.nics[static_cast<size_t>(index)];
        return formatted("{} ({})", nic.name, network_text(network_of(nic)));
    };
    std::vector<std::string> text;
    for (const NicPair &one : pair.unreachable) {
        text.push_back(formatted("{} to {}", nic_text(pair.mine, one.mine), nic_text(pair.theirs, one.theirs)));
    }
    return listed(text, ", ");
}

// Names an end only if the two differ.
std::string way_between_hosts(const RankDescriptor &mine, const RankDescriptor &theirs) {
    if (mine.why_no_gpu_direct == theirs.why_no_gpu_direct) {
        const std::string &why_not = mine.why_no_gpu_direct;
        return why_not.empty()           ? "by GPUDirect RDMA"
               : why_not == kNoGpuDirect ? "through host memory"
                                         : formatted("through host memory, as {}", why_not);
    }
    std::string text;
    for (const RankDescriptor *rank : {&mine, &theirs}) {
        if (!rank->why_no_gpu_direct.empty()) {
            text += formatted("{}of rank {}, as {}", text.empty() ? "through host memory " : " and ", rank->rank,
                              rank->why_no_gpu_direct);
        }
    }
    return text;
}

}  // namespace

std::string reach_by_nics(const RankPair &pair, RouteChoice &choice) {
    const RankDescriptor &mine = pair.mine;
    const RankDescriptor &theirs = pair.theirs;
    const bool is_low = mine.rank < theirs.rank;
    const RankDescriptor &low = is_low ? mine : theirs;
    const RankDescriptor &high = is_low ? theirs : mine;
    if (!mine.why_no_fabric.empty() || !theirs.why_no_fabric.empty()) {
        return nics_text(mine.why_no_fabric.empty() ? theirs : mine);
    }
    std::vector<Pair> pairs = best_pairs(low.nics, high.nics, [&](size_t low_nic, size_t high_nic) {
        return std::any_of(pair.unreachable.begin(), pair.unreachable.end(), [&](const NicPair &one) {
            return static_cast<size_t>(is_low ? one.mine : one.theirs) == low_nic &&
                   static_cast<size_t>(is_low ? one.theirs : one.mine) == high_nic;
        });
    });
    if (pairs.empty()) {
        return low.nics.empty() || high.nics.empty()
                   ? nics_text(low.nics.empty() ? low : high)
                   : formatted("no two NICs reach each other: {}; {}{}", nics_text(mine), nics_text(theirs),
                               pair.unreachable.empty()
                                   ? ""
                                   : formatted("; tried without an answer: {} (a cable, a VLAN or a "
                                               "firewall between them?)",
                                               unreachable_text(pair)));
    }
    const size_t low_equals = spread(pairs, low.index, &Pair::low);
    const size_t high_equals = spread(pairs, high.index, &Pair::high);
    choice.my_nic = static_cast<int>(is_low ? pairs[0].low : pairs[0].high);
    choice.their_nic = static_cast<int>(is_low ? pairs[0].high : pairs[0].low);
    const NicAddress &my = mine.nics[static_cast<size_t>(choice.my_nic)];
    const NicAddress &their = theirs.nics[static_cast<size_t>(choice.their_nic)];
    choice.read_mode = read_mode_of(my);
    choice.why = formatted("{} from {} to {}: {}, {}, {}", provider_of(my).name, my.name, their.name,
                           link_text(pairs[0].link, my, their), speed_text(my, their),
                           name_of(static_cast<Nearness>(my.distance)));
    if (const size_t equals = is_low ? low_equals : high_equals; equals > 1) {
        choice.why += formatted("; one of {} equal NICs, chosen by local rank", equals);
    }
    if (!pair.unreachable.empty()) {
        choice.why += formatted("; tried without an answer: {}", unreachable_text(pair));
    }
    return "";
}

std::string reach_gpu_by_nics(const RankPair &pair, RouteChoice &choice) {
    const std::string why_not = reach_by_nics(pair, choice);
    if (why_not.empty()) {
        choice.read_mode = ReadMode::Staged;
        choice.why = formatted("{}; {}", way_between_hosts(pair.mine, pair.theirs), choice.why);
    }
    return why_not;
}

}  // namespace odc
