// SPDX-License-Identifier: Apache-2.0
#include "routing/route.h"

#include "base/error.h"
#include "routing/transport_table.h"

namespace odc {

std::string reach_mapped_memory(const RankPair &pair, RouteChoice &choice) {
    choice.why = pair.is_one_rank() ? "this rank" : "the same host";
    return "";
}

std::string reach_peer_gpu(const RankPair &pair, RouteChoice &choice) {
    choice.why = pair.peer_access.why;
    return pair.peer_access.why_not;
}

std::string reach_gpu_through_host_memory(const RankPair &, RouteChoice &choice) {
    choice.why = "through host memory, as " + choice.why_not.front().why;
    choice.read_mode = ReadMode::Staged;
    return "";
}

namespace {

constexpr const char *kHostOnly = "it moves host memory only";

std::string other_host_text(const RankPair &pair) {
    const RankDescriptor &theirs = pair.theirs;
    return pair.mine.host == theirs.host
               ? formatted(
                     "rank {} is on a host of the same name, but their kernel, network namespace, user and "
                     "ODC_HOST_ID are not all the same",
                     theirs.rank)
               : formatted("rank {} is on another host ({})", theirs.rank, theirs.host);
}

// Why a pair on one host does not use a transport between hosts.
std::string one_host_text(MemoryKind memory, const RouteChoice &choice) {
    if (memory == MemoryKind::Gpu) {
        return "never inside a host";
    }
    if (!choice.transport.empty()) {
        return formatted("never inside a host, where {} is faster", choice.transport);
    }
    std::vector<std::string> names;
    for (const TransportRow &row : kTransports) {
        if (row.scope == Scope::OneHost && row.host_memory != nullptr) {
            names.emplace_back(row.name);
        }
    }
    return formatted("never inside a host, where {} must be allowed", joined(names, " or "));
}

// Returns which rank's ODC_TRANSPORTS forbids the transport; empty: neither. A rank reaches itself whatever is allowed.
std::string forbidden(const TransportRow &row, const RankPair &pair) {
    for (const RankDescriptor *rank : {&pair.mine, &pair.theirs}) {
        if (!pair.is_one_rank() && (rank->transports & transport_bit(row)) == 0) {
            return formatted("ODC_TRANSPORTS of rank {} leaves it out", rank->rank);
        }
    }
    return "";
}

// The choice for a pair of which `rank` has no GPU.
RouteChoice no_gpu(const RankDescriptor &rank) {
    RouteChoice choice;
    choice.why = formatted("rank {} has no GPU (config.device or ODC_DEVICE names it)", rank.rank);
    for (const TransportRow &row : kTransports) {
        choice.why_not.push_back({row.name, row.host_memory == nullptr ? choice.why : kHostOnly});
    }
    return choice;
}

// Returns why the pair does not use this transport; empty: it does, and the choice says how.
std::string why_not_by(const TransportRow &row, const RankPair &pair, MemoryKind memory, RouteChoice &choice) {
    const Reach reach = memory == MemoryKind::Gpu ? row.gpu_memory : row.host_memory;
    if (reach == nullptr) {
        return kHostOnly;
    }
    if ((row.scope == Scope::OneHost) != pair.on_one_host()) {
        return pair.on_one_host() ? one_host_text(memory, choice) : other_host_text(pair);
    }
    if (!choice.transport.empty()) {
        return formatted("{} is faster", choice.transport);
    }
    const std::string why_not = forbidden(row, pair);
    return why_not.empty() ? reach(pair, choice) : why_not;
}

}  // namespace

RouteChoice choose_route(const RankPair &pair, MemoryKind memory) {
    if (memory == MemoryKind::Gpu && (pair.mine.gpu.empty() || pair.theirs.gpu.empty())) {
        return no_gpu(pair.mine.gpu.empty() ? pair.mine : pair.theirs);
    }
    RouteChoice choice;
    for (const TransportRow &row : kTransports) {
        if (memory == MemoryKind::Host && row.host_memory == nullptr) {
            continue;
        }
        const std::string why_not = why_not_by(row, pair, memory, choice);
        if (why_not.empty()) {
            choice.transport = row.name;
        } else {
            choice.why_not.push_back({row.name, why_not});
        }
    }
    // GPUs of one host: the first reason is what the user can change, the others follow from it.
    if (choice.transport.empty()) {
        choice.why = memory == MemoryKind::Gpu && pair.on_one_host() ? choice.why_not.front().why : "";
    }
    return choice;
}

const char *access_of(const RouteChoice &choice) {
    return choice.transport.empty() ? "none" : name_of(choice.read_mode);
}

std::string why_not_text(const RouteChoice &choice) {
    std::string text;
    for (const WhyNot &one : choice.why_not) {
        text += formatted("{}{}: {}", text.empty() ? "" : "; ", one.transport, one.why);
    }
    return text;
}

std::string unmet_requirement(const RouteChoice &choice, const RankDescriptor &mine, const RankDescriptor &theirs,
                              const RouteOptions &options, const std::vector<Refusal> &refused) {
    const std::string between =
        formatted("rank {} (host {}) and rank {} (host {})", mine.rank, mine.host, theirs.rank, theirs.host);
    std::vector<std::string> refusals;
    for (const Refusal &one : refused) {
        refusals.push_back(formatted("{}: {}", one.nic, one.why));
    }
    const std::string unused = refusals.empty() ? "" : "; NICs not used here: " + listed(refusals, "; ");
    if (choice.transport.empty()) {
        return formatted("no transport connects {}: {}{}", between, why_not_text(choice), unused);
    }
    const bool by_sockets =
        choice.my_nic >= 0 && provider_of(mine.nics[static_cast<size_t>(choice.my_nic)]).wire != Wire::Rdma;
    const bool same_host = mine.host == theirs.host || mine.identity == theirs.identity;
    const auto lacks = [&](Requirement one) {
        switch (one) {
            case Requirement::Shm: return same_host && choice.transport != "shm";
            case Requirement::NvLink: return false;  // it is about GPUs
            case Requirement::Rdma: return by_sockets;
        }
        return false;
    };
    for (size_t i = 0; i < kRequirements.size(); ++i) {
        const auto one = static_cast<Requirement>(i);
        if (options.requires_that(one) && lacks(one)) {
            return formatted("{}, but the route between {} is {}: {}; {}{}", demand_of(one), between, choice.transport,
                             choice.why, why_not_text(choice), unused);
        }
    }
    return "";
}

}  // namespace odc
