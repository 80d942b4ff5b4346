// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/heartbeat.h"

#include <algorithm>

#include "base/error.h"

namespace odc {

namespace {

constexpr int64_t kEveryNs = 250'000'000;
constexpr int64_t kProbeNs = 20'000'000;       // between two polls of pending probes
constexpr int64_t kSuspicionNs = 100'000'000;  // for living ranks to send something

}  // namespace

void Heartbeat::watch(const std::vector<std::vector<int>> &hosts) {
    const auto has = [&](const std::vector<int> &ranks) {
        return std::find(ranks.begin(), ranks.end(), rank_) != ranks.end();
    };
    suspected_.assign(hosts.size(), false);
    const auto mine = static_cast<size_t>(std::find_if(hosts.begin(), hosts.end(), has) - hosts.begin());
    for (size_t other = 0; other < hosts.size(); ++other) {
        // Both hosts compute the same pair; a host's ranks share the pairs evenly.
        const int here = hosts[mine][other % hosts[mine].size()];
        const int there = hosts[other][mine % hosts[other].size()];
        if (other != mine && here == rank_) {
            opposite_.push_back(remotes_[static_cast<size_t>(there)].get());
        }
    }
}

void Heartbeat::on_message(RemoteRank &from, const HeartbeatMessage &message) {
    from.last_pong = std::max(from.last_pong, message.pong);
    if (message.ping != 0) {
        stream_.send(from, encode(HeartbeatMessage{0, message.ping, 0}));
    }
}

void Heartbeat::on_message(const RemoteRank &from, const DeadMessage &message) {
    const bool is_rank = message.rank >= 0 && static_cast<size_t>(message.rank) < remotes_.size();
    RemoteRank *dead = is_rank ? remotes_[static_cast<size_t>(message.rank)].get() : nullptr;
    if (dead == nullptr || dead->host != from.host) {
        fail(ODC_ERROR_INTERNAL, "rank {} reports that rank {} died, which is not on its host", from.rank,
             message.rank);
    }
    if (!dead->gone) {
        dead->mark_lost(formatted("it {}, as rank {} of its host has seen", ending_text(message.ending), from.rank));
    }
}

uint64_t Heartbeat::ping_all() {
    ++last_ping_;
    for (const auto &remote : remotes_) {
        if (remote) {
            stream_.send(*remote, encode(HeartbeatMessage{last_ping_, 0, remote->replica.known_arrivals()}));
        }
    }
    return last_ping_;
}

bool Heartbeat::is_answered(uint64_t ping) const {
    return std::all_of(remotes_.begin(), remotes_.end(), [&](const auto &remote) {
        return !remote || remote->gone || remote->closing || remote->last_pong >= ping;
    });
}

bool Heartbeat::must_ping(const RemoteRank &remote) const {
    return remote.replica.block().doorbell.waiters.load() != 0 || suspected_[static_cast<size_t>(remote.host)] ||
           std::find(opposite_.begin(), opposite_.end(), &remote) != opposite_.end();
}

void Heartbeat::tick(int64_t now) {
    if (now < next_ns_) {
        return;
    }
    // If this thread was stalled, extend every silence deadline by the stall.
    const int64_t absent_ns = last_ns_ != 0 && now - last_ns_ > 4 * kEveryNs ? now - last_ns_ : 0;
    last_ns_ = now;
    probing_ = false;
    for (const auto &remote : remotes_) {
        if (remote && remote->silent_since_ns != 0) {
            remote->silent_since_ns += absent_ns;
        }
    }
    const bool suspicious = suspicion_ns_ != 0 && now >= suspicion_ns_;
    for (const auto &remote : remotes_) {
        if (remote && !remote->gone && (remote->probe || suspicious)) {
            probe(*remote);
        }
    }
    suspicion_ns_ = suspicious ? 0 : suspicion_ns_;
    if (now >= next_round_ns_) {
        next_round_ns_ = now + kEveryNs;
        suspected_.assign(suspected_.size(), false);
        for (const auto &remote : remotes_) {
            if (remote && !remote->gone && remote->silent_since_ns != 0 &&
                now - remote->silent_since_ns > silence_ns_ / 2) {
                suspect(*remote, now);
            }
        }
        for (const auto &remote : remotes_) {
            if (remote && !remote->gone && serves(remote->replica.block().state.load()) && must_ping(*remote)) {
                ping(*remote, now);
            }
        }
    }
    next_ns_ = probing_ ? std::min(next_round_ns_, now + kProbeNs) : next_round_ns_;
    next_ns_ = suspicion_ns_ != 0 ? std::min(next_ns_, suspicion_ns_) : next_ns_;
}

void Heartbeat::suspect(RemoteRank &remote, int64_t now) {
    suspected_[static_cast<size_t>(remote.host)] = true;
    const bool said = std::any_of(remotes_.begin(), remotes_.end(), [&](const std::unique_ptr<RemoteRank> &one) {
        return one && one->host == remote.host && one->warned;
    });
    remote.warned = true;
    if (!said) {  // once a host: its ranks are silent together
        log_.warn("rank {} (host {}, pid {}) has not answered for {} ms; after {} ms it counts as lost", remote.rank,
                  remote.replica.block().host, remote.replica.block().pid, (now - remote.silent_since_ns) / 1'000'000,
                  silence_ns_ / 1'000'000);
    }
}

void Heartbeat::suspect_all(int64_t now) {
    for (const auto &remote : remotes_) {
        if (remote && !remote->gone && remote->silent_since_ns == 0) {
            remote->silent_since_ns = now;
            remote->ping_sent = false;
        }
    }
    suspicion_ns_ = now + kSuspicionNs;
    next_ns_ = std::min(next_ns_, suspicion_ns_);
}

// Silence counts from a ping that has been sent. Until then it counts from when the ping was queued, so that a rank that
// takes no messages is given up, too.
void Heartbeat::ping(RemoteRank &remote, int64_t now) {
    const bool sent = stream_.delivered(remote);
    if (remote.silent_since_ns == 0) {
        remote.silent_since_ns = now;
        remote.ping_sent = false;
    } else if (now - remote.silent_since_ns > silence_ns_) {
        lose_silent(remote, now);
        return;
    } else {
        if (sent && !remote.ping_sent) {
            remote.silent_since_ns = now;
            remote.ping_sent = true;
        }
        probe(remote);
        if (!sent) {
            return;  // one queued ping is enough
        }
    }
    stream_.send(remote, encode(HeartbeatMessage{++last_ping_, 0, remote.replica.known_arrivals()}));
}

// Probes the port because tcp;ofi_rxm returns FI_EAGAIN for ever when a peer's process is gone.
void Heartbeat::probe(RemoteRank &remote) {
    if (remote.silent_since_ns == 0 || !remote.endpoint->listens_at_name()) {
        remote.probe.reset();
        return;
    }
    if (!remote.probe) {
        remote.probe.emplace(remote.name);
    }
    switch (remote.probe->poll()) {
        case ListenerProbe::Answer::Pending: probing_ = true; break;
        case ListenerProbe::Answer::Open: remote.probe.reset(); break;  // probes again in the next round
        case ListenerProbe::Answer::Refused:
            remote.probe.reset();
            remote.mark_lost("nobody listens at its port any more, so it died or replaced its program (exec)");
            break;
    }
}

// Gives up a silent rank, and with it those ranks of its host that have been silent for long enough. A lost host is lost with all
// its ranks, which are pinged from half of the silence on; one that was pinged too late for that is lost after its own silence. A
// rank that is only slow to answer stays.
void Heartbeat::lose_silent(const RemoteRank &silent, int64_t now) {
    const int64_t long_enough = std::max(kEveryNs, silence_ns_ / 4);
    const auto seconds = [now](const RemoteRank &one) {
        const int64_t tenths = (now - one.silent_since_ns) / 100'000'000;
        return static_cast<double>(tenths) / 10;
    };
    const double first_seconds = seconds(silent);
    for (const auto &remote : remotes_) {
        if (!remote || remote->host != silent.host || remote->silent_since_ns == 0 ||
            now - remote->silent_since_ns < long_enough) {
            continue;
        }
        std::string reason = formatted("nothing has been heard from it for {:g} s", seconds(*remote));
        if (remote.get() != &silent) {
            reason += formatted(", and from rank {} of its host for {:g} s", silent.rank, first_seconds);
        }
        remote->mark_lost(reason);
    }
}

}  // namespace odc
