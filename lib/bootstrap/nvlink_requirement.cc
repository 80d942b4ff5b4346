// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/nvlink_requirement.h"

#include "base/error.h"
#include "bootstrap/membership.h"
#include "routing/route_options.h"
#include "topology/nvml_gpus.h"
#include "transport/cuda/cuda.h"

namespace odc {

namespace {

// Returns why there is no NVLink between two GPUs, which the text calls `between`; empty: there is.
std::string why_no_link(const GpuLink &link, const std::string &between) {
    switch (link.nvlink) {
        case NvLink::Unknown: return formatted("whether there is NVLink {} is unknown ({})", between, p2p_text(link));
        case NvLink::None: return formatted("{} there is no NVLink ({})", between, p2p_text(link));
        case NvLink::Direct:
        case NvLink::Switch: break;
    }
    return "";
}

// A rank of this host and its GPU.
struct LocalGpu {
    int rank;
    std::string text;  // "rank 0 (host a, cuda:0)"
    GpuIdentity gpu;
};

LocalGpu local_gpu_of(const Membership &membership, int rank) {
    const Peer &peer = membership.peers[static_cast<size_t>(rank)];
    const GpuIdentity &gpu = peer.control_block().gpu;
    return {rank, formatted("rank {} (host {}{})", rank, peer.host, gpu.present ? formatted(", {}", gpu.name) : ""),
            gpu};
}

// Returns why the link that NVML reports between two GPUs does not suffice; empty: it does.
std::string why_no_link_between(const GpuReport &report, const LocalGpu &a, const LocalGpu &b) {
    if (!report.why_not.empty()) {
        return formatted("nothing is known of NVLink between the GPUs of {} and {}: {}", a.text, b.text,
                         report.why_not);
    }
    const std::optional<GpuMatch> matches[] = {find_gpu(report, a.gpu.uuid), find_gpu(report, b.gpu.uuid)};
    for (const auto &[local_rank, match] : {std::pair(&a, matches[0]), std::pair(&b, matches[1])}) {
        if (!match) {
            return formatted("nothing is known of the GPU of {}: NVML does not show it", local_rank->text);
        }
        if (match->is_part) {
            return formatted("the GPU of {} is a MIG instance of {}, and of those no NVLink is known", local_rank->text,
                             report.gpus[match->gpu].bus_id);
        }
    }
    const size_t first = matches[0]->gpu;
    const size_t second = matches[1]->gpu;
    const GpuLink link = both_ways(report.gpus[first].links[second], report.gpus[second].links[first]);
    return why_no_link(link, formatted("between the GPUs of {} and {}", a.text, b.text));
}

std::string why_no_links(const std::vector<LocalGpu> &local_ranks) {
    GpuReport report;
    bool asked = false;
    for (size_t i = 0; i < local_ranks.size(); ++i) {
        for (size_t j = i + 1; j < local_ranks.size(); ++j) {
            for (const LocalGpu *one : {&local_ranks[i], &local_ranks[j]}) {
                if (!one->gpu.present) {
                    return formatted("{} has no GPU (config.device or ODC_DEVICE names it)", one->text);
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

std::string unmet(const std::string &why_not) {
    return why_not.empty() ? "" : formatted("{}, but {}", demand_of(Requirement::NvLink), why_not);
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
            why_not =
                formatted("the route between the GPUs of {} and {} is not direct: {}",
                          local_gpu_of(membership, membership.config.rank).text, local_rank.text, route.choice.why);
        }
    }
    return unmet(why_not);
}

std::string unmet_nvlink_requirement(const Machine &machine) {
    if (machine.gpus.empty()) {
        return unmet("this machine has no GPU");
    }
    if (!machine.why_no_links.empty()) {
        return unmet(formatted("nothing is known of NVLink between its GPUs: {}", machine.why_no_links));
    }
    for (size_t i = 0; i < machine.gpus.size(); ++i) {
        for (size_t j = i + 1; j < machine.gpus.size(); ++j) {
            const std::string between = formatted("between {} and {}", machine.gpus[i].name, machine.gpus[j].name);
            if (const std::string why_not = why_no_link(machine.link(i, j), between); !why_not.empty()) {
                return unmet(why_not);
            }
        }
    }
    return "";
}

}  // namespace odc
