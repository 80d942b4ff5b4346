// SPDX-License-Identifier: Apache-2.0
#include "api/topology_json.h"

#include "base/error.h"
#include "bootstrap/nvlink_requirement.h"
#include "routing/route.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace odc {

namespace {

using Json = nlohmann::ordered_json;

Json name_or_null(const char *kind, int index) { return index < 0 ? Json() : Json(say(kind, index)); }
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

RankDescriptor rank_at(int rank, const std::string &host, size_t index, const Wishes &wishes, const Ports &ports) {
    RankDescriptor descriptor;
    descriptor.rank = rank;
    descriptor.host = host;
    descriptor.identity = host;
    descriptor.index = static_cast<int>(index);
    descriptor.transports = wishes.transports;
    descriptor.ports = ports.ports;
    settle({&descriptor});
    return descriptor;
}

void add_reasons(Json &route, const Verdict &verdict) {
    route["why"] = text_or_null(verdict.why);
    route["why_not"] = Json::object();
    for (const WhyNot &one : verdict.why_not) {
        route["why_not"][std::string(one.transport)] = one.why;
    }
}

// What odc_init would say against it, where ODC_REQUIRE is set; null: nothing.
void add_objection(Json &route, const std::string &words, const Wishes &wishes) {
    if (wishes.requirements != 0) {
        route["objection"] = text_or_null(words);
    }
}

Verdict gpu_verdict(const Gpu &gpu, RankDescriptor mine, RankDescriptor theirs, const Verdict &of_host_memory) {
    if (gpu.vendor != "NVIDIA") {
        Verdict none;
        none.why = say("GPUs of ", gpu.vendor, " are not used, NVIDIA's are");
        return none;
    }
    mine.gpu = theirs.gpu = gpu.name;
    return choose_gpu_route(mine, theirs, of_host_memory);
}

// From rank `index` of this host, whose memory is there, to its like.
Json route_json(const Machine &machine, Device memory, const Wishes &wishes, const Ports &ports,
                const std::string &why_no_fabric) {
    RankDescriptor mine = rank_at(0, "this", memory.index, wishes, ports);
    RankDescriptor theirs = rank_at(1, "another", memory.index, wishes, ports);
    mine.why_no_fabric = why_no_fabric;
    theirs.why_no_fabric = why_no_fabric;
    const bool gpu = memory.what == Device::What::Gpu;
    const Verdict verdict = choose_route(mine, theirs);
    const Verdict told = gpu ? gpu_verdict(machine.gpus[memory.index], mine, theirs, verdict) : verdict;
    Json route = {{"from", device_name(machine, memory)}, {"transport", text_or_null(std::string(told.transport))}};
    if (told.my_port >= 0) {
        const Port &port = mine.ports[static_cast<size_t>(told.my_port)];
        route["provider"] = provider_of(port).name;
        route["nic"] = port.nic;
        route["domain"] = domain_of(port);
        route["distance"] = name_of(static_cast<Nearness>(port.distance));
        route["speed_mbit"] = speed_or_null(port.speed);
    }
    add_reasons(route, told);
    route["memory"] = gpu ? "gpu" : "host";
    route["access"] = access_of(told);
    add_objection(route, gpu ? "" : objection(verdict, mine, theirs, wishes, ports.refused), wishes);
    return route;
}

// Between two ranks of this host, whose memory is the host's; the objection is of their GPUs, too.
Json host_json(const Machine &machine, const Wishes &wishes) {
    const RankDescriptor mine = rank_at(0, "this", 0, wishes, {});
    const RankDescriptor theirs = rank_at(1, "this", 0, wishes, {});
    const Verdict verdict = choose_route(mine, theirs);
    Json route = {{"transport", text_or_null(std::string(verdict.transport))}};
    add_reasons(route, verdict);
    route["memory"] = "host";
    route["access"] = access_of(verdict);
    std::string words = objection(verdict, mine, theirs, wishes, {});
    if (words.empty() && wishes.requires_that(Requirement::NvLink)) {
        words = nvlink_objection(machine);
    }
    add_objection(route, words, wishes);
    return route;
}

Json ability_json(Ability ability) { return ability == Ability::Unknown ? Json() : Json(ability == Ability::Yes); }

// What odc_init will find, if what NVML says is true.
Passage passage_of(const GpuLink &link) {
    if (link.p2p == Ability::No) {
        return {"", "they cannot read each other's memory (no peer-to-peer access)"};
    }
    if (link.atomics == Ability::No) {
        return {"", "they have no native atomics between them, so sums would be lost"};
    }
    return {"P2P with native atomics", ""};
}

// Between two GPUs of this host, and between ranks that are on them.
Json link_json(const Machine &machine, size_t a, size_t b, const Wishes &wishes) {
    const GpuLink &link = machine.link(a, b);
    const bool known =
        link.p2p == Ability::No || link.atomics == Ability::No || both(link.p2p, link.atomics) == Ability::Yes;
    Json json = {{"between", {machine.gpus[a].name, machine.gpus[b].name}},
                 {"nvlink", link.nvlink == NvLink::Unknown ? Json() : Json(name_of(link.nvlink))},
                 {"nvlinks", link.nvlink != NvLink::None && link.links == 0 ? Json() : Json(link.links)},
                 {"p2p", ability_json(link.p2p)},
                 {"atomics", ability_json(link.atomics)},
                 {"words", say(nvlink_text(link), ", ", p2p_text(link))},
                 {"by_pci", name_of(nearness_by_pci(machine, {Device::What::Gpu, a}, {Device::What::Gpu, b}))}};
    Verdict verdict;
    verdict.why = "what is not known, odc_init tries";
    if (known) {
        RankDescriptor mine = rank_at(0, "this", a, wishes, {});
        RankDescriptor theirs = rank_at(1, "this", b, wishes, {});
        mine.gpu = machine.gpus[a].name;
        theirs.gpu = machine.gpus[b].name;
        verdict = choose_gpu_route(mine, theirs, passage_of(link));
    }
    json["transport"] = text_or_null(std::string(verdict.transport));
    add_reasons(json, verdict);
    json["memory"] = "gpu";
    json["access"] = known ? Json(access_of(verdict)) : Json();
    return json;
}

}  // namespace

