// SPDX-License-Identifier: Apache-2.0
#include "api/topology_json.h"

#include "base/error.h"
#include "bootstrap/nvlink_requirement.h"
#include "routing/providers.h"
#include "routing/route.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace odc {

namespace {

using Json = nlohmann::ordered_json;

Json name_or_null(const char *kind, int index) { return index < 0 ? Json() : Json(formatted("{}{}", kind, index)); }
Json text_or_null(const std::string &text) { return text.empty() ? Json() : Json(text); }
Json speed_or_null(int64_t speed) { return speed == 0 ? Json() : Json(speed); }

void add_site(Json &device, const Machine &machine, const std::string &bus_id, const Site &site) {
    device["bus_id"] = text_or_null(bus_id);
    device["package"] = name_or_null("package", site.package);
    device["numa_node"] = name_or_null("numa", site.numa_node);
    device["switch"] = text_or_null(shared_switch(machine, bus_id, site));
}

Json nic_json(const Machine &machine, const Nic &nic, const std::vector<Refusal> &refused) {
    Json device = {{"name", nic.name},
                   {"kind", name_of(nic.kind)},
                   {"state", name_of(nic.state)},
                   {"speed_mbit", speed_or_null(nic.speed)},
                   {"model", text_or_null(nic.model)}};
    add_site(device, machine, nic.bus_id, nic.site);
    device["networks"] = nic.networks_known ? Json::array() : Json();
    for (const Network &network : nic.networks) {
        device["networks"].push_back(network_text(network));
    }
    const auto row =
        std::find_if(refused.begin(), refused.end(), [&](const Refusal &one) { return one.nic == nic.name; });
    if (row != refused.end()) {
        device["why_not"] = row->why;
    }
    return device;
}

RankDescriptor rank_at(int rank, const std::string &host, size_t index, const RouteOptions &options,
                       const NicAddresses &found) {
    RankDescriptor descriptor;
    descriptor.rank = rank;
    descriptor.host = host;
    descriptor.identity = host;
    descriptor.index = static_cast<int>(index);
    descriptor.transports = options.transports;
    descriptor.nics = found.nics;
    negotiate_providers({&descriptor});
    return descriptor;
}

void add_reasons(Json &route, const RouteChoice &choice) {
    route["why"] = text_or_null(choice.why);
    route["why_not"] = Json::object();
    for (const WhyNot &one : choice.why_not) {
        route["why_not"][std::string(one.transport)] = one.why;
    }
}

// The error of odc_init if the route does not meet ODC_REQUIRE; null if it does.
void add_unmet_requirement(Json &route, const std::string &unmet, const RouteOptions &options) {
    if (options.requirements != 0) {
        route["unmet_requirement"] = text_or_null(unmet);
    }
}

RouteChoice gpu_route_choice(const Gpu &gpu, RankDescriptor mine, RankDescriptor theirs) {
    if (gpu.vendor != "NVIDIA") {
        RouteChoice none;
        none.why = formatted("GPUs of {} are not supported, NVIDIA's are", gpu.vendor);
        return none;
    }
    mine.gpu = theirs.gpu = gpu.name;
    return choose_route({mine, theirs}, MemoryKind::Gpu);
}

// From a rank whose memory is there to an equal rank of another host.
Json route_json(const Machine &machine, Device memory, const RouteOptions &options, const NicAddresses &found,
                const std::string &why_no_fabric) {
    RankDescriptor mine = rank_at(0, "this", memory.index, options, found);
    RankDescriptor theirs = rank_at(1, "another", memory.index, options, found);
    mine.why_no_fabric = why_no_fabric;
    theirs.why_no_fabric = why_no_fabric;
    const bool gpu = memory.what == Device::What::Gpu;
    const RouteChoice choice = choose_route({mine, theirs}, MemoryKind::Host);
    const RouteChoice told = gpu ? gpu_route_choice(machine.gpus[memory.index], mine, theirs) : choice;
    Json route = {{"from", device_name(machine, memory)}, {"transport", text_or_null(std::string(told.transport))}};
    if (told.my_nic >= 0) {
        const NicAddress &nic = mine.nics[static_cast<size_t>(told.my_nic)];
        route["provider"] = provider_of(nic).name;
        route["nic"] = nic.name;
        route["domain"] = domain_of(nic);
        route["distance"] = name_of(static_cast<Nearness>(nic.distance));
        route["speed_mbit"] = speed_or_null(nic.speed);
    }
    add_reasons(route, told);
    route["memory"] = gpu ? "gpu" : "host";
    route["access"] = access_of(told);
    add_unmet_requirement(route, gpu ? "" : unmet_requirement(choice, mine, theirs, options, found.refused), options);
    return route;
}

// Between two ranks of this host, for host memory. ODC_REQUIRE=nvlink concerns their GPUs, too.
Json host_json(const Machine &machine, const RouteOptions &options) {
    const RankDescriptor mine = rank_at(0, "this", 0, options, {});
    const RankDescriptor theirs = rank_at(1, "this", 0, options, {});
    const RouteChoice choice = choose_route({mine, theirs}, MemoryKind::Host);
    Json route = {{"transport", text_or_null(std::string(choice.transport))}};
    add_reasons(route, choice);
    route["memory"] = "host";
    route["access"] = access_of(choice);
    std::string unmet = unmet_requirement(choice, mine, theirs, options, {});
    if (unmet.empty() && options.requires_that(Requirement::NvLink)) {
        unmet = unmet_nvlink_requirement(machine);
    }
    add_unmet_requirement(route, unmet, options);
    return route;
}

Json ability_json(Ability ability) { return ability == Ability::Unknown ? Json() : Json(ability == Ability::Yes); }

// The peer access that odc_init will find if NVML is right.
PeerAccess peer_access_of(const GpuLink &link) {
    if (link.p2p == Ability::No) {
        return {"", "they cannot read each other's memory (no peer-to-peer access)"};
    }
    if (link.atomics == Ability::No) {
        return {"", "they have no native atomics between them, so sums would be lost"};
    }
    return {"P2P with native atomics", ""};
}

// The link between two GPUs of this host, and the route between ranks on them.
Json link_json(const Machine &machine, size_t a, size_t b, const RouteOptions &options) {
    const GpuLink &link = machine.link(a, b);
    const bool known =
        link.p2p == Ability::No || link.atomics == Ability::No || both(link.p2p, link.atomics) == Ability::Yes;
    Json json = {{"between", {machine.gpus[a].name, machine.gpus[b].name}},
                 {"nvlink", link.nvlink == NvLink::Unknown ? Json() : Json(name_of(link.nvlink))},
                 {"nvlinks", link.nvlink != NvLink::None && link.links == 0 ? Json() : Json(link.links)},
                 {"p2p", ability_json(link.p2p)},
                 {"atomics", ability_json(link.atomics)},
                 {"text", formatted("{}, {}", nvlink_text(link), p2p_text(link))},
                 {"by_pci", name_of(nearness_by_pci(machine, {Device::What::Gpu, a}, {Device::What::Gpu, b}))}};
    RouteChoice choice;
    choice.why = "NVML does not tell; odc_init tests it";
    if (known) {
        RankDescriptor mine = rank_at(0, "this", a, options, {});
        RankDescriptor theirs = rank_at(1, "this", b, options, {});
        mine.gpu = machine.gpus[a].name;
        theirs.gpu = machine.gpus[b].name;
        choice = choose_route({mine, theirs, {}, peer_access_of(link)}, MemoryKind::Gpu);
    }
    json["transport"] = text_or_null(std::string(choice.transport));
    add_reasons(json, choice);
    json["memory"] = "gpu";
    json["access"] = known ? Json(access_of(choice)) : Json();
    return json;
}

}  // namespace

