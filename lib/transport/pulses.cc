// SPDX-License-Identifier: Apache-2.0
#include "transport/pulses.h"

#include <algorithm>

#include "patience.h"
#include "status.h"

namespace odc {

namespace {

constexpr int64_t kEveryNs = 250'000'000;

}  // namespace

void Pulses::watch(const std::vector<std::vector<int>> &hosts) {
    const size_t mine =
        static_cast<size_t>(std::find_if(hosts.begin(), hosts.end(),
                                         [&](const auto &ranks) {
                                             return std::find(ranks.begin(), ranks.end(), mine_.rank) != ranks.end();
                                         }) -
                            hosts.begin());
    for (size_t other = 0; other < hosts.size(); ++other) {
        // Both sides find the same pair, and the ranks of a host share the work.
        const auto here = static_cast<size_t>(hosts[mine][other % hosts[mine].size()]);
        const auto there = static_cast<size_t>(hosts[other][mine % hosts[other].size()]);
        if (other != mine && here == static_cast<size_t>(mine_.rank)) {
            opposite_.push_back(remotes_[there].get());
        }
    }
}

PulseNotice Pulses::pulse(uint64_t question) const {
    return {mine_.did.load(std::memory_order_relaxed), mine_.did_minibatch.load(std::memory_order_relaxed),
            now_ns() - mine_.did_at_ns.load(std::memory_order_relaxed), question};
}

void Pulses::heard(Remote &from, const PulseNotice &notice) {
    from.mirror.apply(notice);
    if (notice.question != 0) {
        packets_.say(from, encode(pulse(0)));
    }
}

bool Pulses::asks(const Remote &remote) const {
    return remote.mirror.block().waiters.load() != 0 || suspected_ == remote.host ||
           std::find(opposite_.begin(), opposite_.end(), &remote) != opposite_.end();
}

void Pulses::tick(int64_t now) {
    if (now < next_ns_) {
        return;
    }
    next_ns_ = now + kEveryNs;
    const std::string question = encode(pulse(1));
    const int64_t silence_ns = silence_ms_ * 1'000'000;
    int suspected = -1;
    for (const auto &remote : remotes_) {
        if (!remote || remote->gone || remote->mirror.block().state.load() != RankState::Running || !asks(*remote)) {
            continue;
        }
        if (remote->silent_since_ns == 0) {
            remote->silent_since_ns = now;
        } else if (now - remote->silent_since_ns > silence_ns) {
            lose(*remote, now);
            return;
        } else if (now - remote->silent_since_ns > silence_ns / 2) {
            suspected = remote->host;
        }
        // One unanswered question in the provider's hands is enough.
        if (packets_.delivered(*remote)) {
            packets_.say(*remote, question);
        }
    }
    suspected_ = suspected;
}

// With all of its host that were asked after it had been silent for half as long, and did not answer either.
void Pulses::lose(const Remote &silent, int64_t now) {
    const double seconds = static_cast<double>(now - silent.silent_since_ns) * 1e-9;
    for (const auto &remote : remotes_) {
        if (remote && remote->host == silent.host && remote->silent_since_ns != 0) {
            remote->lose(say("nothing has been heard from it for ", seconds, " s"));
        }
    }
}

}  // namespace odc
