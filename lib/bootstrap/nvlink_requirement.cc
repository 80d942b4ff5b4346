// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/nvlink_requirement.h"

#include "base/error.h"
#include "bootstrap/membership.h"
#include "routing/route_options.h"
#include "topology/nvml_gpus.h"

namespace odc {

namespace {

// Empty: there is NVLink between the two, which are called `between`.
std::string why_no_link(const GpuLink &link, const std::string &between) {
    switch (link.nvlink) {
        case NvLink::Unknown: return say("whether there is NVLink ", between, " is unknown (", p2p_text(link), ")");
        case NvLink::None: return say(between, " there is no NVLink (", p2p_text(link), ")");
        case NvLink::Direct:
        case NvLink::Switch: break;
    }
    return "";
}

// A rank of this host and its GPU.
struct LocalGpu {
    int rank;
    std::string words;  // "rank 0 (host a, cuda:0)"
    GpuIdentity gpu;
};

LocalGpu local_gpu_of(const Membership &membership, int rank) {
    const Peer &peer = membership.peers[static_cast<size_t>(rank)];
    const GpuIdentity &gpu = peer.control_block().gpu;
    return {rank, say("rank ", rank, " (host ", peer.host, gpu.present ? say(", ", gpu.name) : "", ")"), gpu};
}

// Why what NVML says of two GPUs is not enough; empty: it is.
std::string why_no_link_between(const GpuReport &report, const LocalGpu &a, const LocalGpu &b) {
    if (!report.why_not.empty()) {
        return say("nothing is known of NVLink between the GPUs of ", a.words, " and ", b.words, ": ", report.why_not);
    }
    GpuPlace places[2];
    for (const auto &[local_rank, place] : {std::pair(&a, &places[0]), std::pair(&b, &places[1])}) {
        if (!find_gpu(report, local_rank->gpu.uuid, *place)) {
            return say("nothing is known of the GPU of ", local_rank->words, ": NVML does not show it");
        }
        if (place->is_part) {
            return say("the GPU of ", local_rank->words, " is a part (MIG) of ", report.gpus[place->gpu].bus_id,
                       ", and of parts no NVLink is known");
        }
    }
    const GpuLink link =
        both_ways(report.gpus[places[0].gpu].links[places[1].gpu], report.gpus[places[1].gpu].links[places[0].gpu]);
    return why_no_link(link, say("between the GPUs of ", a.words, " and ", b.words));
}

std::string why_no_links(const std::vector<LocalGpu> &local_ranks) {
    GpuReport report;
    bool asked = false;
    for (size_t i = 0; i < local_ranks.size(); ++i) {
        for (size_t j = i + 1; j < local_ranks.size(); ++j) {
            for (const LocalGpu *one : {&local_ranks[i], &local_ranks[j]}) {
                if (!one->gpu.present) {
                    return say(one->words, " has no GPU (config.device or ODC_DEVICE names it)");
                }
            }
            if (local_ranks[i].gpu.uuid == local_ranks[j].gpu.uuid) {
                continue;
            }
            if (!asked) {
                report = gpus_by_nvml();
                asked = true;
            }
            if (const std::string why_not = why_no_link_between(report, local_ranks[i], local_ranks[j]);
                !why_not.empty()) {
                return why_not;
            }
        }
    }
    return "";
}

std::string objection_of(const std::string &why_not) {
    return why_not.empty() ? "" : say(demand_of(Requirement::NvLink), ", but ", why_not);
}

}  // namespace

std::string unmet_nvlink_requirement(const Membership &membership) {
    std::vector<LocalGpu> local_ranks;
    for (const int rank : membership.hosts[membership.own().host_index]) {
        local_ranks.push_back(local_gpu_of(membership, rank));
    }
    std::string why_not = why_no_links(local_ranks);
    for (const LocalGpu &local_rank : local_ranks) {
        const Route &route = membership.peers[static_cast<size_t>(local_rank.rank)].gpu_route;
        if (why_not.empty() && local_rank.rank != membership.config.rank && !route.is_direct()) {
            why_not = say("the route between the GPUs of ", local_gpu_of(membership, membership.config.rank).words,
                          " and ", local_rank.words, " is not direct: ", route.choice.why);
        }
    }
    return objection_of(why_not);
}

std::string unmet_nvlink_requirement(const Machine &machine) {
    if (machine.gpus.empty()) {
        return objection_of("this machine has no GPU");
    }
    if (!machine.why_no_links.empty()) {
        return objection_of(say("nothing is known of NVLink between its GPUs: ", machine.why_no_links));
    }
    for (size_t i = 0; i < machine.gpus.size(); ++i) {
        for (size_t j = i + 1; j < machine.gpus.size(); ++j) {
            const std::string between = say("between ", machine.gpus[i].name, " and ", machine.gpus[j].name);
            if (const std::string why_not = why_no_link(machine.link(i, j), between); !why_not.empty()) {
                return objection_of(why_not);
            }
        }
    }
    return "";
}

}  // namespace odc
