// SPDX-License-Identifier: Apache-2.0
// Detects failures of ranks on other hosts. A rank's local peers see its death and report it; what nobody is left to report
// is the loss of a whole host or of the network to it. So for each pair of hosts one rank of each pings the other four times
// a second, and every rank pings those that it waits for; the packet of a pong also tells what that rank last did. A rank
// that does not answer is dead if its kernel refuses a connection to its port; otherwise a long enough silence decides.
#pragma once

#include "base/log.h"
#include "transport/fabric/reliable_stream.h"

#include <memory>
#include <vector>

namespace odc {

class Heartbeat {
public:
    Heartbeat(int rank, int64_t silence_ms, const std::vector<std::unique_ptr<RemoteRank>> &remotes,
              ReliableStream &stream, Log &log)
        : rank_(rank), silence_ns_(silence_ms * 1'000'000), remotes_(remotes), stream_(stream), log_(log) {}

    // `hosts`: the ranks of each host.
    void watch(const std::vector<std::vector<int>> &hosts);
    void on_message(RemoteRank &from, const HeartbeatMessage &message);
    // Throws ODC_ERROR_INTERNAL if the dead rank is not of the sender's host.
    void on_message(const RemoteRank &from, const DeadMessage &message);
    // Pings this rank now, unless an earlier ping of it is still to be sent.
    void ping(RemoteRank &remote, int64_t now_ns);
    // Pings all ranks; returns the ping's number.
    uint64_t ping_all();
    // Whether every rank that can still answer has answered this ping.
    bool is_answered(uint64_t ping) const;
    // Pings the ranks whose time has come, and gives up those that are dead or have been silent for too long.
    void tick(int64_t now_ns);
    // Soon probes the ports of all ranks that have sent nothing by then, so that nobody waits for dead ranks.
    void suspect_all(int64_t now_ns);
    int64_t next_ns() const { return next_ns_; }

private:
    bool must_ping(const RemoteRank &remote) const;
    void probe(RemoteRank &remote);
    void suspect(RemoteRank &remote, int64_t now_ns);
    void lose_silent(const RemoteRank &silent, int64_t now_ns);

    int rank_;
    int64_t silence_ns_;
    const std::vector<std::unique_ptr<RemoteRank>> &remotes_;
    ReliableStream &stream_;
    Log &log_;
    std::vector<RemoteRank *> opposite_;  // the rank of each other host that this rank pings, if it pings one
    std::vector<bool> suspected_;         // hosts with a silent rank, all of whose ranks are pinged
    bool probing_ = false;                // a probe is pending
    uint64_t last_ping_ = 0;
    int64_t last_ns_ = 0;
    int64_t next_round_ns_ = 0;
    int64_t suspicion_ns_ = 0;  // 0: none
    int64_t next_ns_ = 0;
};

}  // namespace odc