std::string machine_json(const Machine &machine, const RouteOptions &options, const std::vector<ProviderInfo> &infos,
                         const std::string &why_no_fabric) {
    Json json = {{"host", text_or_null(machine.host)},
                 {"packages", Json::array()},
                 {"numa_nodes", Json::array()},
                 {"gpus", Json::array()},
                 {"gpu_links", Json::array()},
                 {"why_no_gpu_links", text_or_null(machine.why_no_links)},
                 {"nics", Json::array()},
                 {"devices", Json::array()},
                 {"distances", Json::array()},
                 {"on_this_host", host_json(machine, options)},
                 {"to_another_host", Json::array()}};
    std::vector<Device> devices;
    for (const Package &package : machine.packages) {
        json["packages"].push_back(
            {{"name", formatted("package{}", package.index)}, {"model", text_or_null(package.model)}});
    }
    for (size_t i = 0; i < machine.numa_nodes.size(); ++i) {
        const NumaNode &node = machine.numa_nodes[i];
        devices.push_back({Device::What::NumaNode, i});
        json["numa_nodes"].push_back({{"name", device_name(machine, devices.back())},
                                      {"package", name_or_null("package", node.package)},
                                      {"cores", node.cores},
                                      {"bytes", node.bytes}});
    }
    for (size_t i = 0; i < machine.gpus.size(); ++i) {
        const Gpu &gpu = machine.gpus[i];
        devices.push_back({Device::What::Gpu, i});
        Json device = {{"name", gpu.name},
                       {"vendor", gpu.vendor},
                       {"model", text_or_null(gpu.model)},
                       {"uuid", text_or_null(gpu.uuid)}};
        add_site(device, machine, gpu.bus_id, gpu.site);
        json["gpus"].push_back(std::move(device));
        for (size_t j = i + 1; j < machine.gpus.size(); ++j) {
            json["gpu_links"].push_back(link_json(machine, i, j, options));
        }
    }
    std::vector<Refusal> refused;
    for (const Device memory : devices) {
        const NicAddresses found = nic_addresses_of(machine, memory, options, infos);
        json["to_another_host"].push_back(route_json(machine, memory, options, found, why_no_fabric));
        refused = found.refused;  // wherever the memory is
    }
    for (size_t i = 0; i < machine.nics.size(); ++i) {
        json["nics"].push_back(nic_json(machine, machine.nics[i], refused));
        if (!json["nics"].back().contains("why_not")) {
            devices.push_back({Device::What::Nic, i});
        }
    }
    for (const Device row : devices) {
        json["devices"].push_back(device_name(machine, row));
        Json &distances = json["distances"].emplace_back(Json::array());
        for (const Device column : devices) {
            distances.push_back(name_of(nearness(machine, row, column)));
        }
    }
    return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace odc
