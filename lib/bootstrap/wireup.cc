// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/wireup.h"

#include <sched.h>
#include <sodium.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/settings.h"
#include "bootstrap/gdr_setup.h"
#include "bootstrap/nvlink_requirement.h"
#include "bootstrap/p2p_selftest.h"
#include "bootstrap/reachability_probe.h"
#include "memory/control_block.h"
#include "routing/route_options.h"
#include "topology/topology_source.h"

namespace odc {

namespace {

// This rank's NICs, as it would like to be reached.
struct Outlook {
    Wishes wishes;
    Ports ports;
    std::string why_no_fabric;
    std::string discord;  // what `settle` says
};

// A rank as this one sees it.
struct Neighbour {
    RankDescriptor descriptor;
    Doorsteps doorsteps{};
    std::vector<PortPair> silent;  // by which there was no answer, in one direction at least
};

// What NICs should be near to: the rank's GPU (NULL: it has none), or else its host memory.
Device own_memory(const Machine &machine, const Cuda *cuda) {
    const std::string gpu = cuda != nullptr ? cuda->device().bus_id() : "";
    for (size_t i = 0; i < machine.gpus.size(); ++i) {
        if (machine.gpus[i].bus_id == gpu) {
            return {Device::What::Gpu, i};
        }
    }
    unsigned node = 0;
    getcpu(nullptr, &node);
    for (size_t i = 0; i < machine.numa_nodes.size(); ++i) {
        if (machine.numa_nodes[i].index == static_cast<int>(node)) {
            return {Device::What::NumaNode, i};
        }
    }
    return {};
}

Outlook look_out(const Wishes &wishes, const Cuda *cuda) {
    Outlook outlook{wishes, {}, why_not_fabric(), {}};
    const Machine machine = this_machine(Look::Quick);
    outlook.ports = ports_of(machine, own_memory(machine, cuda), wishes, offers_of_libfabric());
    return outlook;
}

RankDescriptor describe(const Membership &membership, const std::vector<IdentityCard> &cards, int rank) {
    const Peer &peer = membership.peers[static_cast<size_t>(rank)];
    const std::vector<int> &mates = membership.hosts[peer.host_index];
    RankDescriptor descriptor;
    descriptor.rank = rank;
    descriptor.host = peer.host;
    descriptor.identity = peer.identity;
    descriptor.index = static_cast<int>(std::find(mates.begin(), mates.end(), rank) - mates.begin());
    descriptor.transports = cards[static_cast<size_t>(rank)].transports;
    if (peer.arena) {
        const GpuIdentity &gpu = peer.rank_block().gpu;
        descriptor.gpu = gpu.present ? gpu.name : "";
    } else {
        descriptor.gpu = cards[static_cast<size_t>(rank)].gpu;
    }
    return descriptor;
}

// Round 2: every rank's NICs.
void exchange_ports(Exchange &exchange, Outlook &outlook, const Doorsteps &doorsteps, int rank,
                    std::vector<Neighbour> &all) {
    PortsCard mine{kPortsMagic, rank, static_cast<uint32_t>(outlook.ports.ports.size()), {}, doorsteps, {}};
    std::copy(outlook.ports.ports.begin(), outlook.ports.ports.end(), mine.ports.begin());
    put(mine.why_no_fabric, outlook.why_no_fabric);
    const std::vector<Card> cards = exchange.all_gather(card_of(mine));
    check_regrets(cards);
    for (Neighbour &one : all) {
        RankDescriptor &descriptor = one.descriptor;
        const PortsCard card = read_ports(cards[static_cast<size_t>(descriptor.rank)], descriptor.rank);
        descriptor.ports.assign(card.ports.begin(), card.ports.begin() + card.count);
        descriptor.why_no_fabric = card.why_no_fabric;
        one.doorsteps = card.doorsteps;
    }
    std::vector<RankDescriptor *> ranks;
    for (Neighbour &one : all) {
        ranks.push_back(&one.descriptor);
    }
    outlook.discord = settle(ranks);
}

void put_in_words(Route &route, const RankDescriptor &mine, const RankDescriptor &theirs) {
    const Verdict &verdict = route.verdict;
    route.why_not = why_not_text(verdict);
    if (verdict.my_port >= 0) {
        const Port &port = mine.ports[static_cast<size_t>(verdict.my_port)];
        route.provider = provider_of(port).name;
        route.nic = port.nic;
        route.peer_nic = theirs.ports[static_cast<size_t>(verdict.their_port)].nic;
    }
}

// Throws ODC_ERROR_UNSUPPORTED where a rank cannot be reached, or not as ODC_REQUIRE asks.
void judge(Membership &membership, const std::vector<Neighbour> &all, const Outlook &outlook) {
    const RankDescriptor &mine = all[static_cast<size_t>(membership.terms.rank)].descriptor;
    for (const auto &[theirs, doorsteps, silent] : all) {
        Route &route = membership.peers[static_cast<size_t>(theirs.rank)].route;
        route.verdict = choose_route(mine, theirs, silent);
        const std::string why_not = objection(route.verdict, mine, theirs, outlook.wishes, outlook.ports.refused);
        if (!why_not.empty()) {
            const bool none = route.verdict.transport.empty() && !outlook.discord.empty();
            fail(ODC_ERROR_UNSUPPORTED, "odc_init: ", why_not, none ? "; " + outlook.discord : "");
        }
        put_in_words(route, mine, theirs);
    }
}

// Knocks at every rank that a route leads to; who does not answer.
SilenceCard knock(Porch &porch, const Membership &membership, const std::vector<Neighbour> &all,
                  const Patience &patience) {
    const int rank = membership.terms.rank;
    std::vector<Porch::Visit> visits;
    std::vector<int> ranks;
    for (int other = 0; std::max(rank, other) < std::min(membership.terms.size, SilenceCard::kRanks); ++other) {
        const Verdict &verdict = membership.peers[static_cast<size_t>(other)].route.verdict;
        const Neighbour &theirs = all[static_cast<size_t>(other)];
        const auto door = static_cast<size_t>(verdict.their_port);
        if (verdict.their_port >= 0 && theirs.doorsteps[door] != 0) {
            const auto my_port = static_cast<size_t>(verdict.my_port);
            visits.push_back({all[static_cast<size_t>(rank)].descriptor.ports[my_port], theirs.descriptor.ports[door],
                              theirs.doorsteps[door]});
            ranks.push_back(other);
        }
    }
    SilenceCard card{kSilenceMagic, rank, 0, {}};
    for (const size_t visit : porch.knock(visits, patience)) {
        card.set_silent(ranks[visit]);
    }
    return card;
}

// Round 3: which routes lead nowhere. True: none; else it is made again, with other routes.
bool all_answered(Exchange &exchange, const SilenceCard &mine, const Membership &membership,
                  std::vector<Neighbour> &all) {
    const std::vector<Card> cards = exchange.all_gather(card_of(mine));
    check_regrets(cards);
    bool all_did = true;
    for (int rank = 0; rank < membership.terms.size; ++rank) {
        const SilenceCard theirs = read_silence(cards[static_cast<size_t>(rank)], rank);
        all_did = all_did && theirs.count == 0;
        const Verdict &verdict = membership.peers[static_cast<size_t>(rank)].route.verdict;
        if (std::max(rank, mine.rank) < SilenceCard::kRanks && verdict.my_port >= 0 &&
            (mine.is_silent(rank) || theirs.is_silent(mine.rank))) {
            all[static_cast<size_t>(rank)].silent.push_back({verdict.my_port, verdict.their_port});
        }
    }
    return all_did;
}

// The endpoints that routes go through, by place in this rank's ports; and the place of each there is among those opened.
struct Doors {
    std::vector<FabricPort> opened;
    std::array<size_t, kMaxPorts> place;
};

Doors doors_of(const Membership &membership, const std::vector<Port> &ports) {
    Doors doors{{}, {}};
    doors.place.fill(kMaxPorts);
    for (const Peer &peer : membership.peers) {
        if (peer.route.verdict.my_port < 0) {
            continue;
        }
        const auto port = static_cast<size_t>(peer.route.verdict.my_port);
        if (doors.place[port] == kMaxPorts) {
            const Port &nic = ports[port];
            doors.place[port] = doors.opened.size();
            doors.opened.push_back({provider_of(nic).name, domain_of(nic), nic.family, {}});
            std::copy(std::begin(nic.address), std::end(nic.address), doors.opened.back().address.begin());
        }
    }
    return doors;
}

// A socket to each rank of another host, and some for the program.
void check_descriptors(const Membership &membership) {
    const uint64_t needed =
        128 + static_cast<uint64_t>(membership.terms.size) - membership.hosts[membership.own().host_index].size();
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed) {
        fail(ODC_ERROR_UNSUPPORTED, "odc_init: connections to the ranks of other hosts need ", needed,
             " descriptors, but this process may have ", limit.rlim_cur, "; raise the limit (ulimit -n)");
    }
}

// `gpu`: whose memory NICs are to reach; NULL: none.
std::unique_ptr<Fabric> open_fabric(const Membership &membership, const Doors &doors, const CudaDevice *gpu) {
    const Terms &terms = membership.terms;
    // Before the deadline of who waits for it, or the error would not name who is lost.
    const int64_t silence_ms = std::min(terms.timeout_ms / 2, setting_number(Setting::kSilenceMs));
    const auto staging = static_cast<size_t>(setting_number(Setting::kStagingBytes));
    RankBlock *block = &membership.own().rank_block();
    return std::make_unique<Fabric>(FabricTerms{terms.rank, terms.size, block, gpu, staging, silence_ms}, doors.opened);
}

// By GPUDirect RDMA if that can be: empty; else why it cannot.
std::string open_doors(Membership &membership, const Doors &doors, const Patience &patience) {
    Cuda *const cuda = membership.cuda.get();
    std::string why_not = why_not_gpu_direct(cuda);
    if (why_not.empty()) {
        try {
            membership.fabric = open_fabric(membership, doors, &cuda->device());
            open_gpu_direct(*cuda, *membership.fabric, membership.terms.rank, patience);
        } catch (const Error &error) {
            if (error.status() == ODC_ERROR_INTERRUPTED || error.status() == ODC_ERROR_DEVICE) {
                throw;
            }
            why_not = error.what();
            membership.fabric.reset();
            cuda->close_outward();
        }
    }
    if (!membership.fabric) {
        membership.fabric = open_fabric(membership, doors, nullptr);
    }
    return why_not;
}

EndpointCard card_of_doors(const Membership &membership, const Doors &doors, const std::string &why_no_gpu_direct) {
    const Fabric &fabric = *membership.fabric;
    EndpointCard card{kEndpointMagic, membership.terms.rank, 0, {}, {}, {}};
    put(card.why_no_gpu_direct, why_no_gpu_direct);
    randombytes_buf(card.token.data(), card.token.size());
    for (size_t port = 0; port < kMaxPorts; ++port) {
        if (doors.place[port] == kMaxPorts) {
            continue;
        }
        const std::vector<std::byte> &name = fabric.name(doors.place[port]);
        EndpointName &out = card.names[port];
        if (name.size() > sizeof(out.name)) {
            fail(ODC_ERROR_UNSUPPORTED, "odc_init: the provider names its endpoints by ", name.size(),
                 " bytes, at most ", sizeof(out.name), " are possible");
        }
        out.bytes = static_cast<uint32_t>(name.size());
        std::copy(name.begin(), name.end(), out.name.begin());
    }
    return card;
}

// Round 4: every rank's endpoints.
std::vector<EndpointCard> exchange_endpoints(Exchange &exchange, const EndpointCard &mine) {
    const std::vector<Card> cards = exchange.all_gather(card_of(mine));
    check_regrets(cards);
    std::vector<EndpointCard> all;
    for (size_t rank = 0; rank < cards.size(); ++rank) {
        all.push_back(read_endpoint(cards[rank], static_cast<int>(rank)));
    }
    return all;
}

void start_fabric(Membership &membership, const std::vector<EndpointCard> &cards, const Doors &doors) {
    std::vector<FabricPeer> peers;
    for (int rank = 0; rank < membership.terms.size; ++rank) {
        const EndpointCard &card = cards[static_cast<size_t>(rank)];
        const Peer &peer = membership.peers[static_cast<size_t>(rank)];
        const Verdict &verdict = peer.route.verdict;
        if (verdict.my_port < 0) {
            continue;
        }
        const EndpointName &name = card.names[static_cast<size_t>(verdict.their_port)];
        peers.push_back({rank,
                         static_cast<int>(peer.host_index),
                         peer.pid,
                         peer.host,
                         doors.place[static_cast<size_t>(verdict.my_port)],
                         {name.name.begin(), name.name.begin() + name.bytes}});
    }
    std::vector<FabricMate> mates;
    for (const int rank : membership.hosts[membership.own().host_index]) {
        const Peer &mate = membership.peers[static_cast<size_t>(rank)];
        if (rank != membership.terms.rank) {
            mates.push_back({rank, mate.life.get(), mate.program.get(), &mate.rank_block()});
        }
    }
    membership.fabric->start(cards[0].token, peers, membership.hosts, std::move(mates));
}

// Round 5: everybody can be spoken to.
void meet_ready(Exchange &exchange, int rank) {
    const std::vector<Card> cards = exchange.all_gather(card_of(ReadyCard{kReadyMagic, rank, 0}));
    check_regrets(cards);
    for (size_t other = 0; other < cards.size(); ++other) {
        check_ready(cards[other], static_cast<int>(other));
    }
}

template <class Body>
void or_fail_everywhere(Exchange &exchange, const Patience &patience, Body body) {
    try {
        body();
    } catch (const std::exception &) {
        fail_everywhere(exchange, current_error(), patience);
    }
}

// The paths between GPUs. Throws ODC_ERROR_UNSUPPORTED where they are not as ODC_REQUIRE asks.
void join_gpus(Membership &membership, const std::vector<Neighbour> &all, const Wishes &wishes,
               const Patience &patience) {
    const std::vector<Passage> passages = try_gpus(membership, patience);
    const RankDescriptor &me = all[static_cast<size_t>(membership.terms.rank)].descriptor;
    for (const auto &[theirs, doorsteps, silent] : all) {
        Peer &peer = membership.peers[static_cast<size_t>(theirs.rank)];
        const bool here = peer.host_index == membership.own().host_index;
        peer.gpu_route.verdict = here ? choose_gpu_route(me, theirs, passages[static_cast<size_t>(theirs.rank)])
                                      : choose_gpu_route(me, theirs, peer.route.verdict);
        put_in_words(peer.gpu_route, me, theirs);
    }
    const std::string why_not = wishes.requires_that(Requirement::NvLink) ? nvlink_objection(membership) : "";
    if (!why_not.empty()) {
        fail(ODC_ERROR_UNSUPPORTED, "odc_init: ", why_not);
    }
}

void fill_paths(Membership &membership) {
    for (int rank = 0; rank < membership.terms.size; ++rank) {
        Peer &peer = membership.peers[static_cast<size_t>(rank)];
        if (peer.route.verdict.my_port < 0) {
            peer.route.path = shm_path(membership.terms.rank);
            continue;
        }
        peer.arena = membership.fabric->images();
        peer.block = membership.fabric->image_of(rank);
        peer.route.path = membership.fabric->path_to(rank);
    }
}

}  // namespace

