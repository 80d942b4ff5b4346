// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/route_log.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "bootstrap/membership.h"

namespace odc {

namespace {

std::string by_transport(const Route &route) {
    return formatted("by {}", route.choice.transport.empty() ? "nothing" : route.choice.transport);
}

// "by fabric, tcp;ofi_rxm from eth0"
std::string by_what(const Route &route) {
    return by_transport(route) + (route.nic.empty() ? "" : formatted(", {} from {}", route.provider, route.nic));
}

struct Kind {
    size_t ranks = 0;
    std::set<size_t> hosts;
};

void log_summary(const Membership &membership, Route Peer::*route, const char *memory) {
    std::map<std::pair<bool, std::string>, Kind> kinds;  // of other hosts, and how
    const size_t here = membership.own().host_index;
    for (const Peer &peer : membership.peers) {
        if (&peer != &membership.own()) {
            const Route &one = peer.*route;
            Kind &kind = kinds[{peer.host_index != here, formatted("{}, {}", by_what(one), access_of(one.choice))}];
            ++kind.ranks;
            kind.hosts.insert(peer.host_index);
        }
    }
    for (const auto &[key, kind] : kinds) {
        membership.config.log->info("reaches the {} memory of {} of {} {}", memory, counted(kind.ranks, "rank"),
                                    key.first ? counted(kind.hosts.size(), "other host") : "this host", key.second);
    }
}

constexpr size_t kLinesAtOnce = 256;  // fewer than wait for a callback

void log_each(const Membership &membership, Route Peer::*route, const char *memory) {
    for (size_t rank = 0; rank < membership.peers.size(); ++rank) {
        const Peer &peer = membership.peers[rank];
        const Route &one = peer.*route;
        if (rank % kLinesAtOnce == 0) {
            membership.config.log->deliver();
        }
        if (&peer != &membership.own()) {
            membership.config.log->debug("reaches the {} memory of rank {} (host {}, pid {}) {}: {}{}{}", memory, rank,
                                         peer.host, peer.pid, by_transport(one), one.choice.why,
                                         one.why_not.empty() ? "" : "; not ", one.why_not);
        }
    }
}

}  // namespace

std::string counted(size_t count, const std::string &noun) {
    return formatted("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void log_routes(const Membership &membership) {
    const Log &log = *membership.config.log;
    if (log.on(ODC_LOG_INFO)) {
        log_summary(membership, &Peer::route, "host");
    }
    if (log.on(ODC_LOG_INFO) && membership.cuda) {
        log_summary(membership, &Peer::gpu_route, "GPU");
    }
    if (log.on(ODC_LOG_DEBUG)) {
        log_each(membership, &Peer::route, "host");
    }
    if (log.on(ODC_LOG_DEBUG) && membership.cuda) {
        log_each(membership, &Peer::gpu_route, "GPU");
    }
}

}  // namespace odc
