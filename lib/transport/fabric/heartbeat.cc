// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/heartbeat.h"

#include <algorithm>

#include "base/error.h"

namespace odc {

namespace {

constexpr int64_t kEveryNs = 250'000'000;
constexpr int64_t kProbeNs = 20'000'000;       // between two looks at whether somebody has answered a probe
constexpr int64_t kSuspicionNs = 100'000'000;  // for the living to say something

}  // namespace

void Heartbeat::watch(const std::vector<std::vector<int>> &hosts) {
    const auto has = [&](const std::vector<int> &ranks) {
        return std::find(ranks.begin(), ranks.end(), rank_) != ranks.end();
    };
    suspected_.assign(hosts.size(), false);
    const auto mine = static_cast<size_t>(std::find_if(hosts.begin(), hosts.end(), has) - hosts.begin());
    for (size_t other = 0; other < hosts.size(); ++other) {
        // Both sides find the same pair, and the ranks of a host share the work.
        const int here = hosts[mine][other % hosts[mine].size()];
        const int there = hosts[other][mine % hosts[other].size()];
        if (other != mine && here == rank_) {
            opposite_.push_back(remotes_[static_cast<size_t>(there)].get());
        }
    }
}

void Heartbeat::heard(RemoteRank &from, const HeartbeatMessage &message) {
    from.answered = std::max(from.answered, message.answer);
    if (message.question != 0) {
        stream_.say(from, encode(HeartbeatMessage{0, message.question}));
    }
}

void Heartbeat::heard(const RemoteRank &from, const DeadMessage &message) {
    const bool is_rank = message.rank >= 0 && static_cast<size_t>(message.rank) < remotes_.size();
    RemoteRank *dead = is_rank ? remotes_[static_cast<size_t>(message.rank)].get() : nullptr;
    if (dead == nullptr || dead->host != from.host) {
        fail(ODC_ERROR_INTERNAL, "rank ", from.rank, " says that rank ", message.rank, " died, which it cannot see");
    }
    if (!dead->gone) {
        dead->lose(say("it ", words_of(message.ending), ", as rank ", from.rank, " of its host has seen"));
    }
}

uint64_t Heartbeat::ask_all() {
    ++last_question_;
    for (const auto &remote : remotes_) {
        if (remote) {
            stream_.say(*remote, encode(HeartbeatMessage{last_question_, 0}));
        }
    }
    return last_question_;
}

bool Heartbeat::is_answered(uint64_t question) const {
    return std::all_of(remotes_.begin(), remotes_.end(), [&](const auto &remote) {
        return !remote || remote->gone || remote->closing || remote->answered >= question;
    });
}

bool Heartbeat::asks(const RemoteRank &remote) const {
    return remote.replica.block().bell.waiters.load() != 0 || suspected_[static_cast<size_t>(remote.host)] ||
           std::find(opposite_.begin(), opposite_.end(), &remote) != opposite_.end();
}

void Heartbeat::tick(int64_t now) {
    if (now < next_ns_) {
        return;
    }
    // Who was not looking has not been left unanswered.
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
            look_for(*remote);
        }
    }
    suspicion_ns_ = suspicious ? 0 : suspicion_ns_;
    if (now >= next_round_ns_) {
        next_round_ns_ = now + kEveryNs;
        suspected_.assign(suspected_.size(), false);
        for (const auto &remote : remotes_) {
            if (remote && !remote->gone && remote->silent_since_ns != 0 &&
                now - remote->silent_since_ns > silence_ns_ / 2) {
                suspected_[static_cast<size_t>(remote->host)] = true;
            }
        }
        for (const auto &remote : remotes_) {
            if (remote && !remote->gone && serves(remote->replica.block().state.load()) && asks(*remote)) {
                ask(*remote, now);
            }
        }
    }
    next_ns_ = probing_ ? std::min(next_round_ns_, now + kProbeNs) : next_round_ns_;
    next_ns_ = suspicion_ns_ != 0 ? std::min(next_ns_, suspicion_ns_) : next_ns_;
}

void Heartbeat::suspect_all(int64_t now) {
    for (const auto &remote : remotes_) {
        if (remote && !remote->gone && remote->silent_since_ns == 0) {
            remote->silent_since_ns = now;
            remote->has_question = false;
        }
    }
    suspicion_ns_ = now + kSuspicionNs;
    next_ns_ = std::min(next_ns_, suspicion_ns_);
}

// Silence counts from a question that has left. Until it has, it counts from when the question was put: who takes nothing
// is given up, too.
void Heartbeat::ask(RemoteRank &remote, int64_t now) {
    const bool has_left = stream_.delivered(remote);
    if (remote.silent_since_ns == 0) {
        remote.silent_since_ns = now;
        remote.has_question = false;
    } else if (now - remote.silent_since_ns > silence_ns_) {
        lose_silent(remote, now);
        return;
    } else {
        if (has_left && !remote.has_question) {
            remote.silent_since_ns = now;
            remote.has_question = true;
        }
        look_for(remote);
        if (!has_left) {
            return;  // one unanswered question in the provider's hands is enough
        }
    }
    stream_.say(remote, encode(HeartbeatMessage{++last_question_, 0}));
}

// tcp;ofi_rxm says "try again" for ever when a peer's process is gone, as it does when there is no room.
void Heartbeat::look_for(RemoteRank &remote) {
    if (remote.silent_since_ns == 0 || !remote.endpoint->listens_at_name()) {
        remote.probe.reset();
        return;
    }
    if (!remote.probe) {
        remote.probe.emplace(remote.name);
    }
    switch (remote.probe->look()) {
        case ListenerProbe::Answer::NotYet: probing_ = true; break;
        case ListenerProbe::Answer::Open: remote.probe.reset(); break;  // and again at the next round
        case ListenerProbe::Answer::Refused:
            remote.probe.reset();
            remote.lose("nobody listens at its port any more, so it died or replaced its program (exec)");
            break;
    }
}

// With all of its host that were asked after it had been silent for half as long, and did not answer either.
void Heartbeat::lose_silent(const RemoteRank &silent, int64_t now) {
    const int64_t tenths = (now - silent.silent_since_ns) / 100'000'000;
    const double seconds = static_cast<double>(tenths) / 10;
    for (const auto &remote : remotes_) {
        // Who has only been asked in this round may still answer.
        if (remote && remote->host == silent.host && remote->silent_since_ns != 0 &&
            now - remote->silent_since_ns >= kEveryNs) {
            remote->lose(say("nothing has been heard from it for ", seconds, " s"));
        }
    }
}

}  // namespace odc