void choose_routes(Membership &membership, const std::vector<IdentityCard> &cards, Exchange *exchange,
                   const Patience &patience) {
    std::vector<Neighbour> all;
    for (int rank = 0; rank < membership.terms.size; ++rank) {
        all.push_back({describe(membership, cards, rank), {}, {}});
    }
    Outlook outlook{read_wishes(), {}, {}, {}};
    if (membership.hosts.size() > 1) {
        std::optional<Porch> porch;
        SilenceCard silence{};
        Doors doors;
        EndpointCard mine{};
        or_fail_everywhere(*exchange, patience, [&] {
            check_descriptors(membership);
            outlook = look_out(outlook.wishes, membership.cuda.get());
            porch.emplace(outlook.ports);
        });
        exchange_ports(*exchange, outlook, porch->doorsteps(), membership.terms.rank, all);
        do {
            or_fail_everywhere(*exchange, patience, [&] {
                judge(membership, all, outlook);
                silence = knock(*porch, membership, all, patience);
            });
        } while (!all_answered(*exchange, silence, membership, all));
        porch.reset();
        or_fail_everywhere(*exchange, patience, [&] {
            doors = doors_of(membership, all[static_cast<size_t>(membership.terms.rank)].descriptor.ports);
            mine = card_of_doors(membership, doors, open_doors(membership, doors, patience));
        });
        const std::vector<EndpointCard> endpoints = exchange_endpoints(*exchange, mine);
        for (Neighbour &one : all) {
            one.descriptor.why_no_gpu_direct = endpoints[static_cast<size_t>(one.descriptor.rank)].why_no_gpu_direct;
        }
        or_fail_everywhere(*exchange, patience, [&] {
            start_fabric(membership, endpoints, doors);
            try {
                join_gpus(membership, all, outlook.wishes, patience);
            } catch (const std::exception &error) {
                // Mates wait for this rank's GPU, not for its card.
                record_departure(membership.own().rank_block(), membership.terms.rank, error.what());
                throw;
            }
        });
        meet_ready(*exchange, membership.terms.rank);
    } else {
        judge(membership, all, outlook);
        join_gpus(membership, all, outlook.wishes, patience);
    }
    fill_paths(membership);
}

void fail_everywhere(Exchange &exchange, const Error &error, const Patience &patience) {
    const bool about_meeting = error.status() == ODC_ERROR_RENDEZVOUS;
    try {
        if (about_meeting) {
            check_regrets(exchange.all_gather(regret_of(error)));
        } else {
            exchange.leave(regret_of(error));
        }
    } catch (const Error &others) {
        // Where this rank only met with what happened to another, that one's words say more; but at the deadline the
        // exchange knows nothing more.
        if (about_meeting && others.status() == ODC_ERROR_RENDEZVOUS && !patience.over()) {
            throw;
        }
    }
    throw Error(error);
}

}  // namespace odc
