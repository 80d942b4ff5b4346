// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/wireup.h"

#include <sched.h>
#include <sodium.h>
#include <sys/resource.h>
#include "base/layout_version.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/settings.h"
#include "bootstrap/gdr_setup.h"
#include "bootstrap/membership.h"
#include "bootstrap/nvlink_requirement.h"
#include "bootstrap/p2p_selftest.h"
#include "bootstrap/reachability_probe.h"
#include "memory/control_block.h"
#include "routing/providers.h"
#include "routing/route_options.h"
#include "routing/transport_table.h"
#include "topology/topology_source.h"
#include "transport/cuda/cuda.h"
#include "transport/fabric/fabric.h"
#include "transport/fabric/provider/provider_query.h"

namespace odc {

namespace {

// This rank's NICs, as it would like to be reached.
struct LocalNics {
    RouteOptions options;
    NicAddresses found;
    std::string why_no_fabric;
    std::string no_common_provider;  // what negotiate_providers says
};

// A rank as this one sees it.
struct Neighbour {
    RankDescriptor descriptor;
    ProbePorts probe_ports{};
    std::vector<NicPair> unreachable;  // by which there was no answer, in one direction at least
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

LocalNics find_local_nics(const RouteOptions &options, const Cuda *cuda) {
    LocalNics local{options, {}, why_not_fabric(), {}};
    const Machine machine = this_machine(Look::Quick);
    local.found = nic_addresses_of(machine, own_memory(machine, cuda), options, query_libfabric());
    return local;
}

RankDescriptor describe(const Membership &membership, const std::vector<IdentityInfo> &infos, int rank) {
    const Peer &peer = membership.peers[static_cast<size_t>(rank)];
    const std::vector<int> &local_peers = membership.hosts[peer.host_index];
    RankDescriptor descriptor;
    descriptor.rank = rank;
    descriptor.host = peer.host;
    descriptor.identity = peer.identity;
    descriptor.index = static_cast<int>(std::find(local_peers.begin(), local_peers.end(), rank) - local_peers.begin());
    descriptor.transports = infos[static_cast<size_t>(rank)].transports;
    if (peer.arena) {
        const GpuIdentity &gpu = peer.control_block().gpu;
        descriptor.gpu = gpu.present ? gpu.name : "";
    } else {
        descriptor.gpu = infos[static_cast<size_t>(rank)].gpu;
    }
    return descriptor;
}

// Round 2: every rank's NICs.
void exchange_nics(Allgather &allgather, LocalNics &local, const ProbePorts &probe_ports, int rank,
                   std::vector<Neighbour> &all) {
    NicInfo mine{layout_magic(Layout::Nics), rank, static_cast<uint32_t>(local.found.nics.size()), {}, probe_ports, {}};
    std::copy(local.found.nics.begin(), local.found.nics.end(), mine.nics.begin());
    put(mine.why_no_fabric, local.why_no_fabric);
    const std::vector<PeerInfo> infos = allgather.all_gather(peer_info_of(mine));
    check_join_errors(infos);
    for (Neighbour &one : all) {
        RankDescriptor &descriptor = one.descriptor;
        const NicInfo info = read_nics(infos[static_cast<size_t>(descriptor.rank)], descriptor.rank);
        descriptor.nics.assign(info.nics.begin(), info.nics.begin() + info.count);
        descriptor.why_no_fabric = info.why_no_fabric;
        one.probe_ports = info.probe_ports;
    }
    std::vector<RankDescriptor *> ranks;
    for (Neighbour &one : all) {
        ranks.push_back(&one.descriptor);
    }
    local.no_common_provider = negotiate_providers(ranks);
}

void describe(Route &route, const RankDescriptor &mine, const RankDescriptor &theirs) {
    const RouteChoice &choice = route.choice;
    route.why_not = why_not_text(choice);
    if (choice.my_nic >= 0) {
        const NicAddress &nic = mine.nics[static_cast<size_t>(choice.my_nic)];
        route.provider = provider_of(nic).name;
        route.nic = nic.name;
        route.peer_nic = theirs.nics[static_cast<size_t>(choice.their_nic)].name;
    }
}

// Throws ODC_ERROR_UNSUPPORTED where a rank cannot be reached, or not as ODC_REQUIRE asks.
void judge(Membership &membership, const std::vector<Neighbour> &all, const LocalNics &local) {
    const RankDescriptor &mine = all[static_cast<size_t>(membership.config.rank)].descriptor;
    for (const auto &[theirs, probe_ports, unreachable] : all) {
        Route &route = membership.peers[static_cast<size_t>(theirs.rank)].route;
        route.choice = choose_route({mine, theirs, unreachable}, MemoryKind::Host);
        const std::string why_not = unmet_requirement(route.choice, mine, theirs, local.options, local.found.refused);
        if (!why_not.empty()) {
            const bool none = route.choice.transport.empty() && !local.no_common_provider.empty();
            fail(ODC_ERROR_UNSUPPORTED, "odc_init: {}{}", why_not, none ? "; " + local.no_common_provider : "");
        }
        describe(route, mine, theirs);
    }
}

// Probes every rank that a route leads to; returns those that do not answer.
UnreachableInfo probe_routes(ReachabilityProbe &probe, const Membership &membership, const std::vector<Neighbour> &all,
                             const Deadline &deadline) {
    const int rank = membership.config.rank;
    std::vector<ReachabilityProbe::Target> targets;
    std::vector<int> ranks;
    for (int other = 0; std::max(rank, other) < std::min(membership.config.size, UnreachableInfo::kRanks); ++other) {
        const RouteChoice &choice = membership.peers[static_cast<size_t>(other)].route.choice;
        const Neighbour &theirs = all[static_cast<size_t>(other)];
        const auto my_nic = static_cast<size_t>(choice.my_nic);
        const auto their_nic = static_cast<size_t>(choice.their_nic);
        if (choice.their_nic >= 0 && theirs.probe_ports[their_nic] != 0) {
            targets.push_back({all[static_cast<size_t>(rank)].descriptor.nics[my_nic],
                               theirs.descriptor.nics[their_nic], theirs.probe_ports[their_nic]});
            ranks.push_back(other);
        }
    }
    UnreachableInfo info{layout_magic(Layout::Unreachable), rank, 0, {}};
    for (const size_t target : probe.probe(targets, deadline)) {
        info.set_unreachable(ranks[target]);
    }
    return info;
}

// Round 3: exchanges which routes lead nowhere. Returns whether none does; otherwise it is held again, with other routes.
bool all_answered(Allgather &allgather, const UnreachableInfo &mine, const Membership &membership,
                  std::vector<Neighbour> &all) {
    const std::vector<PeerInfo> infos = allgather.all_gather(peer_info_of(mine));
    check_join_errors(infos);
    bool all_answer = true;
    for (int rank = 0; rank < membership.config.size; ++rank) {
        const UnreachableInfo theirs = read_unreachable(infos[static_cast<size_t>(rank)], rank);
        all_answer = all_answer && theirs.count == 0;
        const Peer &peer = membership.peers[static_cast<size_t>(rank)];
        const RouteChoice &choice = peer.route.choice;
        if (std::max(rank, mine.rank) < UnreachableInfo::kRanks && choice.my_nic >= 0 &&
            (mine.is_unreachable(rank) || theirs.is_unreachable(mine.rank))) {
            all[static_cast<size_t>(rank)].unreachable.push_back({choice.my_nic, choice.their_nic});
            membership.config.log->info("gets no answer from rank {} from NIC {} to {}; tries another route", rank,
                                        peer.route.nic, peer.route.peer_nic);
        }
    }
    return all_answer;
}

// The endpoints that routes go through, by index among this rank's NICs; and the index of each among those opened.
struct UsedNics {
    std::vector<FabricNic> opened;
    std::array<size_t, kMaxNics> index;
};

UsedNics nics_used_by(const Membership &membership, const std::vector<NicAddress> &nics) {
    UsedNics used{{}, {}};
    used.index.fill(kMaxNics);
    for (const Peer &peer : membership.peers) {
        if (peer.route.choice.my_nic < 0) {
            continue;
        }
        const auto nic_index = static_cast<size_t>(peer.route.choice.my_nic);
        if (used.index[nic_index] == kMaxNics) {
            const NicAddress &nic = nics[nic_index];
            used.index[nic_index] = used.opened.size();
            used.opened.push_back({provider_of(nic).name, domain_of(nic), nic.family, {}});
            std::copy(std::begin(nic.address), std::end(nic.address), used.opened.back().address.begin());
        }
    }
    return used;
}

// Connections need a socket to each rank of another host; the program needs some descriptors, too.
void check_descriptors(const Membership &membership) {
    const uint64_t needed =
        128 + static_cast<uint64_t>(membership.config.size) - membership.hosts[membership.own().host_index].size();
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed) {
        fail(ODC_ERROR_UNSUPPORTED,
             "odc_init: connections to the ranks of other hosts need {} descriptors, but this process may have {}; "
             "raise the limit (ulimit -n)",
             needed, limit.rlim_cur);
    }
}

// `gpu`: whose memory NICs are to reach; NULL: none.
std::unique_ptr<Fabric> open_fabric(const Membership &membership, const UsedNics &used, const CudaDevice *gpu) {
    const JobConfig &config = membership.config;
    // Ends before the deadline of ranks that wait for a silent host, so that their error can name the lost one.
    const int64_t silence_ms = std::min(config.timeout_ms / 2, setting_number(Setting::kSilenceMs));
    const auto staging = static_cast<size_t>(setting_number(Setting::kStagingBytes));
    ControlBlock *block = &membership.own().control_block();
    return std::make_unique<Fabric>(FabricConfig{config.rank, config.size, block, gpu, staging, silence_ms, config.log},
                                    used.opened);
}

// Opens the endpoints, for GPUDirect RDMA if possible. Returns why that is not possible; empty: it is.
std::string open_endpoints(Membership &membership, const UsedNics &used, const Deadline &deadline) {
    Cuda *const cuda = membership.cuda.get();
    std::string why_not = why_not_gpu_direct(cuda);
    if (why_not.empty()) {
        try {
            membership.fabric = open_fabric(membership, used, &cuda->device());
            open_gpu_direct(*cuda, *membership.fabric, membership.config.rank, deadline);
        } catch (const Error &error) {
            if (error.status() == ODC_ERROR_INTERRUPTED || error.status() == ODC_ERROR_DEVICE) {
                throw;
            }
            why_not = error.what();
            membership.fabric.reset();
            cuda->close_gdr();
        }
    }
    if (!membership.fabric) {
        membership.fabric = open_fabric(membership, used, nullptr);
    }
    if (!why_not.empty() && cuda != nullptr && why_not != kNoGpuDirect) {
        membership.config.log->warn("GPUDirect RDMA is asked for, but host memory goes between hosts: {}", why_not);
    }
    return why_not;
}

EndpointInfo endpoint_info_of(const Membership &membership, const UsedNics &used,
                              const std::string &why_no_gpu_direct) {
    const Fabric &fabric = *membership.fabric;
    EndpointInfo info{layout_magic(Layout::Endpoints), membership.config.rank, 0, {}, {}, {}};
    put(info.why_no_gpu_direct, why_no_gpu_direct);
    randombytes_buf(info.token.data(), info.token.size());
    for (size_t nic = 0; nic < kMaxNics; ++nic) {
        if (used.index[nic] == kMaxNics) {
            continue;
        }
        const std::vector<std::byte> &name = fabric.name(used.index[nic]);
        EndpointName &out = info.names[nic];
        if (name.size() > sizeof(out.name)) {
            fail(ODC_ERROR_UNSUPPORTED,
                 "odc_init: the provider names its endpoints by {} bytes, at most {} are possible; choose another by "
                 "ODC_PROVIDER",
                 name.size(), sizeof(out.name));
        }
        out.bytes = static_cast<uint32_t>(name.size());
        std::copy(name.begin(), name.end(), out.name.begin());
    }
    return info;
}

// Round 4: every rank's endpoints.
std::vector<EndpointInfo> exchange_endpoints(Allgather &allgather, const EndpointInfo &mine) {
    const std::vector<PeerInfo> infos = allgather.all_gather(peer_info_of(mine));
    check_join_errors(infos);
    std::vector<EndpointInfo> all;
    for (size_t rank = 0; rank < infos.size(); ++rank) {
        all.push_back(read_endpoint(infos[rank], static_cast<int>(rank)));
    }
    return all;
}

void start_fabric(Membership &membership, const std::vector<EndpointInfo> &infos, const UsedNics &used) {
    std::vector<FabricPeer> peers;
    for (int rank = 0; rank < membership.config.size; ++rank) {
        const EndpointInfo &info = infos[static_cast<size_t>(rank)];
        const Peer &peer = membership.peers[static_cast<size_t>(rank)];
        const RouteChoice &choice = peer.route.choice;
        if (choice.my_nic < 0) {
            continue;
        }
        const EndpointName &name = info.names[static_cast<size_t>(choice.their_nic)];
        peers.push_back({rank,
                         static_cast<int>(peer.host_index),
                         peer.pid,
                         peer.host,
                         used.index[static_cast<size_t>(choice.my_nic)],
                         {name.name.begin(), name.name.begin() + name.bytes}});
    }
    std::vector<FabricLocalPeer> local_peers;
    for (const int rank : membership.hosts[membership.own().host_index]) {
        const Peer &local_peer = membership.peers[static_cast<size_t>(rank)];
        if (rank != membership.config.rank) {
            local_peers.push_back(
                {rank, local_peer.pidfd.get(), local_peer.program.get(), &local_peer.control_block()});
        }
    }
    membership.fabric->start(infos[0].token, peers, membership.hosts, std::move(local_peers));
}

// Round 5: every rank can receive control messages now.
void meet_ready(Allgather &allgather, int rank) {
    const std::vector<PeerInfo> infos =
        allgather.all_gather(peer_info_of(ReadyInfo{layout_magic(Layout::Ready), rank, 0}));
    check_join_errors(infos);
    for (size_t other = 0; other < infos.size(); ++other) {
        check_ready(infos[other], static_cast<int>(other));
    }
}

template <class Body>
void or_fail_everywhere(Allgather &allgather, const Deadline &deadline, Body body) {
    try {
        body();
    } catch (const std::exception &) {
        fail_everywhere(allgather, current_error(), deadline);
    }
}

void log_selftest(const Membership &membership, const std::vector<PeerAccess> &peer_accesses) {
    for (const int rank : membership.hosts[membership.own().host_index]) {
        const std::string &why_not = peer_accesses[static_cast<size_t>(rank)].why_not;
        if (!why_not.empty() && membership.cuda && rank != membership.config.rank) {
            membership.config.log->info(
                "the P2P self-test of {} and the GPU of rank {} failed: {}; host "
                "memory goes between them",
                membership.cuda->device().name(), rank, why_not);
        }
    }
}

// The routes between GPUs. Throws ODC_ERROR_UNSUPPORTED where they are not as ODC_REQUIRE asks.
void join_gpus(Membership &membership, const std::vector<Neighbour> &all, const RouteOptions &options,
               const Deadline &deadline) {
    const std::vector<PeerAccess> peer_accesses = run_p2p_selftest(membership, deadline);
    log_selftest(membership, peer_accesses);
    const RankDescriptor &me = all[static_cast<size_t>(membership.config.rank)].descriptor;
    for (const auto &[theirs, probe_ports, unreachable] : all) {
        Peer &peer = membership.peers[static_cast<size_t>(theirs.rank)];
        const RankPair pair{me, theirs, unreachable, peer_accesses[static_cast<size_t>(theirs.rank)]};
        peer.gpu_route.choice = choose_route(pair, MemoryKind::Gpu);
        describe(peer.gpu_route, me, theirs);
    }
    const std::string why_not = options.requires_that(Requirement::NvLink) ? unmet_nvlink_requirement(membership) : "";
    if (!why_not.empty()) {
        fail(ODC_ERROR_UNSUPPORTED, "odc_init: {}", why_not);
    }
}

void connect_peers(Membership &membership) {
    Fabric *const fabric = membership.fabric.get();
    for (int rank = 0; rank < membership.config.size; ++rank) {
        Peer &peer = membership.peers[static_cast<size_t>(rank)];
        if (!peer.arena) {
            peer.arena = fabric->replicas();
            peer.block = fabric->replica_offset(rank);
        }
        const TransportRow &transport = transport_row(peer.route.choice.transport);
        peer.route.endpoint = transport.connect({membership.config.rank, rank, fabric});
    }
}

void share_node_cache(Membership &membership) {
    const size_t here = membership.own().host_index;
    std::vector<const ControlBlock *> local_peers;
    for (const int rank : membership.hosts[here]) {
        local_peers.push_back(&membership.peers[static_cast<size_t>(rank)].control_block());
    }
    membership.node_cache = node_cache_share(local_peers);
    for (Peer &peer : membership.peers) {
        if (peer.host_index != here) {
            peer.route.choice.why += "; " + membership.node_cache.why;
        }
    }
}

// Its peer infos would make odc_init need 11 KiB more of the stack on one host, too.
[[gnu::noinline]] void connect_hosts(Membership &membership, std::vector<Neighbour> &all, LocalNics &local,
                                     Allgather &allgather, const Deadline &deadline) {
    std::optional<ReachabilityProbe> probe;
    UnreachableInfo unreachable{};
    UsedNics used;
    EndpointInfo mine{};
    or_fail_everywhere(allgather, deadline, [&] {
        check_descriptors(membership);
        local = find_local_nics(local.options, membership.cuda.get());
        probe.emplace(local.found);
    });
    exchange_nics(allgather, local, probe->probe_ports(), membership.config.rank, all);
    do {
        or_fail_everywhere(allgather, deadline, [&] {
            judge(membership, all, local);
            unreachable = probe_routes(*probe, membership, all, deadline);
        });
    } while (!all_answered(allgather, unreachable, membership, all));
    probe.reset();
    or_fail_everywhere(allgather, deadline, [&] {
        used = nics_used_by(membership, all[static_cast<size_t>(membership.config.rank)].descriptor.nics);
        mine = endpoint_info_of(membership, used, open_endpoints(membership, used, deadline));
    });
    const std::vector<EndpointInfo> endpoints = exchange_endpoints(allgather, mine);
    for (Neighbour &one : all) {
        one.descriptor.why_no_gpu_direct = endpoints[static_cast<size_t>(one.descriptor.rank)].why_no_gpu_direct;
    }
    or_fail_everywhere(allgather, deadline, [&] {
        start_fabric(membership, endpoints, used);
        try {
            join_gpus(membership, all, local.options, deadline);
        } catch (const std::exception &error) {
            // Local peers wait for this rank's GPU, not for its peer info.
            record_departure(membership.own().control_block(), membership.config.rank, error.what());
            throw;
        }
    });
    meet_ready(allgather, membership.config.rank);
}

}  // namespace

void choose_routes(Membership &membership, const std::vector<IdentityInfo> &infos, Allgather *allgather,
                   const Deadline &deadline) {
    std::vector<Neighbour> all;
    for (int rank = 0; rank < membership.config.size; ++rank) {
        all.push_back({describe(membership, infos, rank), {}, {}});
    }
    LocalNics local{read_route_options(), {}, {}, {}};
    if (membership.hosts.size() > 1) {
        connect_hosts(membership, all, local, *allgather, deadline);
    } else {
        judge(membership, all, local);
        join_gpus(membership, all, local.options, deadline);
    }
    connect_peers(membership);
    if (membership.hosts.size() > 1) {
        share_node_cache(membership);
    }
}

void fail_everywhere(Allgather &allgather, const Error &error, const Deadline &deadline) {
    const bool is_rendezvous = error.status() == ODC_ERROR_RENDEZVOUS;
    try {
        if (is_rendezvous) {
            check_join_errors(allgather.all_gather(join_error_of(error)));
        } else {
            allgather.leave(join_error_of(error));
        }
    } catch (const Error &others) {
        // The error of the rank that failed first says more than this rank's, which followed from it. After the deadline
        // the all-gather has no such error.
        if (is_rendezvous && others.status() == ODC_ERROR_RENDEZVOUS && !deadline.over()) {
            throw;
        }
    }
    throw Error(error);
}

}  // namespace odc
