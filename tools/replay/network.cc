// SPDX-License-Identifier: Apache-2.0
// Hands what has crossed to the emulated links. A rank does not know from which other host its bytes came; slices are equal, so
// they count as equally many from each. What a node cache reads serves all ranks of a host, and may be read in any of their
// calls, so the rank that gathers a layer first hands the links its bytes.
#include "replay/network.h"

#include "cli/exit.h"
#include "rank/clock.h"
#include "rank/context.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

namespace odc_tool {
namespace {

constexpr int64_t kArrivalDeadlineNs = 60'000'000'000;
constexpr useconds_t kLookAgainUs = 50;

}  // namespace

// ---- On one host ----

int64_t Network::begin(int32_t run, int64_t now_ns, Detail detail) {
    crossed_ = {};
    run_ = run;
    origin_ns_ = origin(now_ns);
    detail_ = detail;
    return origin_ns_;
}

int64_t Network::gathered(size_t, int64_t since_ns) { return since_ns; }

int64_t Network::added(size_t, int64_t since_ns) { return since_ns; }

int64_t Network::ended() { return 0; }

void Network::span(size_t host, LinkDirection direction, const Links::Interval &passing) {
    if (detail_ == Detail::Events) {
        spans_.push_back(
            {passing.begin_ns - origin_ns_, passing.end_ns - origin_ns_, run_, static_cast<int32_t>(host), direction});
    }
}

// ---- Ring collectives ----

int64_t RingNetwork::gathered(size_t, int64_t since_ns) { return pass(hosts_.ring_bytes(kParameterBytes), since_ns); }

int64_t RingNetwork::added(size_t, int64_t since_ns) { return pass(hosts_.ring_bytes(kGradientBytes), since_ns); }

int64_t RingNetwork::pass(uint64_t bytes, int64_t since_ns) {
    const int64_t begin = std::max(free_ns_, since_ns);
    free_ns_ = begin + int64_t(double(bytes) * ns_per_byte_);
    if (hosts_.is_first(rank_)) {  // one rank of each host accounts for it
        crossed_.fetched += bytes;
        for (const LinkDirection direction : {LinkDirection::In, LinkDirection::Out}) {
            span(hosts_.host_of(rank_), direction, {begin, free_ns_});
        }
    }
    return free_ns_;
}

// ---- ODC ----

OdcNetwork::OdcNetwork(const EmulatedHosts &hosts, Links &links, odc_context *reads, odc_context *adds,
                       odc_context *barrier, Crossing crossing, double ns_per_byte)
    : hosts_(hosts), links_(links), reads_(reads), adds_(adds), barrier_(barrier), crossing_(crossing),
      rank_(static_cast<size_t>(odc_rank(reads))), host_(hosts.host_of(rank_)), ns_per_byte_(ns_per_byte) {}

void OdcNetwork::reset() {
    count();
    handed_ = 0;
    if (hosts_.is_first(rank_)) {
        links_.reset(host_);
    }
}

Crossed OdcNetwork::count() {
    odc_stats read{};
    odc_stats added{};
    read.struct_size = added.struct_size = sizeof(odc_stats);
    check(odc_get_stats(reads_, &read));
    check(odc_get_stats(adds_, &added));
    Crossed more{read.fetched_bytes - counted_.fetched, added.sent_bytes - counted_.sent};
    counted_ = {read.fetched_bytes, added.sent_bytes};
    crossed_.fetched += more.fetched;
    crossed_.sent += more.sent;
    if (crossing_ != Crossing::Flat) {
        more.fetched = 0;
    }
    return more;
}

int64_t OdcNetwork::pass(const Crossed &crossed, int64_t since_ns) {
    int64_t end = since_ns;
    const auto through = [&](size_t host, LinkDirection direction, double bytes) {
        const Links::Interval passing = links_.pass(host, direction, since_ns, int64_t(bytes * ns_per_byte_));
        span(host, direction, passing);
        end = std::max(end, passing.end_ns);
    };
    const auto move = [&](uint64_t bytes, LinkDirection here, LinkDirection there) {
        if (bytes == 0) {
            return;
        }
        through(host_, here, double(bytes));
        for (size_t host = 0; host < hosts_.count(); ++host) {
            if (host != host_) {
                through(host, there, double(bytes) / double(hosts_.count() - 1));
            }
        }
    };
    move(crossed.fetched, LinkDirection::In, LinkDirection::Out);
    move(crossed.sent, LinkDirection::Out, LinkDirection::In);
    return end;
}

// Gradients that the library has sent meanwhile are awaited at the end of the run.
int64_t OdcNetwork::gathered(size_t layer, int64_t since_ns) {
    const Crossed more = count();
    sent_ns_ = std::max(sent_ns_, pass({0, more.sent}, since_ns));
    if (crossing_ == Crossing::Flat) {
        return pass({more.fetched, 0}, since_ns);
    }
    const int64_t readable_ns = links_.readable_since(host_, since_ns);
    if (!links_.begin_arrival(host_, layer)) {
        return await_arrival(layer);
    }
    const Crossed foreign{hosts_.foreign(host_) * kParameterBytes, 0};
    handed_ += foreign.fetched;
    const int64_t end = pass(foreign, readable_ns);
    links_.arrive(host_, layer, end);
    return end;
}

// The first rank hands it to the links and tells at once.
int64_t OdcNetwork::await_arrival(size_t layer) const {
    const int64_t deadline_ns = now_ns() + kArrivalDeadlineNs;
    for (;;) {
        if (const std::optional<int64_t> when_ns = links_.arrival(host_, layer)) {
            return *when_ns;
        }
        if (now_ns() > deadline_ns) {
            throw Exit{1, fmt::format("rank {} waited {} s for another rank of its host to account for layer {}", rank_,
                                      kArrivalDeadlineNs / 1'000'000'000, layer)};
        }
        usleep(kLookAgainUs);
    }
}

int64_t OdcNetwork::added(size_t, int64_t since_ns) {
    const int64_t end = pass(count(), since_ns);
    if (!sums()) {
        return end;
    }
    sent_ns_ = std::max(sent_ns_, end);
    return since_ns;
}

int64_t OdcNetwork::ended() {
    auto end = double(std::max({pass(count(), now_ns()), pass(read_again(), now_ns()), sent_ns_}));
    check(odc_all_reduce(barrier_, &end, 1, ODC_MAX));
    return int64_t(end);
}

// What a host has read beyond each layer once, by its first rank. Collective.
Crossed OdcNetwork::read_again() {
    if (crossing_ == Crossing::Flat) {
        return {};
    }
    std::vector<double> more(hosts_.count());
    more[host_] = double(crossed_.fetched) - double(handed_);
    check(odc_all_reduce(barrier_, more.data(), more.size(), ODC_SUM));
    return {hosts_.is_first(rank_) ? uint64_t(std::max(0.0, more[host_])) : 0, 0};
}

}  // namespace odc_tool