std::string machine_json(const Machine &machine, const Wishes &wishes, const std::vector<Offer> &offers,
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
                 {"on_this_host", host_json(machine, wishes)},
                 {"to_another_host", Json::array()}};
    std::vector<Device> places;
    for (const Package &package : machine.packages) {
        json["packages"].push_back({{"name", say("package", package.index)}, {"model", text_or_null(package.model)}});
    }
    for (size_t i = 0; i < machine.numa_nodes.size(); ++i) {
        const NumaNode &node = machine.numa_nodes[i];
        places.push_back({Device::What::NumaNode, i});
        json["numa_nodes"].push_back({{"name", device_name(machine, places.back())},
                                      {"package", name_or_null("package", node.package)},
                                      {"cores", node.cores},
                                      {"bytes", node.bytes}});
    }
    for (size_t i = 0; i < machine.gpus.size(); ++i) {
        const Gpu &gpu = machine.gpus[i];
        places.push_back({Device::What::Gpu, i});
        Json device = {{"name", gpu.name},
                       {"vendor", gpu.vendor},
                       {"model", text_or_null(gpu.model)},
                       {"uuid", text_or_null(gpu.uuid)}};
        add_site(device, machine, gpu.bus_id, gpu.site);
        json["gpus"].push_back(std::move(device));
        for (size_t j = i + 1; j < machine.gpus.size(); ++j) {
            json["gpu_links"].push_back(link_json(machine, i, j, wishes));
        }
    }
    std::vector<Refusal> refused;
    for (const Device memory : places) {
        const Ports ports = ports_of(machine, memory, wishes, offers);
        json["to_another_host"].push_back(route_json(machine, memory, wishes, ports, why_no_fabric));
        refused = ports.refused;  // wherever the memory is
    }
    for (size_t i = 0; i < machine.nics.size(); ++i) {
        json["nics"].push_back(nic_json(machine, machine.nics[i], refused));
        if (!json["nics"].back().contains("why_not")) {
            places.push_back({Device::What::Nic, i});
        }
    }
    for (const Device row : places) {
        json["devices"].push_back(device_name(machine, row));
        Json &distances = json["distances"].emplace_back(Json::array());
        for (const Device column : places) {
            distances.push_back(name_of(nearness(machine, row, column)));
        }
    }
    return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace odc
