// SPDX-License-Identifier: Apache-2.0
#include "routing/route.h"

#include "base/error.h"
#include "base/settings.h"

#include <algorithm>
#include <optional>
#include <tuple>

namespace odc {

namespace {

// How one port leads to another.
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
    size_t low;  // port of the rank with the lower number
    size_t high;
    Link link;
};

bool is_tunnel(const NicAddress &port) { return port.kind == static_cast<uint8_t>(NicKind::Tunnel); }

// Lower is better; the same whichever rank asks.
auto score(const NicAddress &a, const NicAddress &b, Link link) {
    return std::tuple(link == Link::LinkLocal, &provider_of(a), is_tunnel(a) || is_tunnel(b), link,
                      ~std::min(a.speed, b.speed), std::max(a.distance, b.distance), unsigned{a.distance} + b.distance,
                      a.family);
}

// The pairs with the best score. `is_silent`: of places in `low` and `high`.
template <class IsSilent>
std::vector<Pair> best_pairs(const std::vector<NicAddress> &low, const std::vector<NicAddress> &high,
                             const IsSilent &is_silent) {
    std::vector<Pair> best;
    for (size_t i = 0; i < low.size(); ++i) {
        for (size_t j = 0; j < high.size(); ++j) {
            const std::optional<Link> link = link_between(low[i], high[j]);
            if (!link || is_silent(i, j)) {
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

// Keeps the pairs with the port that this rank of its host takes among equals; how many there were.
template <class Side>
size_t spread(std::vector<Pair> &pairs, int index, Side side) {
    std::vector<size_t> ports;
    for (const Pair &pair : pairs) {
        if (std::find(ports.begin(), ports.end(), pair.*side) == ports.end()) {
            ports.push_back(pair.*side);
        }
    }
    std::sort(ports.begin(), ports.end());
    const size_t taken = ports[static_cast<size_t>(index) % ports.size()];
    pairs.erase(std::remove_if(pairs.begin(), pairs.end(), [&](const Pair &pair) { return pair.*side != taken; }),
                pairs.end());
    return ports.size();
}

std::string link_text(Link link, const NicAddress &mine, const NicAddress &theirs) {
    switch (link) {
        case Link::Subnet: return say("one subnet (", subnet_text(network_of(mine)), ")");
        case Link::Own: return "the provider's own addresses";
        case Link::Unknown: return "addresses not known";
        case Link::Routed:
            return say("by the routing table (", network_text(network_of(mine)), " to ",
                       network_text(network_of(theirs)), ")");
        case Link::LinkLocal: return "addresses of one link only";
    }
    return "";
}

std::string speed_text(const NicAddress &mine, const NicAddress &theirs) {
    const uint32_t slower = std::min(mine.speed, theirs.speed);
    return slower == 0 ? "speed unknown" : say(slower / 1000.0, " Gbit/s");
}

std::string offers_text(const RankDescriptor &rank) {
    if (!rank.why_no_fabric.empty()) {
        return say("rank ", rank.rank, " cannot use it: ", rank.why_no_fabric);
    }
    if (rank.ports.empty()) {
        return say("rank ", rank.rank, " has no NIC that can be used");
    }
    std::vector<std::string> ports;
    for (const NicAddress &port : rank.ports) {
        ports.push_back(say(port.nic, " by ", provider_of(port).name,
                            port.family != 0 ? say(" in ", network_text(network_of(port))) : ""));
    }
    return say("rank ", rank.rank, " has ", listed(ports, ", "));
}

// Why this transport is forbidden by one of the two; empty: it is not.
std::string forbidden(TransportIndex transport, const RankDescriptor &mine, const RankDescriptor &theirs) {
    for (const RankDescriptor *rank : {&mine, &theirs}) {
        if ((rank->transports >> transport & 1) == 0) {
            return say("ODC_TRANSPORTS of rank ", rank->rank, " leaves it out");
        }
    }
    return "";
}

std::string why_no_shm(const RankDescriptor &mine, const RankDescriptor &theirs) {
    if (mine.identity == theirs.identity) {
        return forbidden(kShm, mine, theirs);
    }
    return mine.host == theirs.host
               ? say("rank ", theirs.rank,
                     " is on a host of the same name, but their kernel, network namespace, user and "
                     "ODC_HOST_ID are not all the same")
               : say("rank ", theirs.rank, " is on another host (", theirs.host, ")");
}

// "eth1 (192.0.2.1/24) to eth1 (192.0.2.2/24), ..."
std::string pairs_text(const RankDescriptor &mine, const RankDescriptor &theirs, const std::vector<NicPair> &pairs) {
    const auto port_text = [](const RankDescriptor &rank, int place) {
        const NicAddress &port = rank.ports[static_cast<size_t>(place)];
        return say(port.nic, " (", network_text(network_of(port)), ')');
    };
    std::vector<std::string> words;
    for (const NicPair &pair : pairs) {
        words.push_back(say(port_text(mine, pair.mine), " to ", port_text(theirs, pair.theirs)));
    }
    return listed(words, ", ");
}

// Fills the choice's ports, or says why there are none.
std::string choose_ports(const RankDescriptor &mine, const RankDescriptor &theirs, const std::vector<NicPair> &silent,
                         RouteChoice &choice) {
    if (mine.identity == theirs.identity) {
        return say("never inside a host, where shm ",
                   forbidden(kShm, mine, theirs).empty() ? "is faster" : "must be allowed");
    }
    std::string why_not = forbidden(kFabric, mine, theirs);
    if (!why_not.empty()) {
        return why_not;
    }
    const bool is_low = mine.rank < theirs.rank;
    const RankDescriptor &low = is_low ? mine : theirs;
    const RankDescriptor &high = is_low ? theirs : mine;
    if (!mine.why_no_fabric.empty() || !theirs.why_no_fabric.empty()) {
        return offers_text(mine.why_no_fabric.empty() ? theirs : mine);
    }
    const auto is_silent = [&](size_t low_port, size_t high_port) {
        return std::any_of(silent.begin(), silent.end(), [&](const NicPair &pair) {
            return static_cast<size_t>(is_low ? pair.mine : pair.theirs) == low_port &&
                   static_cast<size_t>(is_low ? pair.theirs : pair.mine) == high_port;
        });
    };
    std::vector<Pair> pairs = best_pairs(low.ports, high.ports, is_silent);
    if (pairs.empty()) {
        return low.ports.empty() || high.ports.empty()
                   ? offers_text(low.ports.empty() ? low : high)
                   : say("no two NICs reach each other: ", offers_text(mine), "; ", offers_text(theirs),
                         silent.empty() ? ""
                                        : say("; tried without an answer: ", pairs_text(mine, theirs, silent),
                                              " (a cable, a VLAN or a firewall between them?)"));
    }
    const size_t low_equals = spread(pairs, low.index, &Pair::low);
    const size_t high_equals = spread(pairs, high.index, &Pair::high);
    choice.my_port = static_cast<int>(is_low ? pairs[0].low : pairs[0].high);
    choice.their_port = static_cast<int>(is_low ? pairs[0].high : pairs[0].low);
    const NicAddress &my = mine.ports[static_cast<size_t>(choice.my_port)];
    const NicAddress &their = theirs.ports[static_cast<size_t>(choice.their_port)];
    choice.read_mode = landing_at(my);
    choice.why =
        say(provider_of(my).name, " from ", my.nic, " to ", their.nic, ": ", link_text(pairs[0].link, my, their), ", ",
            speed_text(my, their), ", ", name_of(static_cast<Nearness>(my.distance)));
    if (const size_t equals = is_low ? low_equals : high_equals; equals > 1) {
        choice.why += say("; one of ", equals, " equal NICs, by the rank's place on its host");
    }
    if (!silent.empty()) {
        choice.why += say("; tried without an answer: ", pairs_text(mine, theirs, silent));
    }
    return "";
}

std::string names_of(uint32_t providers) {
    std::vector<std::string> names;
    for (size_t i = 0; i < kProviders.size(); ++i) {
        if ((providers >> i & 1) != 0) {
            names.emplace_back(kProviders[i].name);
        }
    }
    return joined(names, ", ");
}

constexpr const char *kHostOnly = "it moves host memory only";

constexpr const char *kOneProvider = "all ranks of a job use one provider of plain Ethernet";

uint16_t lowest_bit(uint32_t providers) { return static_cast<uint16_t>(providers & -providers); }

uint16_t sockets_of(const RankDescriptor &rank) {
    uint16_t providers = 0;
    for (const NicAddress &port : rank.ports) {
        providers |= provider_of(port).wire == Wire::Sockets ? port.providers : uint16_t{0};
    }
    return providers;
}

}  // namespace

std::string settle(const std::vector<RankDescriptor *> &ranks) {
    std::string words;
    uint16_t common = UINT16_MAX;
    for (const RankDescriptor *rank : ranks) {
        const uint16_t theirs = sockets_of(*rank);
        if (theirs != 0 && common != 0 && (common & theirs) == 0) {
            words = say(kOneProvider, "; rank ", rank->rank, " has ", names_of(theirs),
                        ", but those before it share only ", names_of(common));
        }
        common &= theirs != 0 ? theirs : UINT16_MAX;
    }
    for (RankDescriptor *rank : ranks) {
        for (NicAddress &port : rank->ports) {
            const uint32_t shared = port.providers & common;
            if (shared == 0 && provider_of(port).wire == Wire::Sockets && words.empty()) {
                words = say(kOneProvider, ", here ", names_of(lowest_bit(common)), ", which ", port.nic, " of rank ",
                            rank->rank, " does not have (FI_TCP_IFACE narrows it)");
            }
            port.providers = lowest_bit(shared != 0 ? shared : port.providers);
        }
    }
    return words;
}

std::string why_no_provider() {
    std::string why_not = why_not_fabric();
    if (!why_not.empty()) {
        return why_not;
    }
    const std::vector<ProviderInfo> infos = query_libfabric();
    std::string names;
    for (const ProviderRow &row : kProviders) {
        if (std::any_of(infos.begin(), infos.end(),
                        [&](const ProviderInfo &one) { return one.provider == row.name && one.why_not.empty(); })) {
            return "";
        }
        names += say(names.empty() ? "" : ", ", row.name);
    }
    const std::string filter = environment("FI_PROVIDER");
    return say("libfabric ", libfabric_version(), " offers no provider that can be used here: none of ", names,
               filter.empty() ? "" : say("; FI_PROVIDER=\"", filter, "\" narrows what it offers"));
}

std::vector<ProviderInfo> query_libfabric() {
    std::vector<ProviderInfo> infos;
    const std::string why_not = why_not_fabric();
    if (!why_not.empty()) {
        for (const ProviderRow &row : kProviders) {
            infos.push_back({row.name, "", why_not});
        }
        return infos;
    }
    for (const FabricDomain &one : fabric_domains()) {
        infos.push_back({one.provider, one.domain, one.why_not, one.needs_local ? ReadMode::Staged : ReadMode::Direct});
    }
    if (const std::string filter = environment("FI_PROVIDER"); !filter.empty()) {
        for (const ProviderRow &row : kProviders) {
            infos.push_back({row.name, "", say("libfabric does not offer it (FI_PROVIDER=\"", filter, "\" is set)")});
        }
    }
    return infos;
}

RouteChoice choose_route(const RankDescriptor &mine, const RankDescriptor &theirs, const std::vector<NicPair> &silent) {
    RouteChoice choice;
    std::string why_not = mine.rank == theirs.rank ? "" : why_no_shm(mine, theirs);
    if (why_not.empty()) {
        choice.transport = kTransportNames[kShm];
        choice.why = mine.rank == theirs.rank ? "this rank" : "the same host";
    } else {
        choice.why_not.push_back({kTransportNames[kShm], why_not});
    }
    why_not = choose_ports(mine, theirs, silent, choice);
    if (why_not.empty()) {
        choice.transport = kTransportNames[kFabric];
    } else {
        choice.why_not.push_back({kTransportNames[kFabric], why_not});
    }
    return choice;
}

const char *access_of(const RouteChoice &choice) {
    return choice.transport.empty() ? "none" : name_of(choice.read_mode);
}

std::string why_not_text(const RouteChoice &choice) {
    std::string text;
    for (const WhyNot &one : choice.why_not) {
        text += say(text.empty() ? "" : "; ", one.transport, ": ", one.why);
    }
    return text;
}

namespace {

void refuse(RouteChoice &choice, TransportIndex transport, const std::string &why) {
    choice.why_not.push_back({kTransportNames[transport], why});
}

// Of a pair of which one has none.
RouteChoice no_gpu(const RankDescriptor &rank) {
    RouteChoice choice;
    choice.why = say("rank ", rank.rank, " has no GPU (config.device or ODC_DEVICE names it)");
    refuse(choice, kCuda, choice.why);
    refuse(choice, kShm, kHostOnly);
    refuse(choice, kFabric, kHostOnly);
    return choice;
}

}  // namespace

RouteChoice choose_gpu_route(const RankDescriptor &mine, const RankDescriptor &theirs, const PeerAccess &peer_access) {
    if (mine.gpu.empty() || theirs.gpu.empty()) {
        return no_gpu(mine.gpu.empty() ? mine : theirs);
    }
    RouteChoice choice;
    const bool own = mine.rank == theirs.rank;  // whatever is allowed
    std::string no_cuda = own ? "" : forbidden(kCuda, mine, theirs);
    const std::string no_shm = forbidden(kShm, mine, theirs);
    if (no_cuda.empty()) {
        no_cuda = peer_access.why_not;
    }
    if (no_cuda.empty()) {
        choice.transport = kTransportNames[kCuda];
        choice.why = peer_access.why;
        refuse(choice, kShm, "cuda is faster");
    } else {
        refuse(choice, kCuda, no_cuda);
        if (no_shm.empty()) {
            choice.transport = kTransportNames[kShm];
            choice.why = "through host memory, as " + no_cuda;
            choice.read_mode = ReadMode::Staged;
        } else {
            choice.why = no_cuda;
            refuse(choice, kShm, no_shm);
        }
    }
    refuse(choice, kFabric, "never inside a host");
    return choice;
}

namespace {

// What is the same at both ends is not said of one.
std::string way_between_hosts(const RankDescriptor &mine, const RankDescriptor &theirs) {
    if (mine.why_no_gpu_direct == theirs.why_no_gpu_direct) {
        const std::string &why_not = mine.why_no_gpu_direct;
        return why_not.empty()           ? "by GPUDirect RDMA"
               : why_not == kNoGpuDirect ? "through host memory"
                                         : say("through host memory, as ", why_not);
    }
    std::string text;
    for (const RankDescriptor *rank : {&mine, &theirs}) {
        if (!rank->why_no_gpu_direct.empty()) {
            text += say(text.empty() ? "through host memory " : " and ", "of rank ", rank->rank, ", as ",
                        rank->why_no_gpu_direct);
        }
    }
    return text;
}

}  // namespace

RouteChoice choose_gpu_route(const RankDescriptor &mine, const RankDescriptor &theirs,
                             const RouteChoice &of_host_memory) {
    if (mine.gpu.empty() || theirs.gpu.empty()) {
        return no_gpu(mine.gpu.empty() ? mine : theirs);
    }
    RouteChoice choice = of_host_memory;
    choice.read_mode = ReadMode::Staged;
    if (!choice.transport.empty()) {
        choice.why = say(way_between_hosts(mine, theirs), "; ", choice.why);
    }
    choice.why_not.insert(choice.why_not.begin(), {kTransportNames[kCuda], why_no_shm(mine, theirs)});
    return choice;
}

std::string unmet_requirement(const RouteChoice &choice, const RankDescriptor &mine, const RankDescriptor &theirs,
                              const RouteOptions &options, const std::vector<Refusal> &refused) {
    const std::string between =
        say("rank ", mine.rank, " (host ", mine.host, ") and rank ", theirs.rank, " (host ", theirs.host, ")");
    std::vector<std::string> refusals;
    for (const Refusal &one : refused) {
        refusals.push_back(say(one.nic, ": ", one.why));
    }
    const std::string unused = refusals.empty() ? "" : "; NICs not used here: " + listed(refusals, "; ");
    const bool is_shm = choice.transport == kTransportNames[kShm];
    const bool is_fabric = choice.transport == kTransportNames[kFabric];
    if (!is_shm && !is_fabric) {
        return say("no transport connects ", between, ": ", why_not_text(choice), unused);
    }
    const bool is_rdma = is_fabric && provider_of(mine.ports[static_cast<size_t>(choice.my_port)]).wire == Wire::Rdma;
    const bool same_host = mine.host == theirs.host || mine.identity == theirs.identity;
    const auto lacks = [&](Requirement one) {
        switch (one) {
            case Requirement::Shm: return same_host && !is_shm;
            case Requirement::NvLink: return false;  // it is about GPUs
            case Requirement::Rdma: return is_fabric && !is_rdma;
        }
        return false;
    };
    for (size_t i = 0; i < kRequirements.size(); ++i) {
        const auto one = static_cast<Requirement>(i);
        if (options.requires_that(one) && lacks(one)) {
            return say(demand_of(one), ", but the route between ", between, " is ", choice.transport, ": ", choice.why,
                       "; ", why_not_text(choice), unused);
        }
    }
    return "";
}

}  // namespace odc
