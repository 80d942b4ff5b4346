// SPDX-License-Identifier: Apache-2.0
// Whether the ranks of other hosts live. Host mates see a rank's death themselves and say so; what nobody is left to
// report is that a whole host, or the way to it, is gone. So of each pair of hosts one rank each asks the other four
// times a second, and so does everybody whom he waits for; an answer also says what that rank last did.
#pragma once

#include "transport/packets.h"

#include <memory>
#include <vector>

namespace odc {

class Pulses {
public:
    Pulses(const RankBlock &mine, int64_t silence_ms, const std::vector<std::unique_ptr<Remote>> &remotes,
           Packets &packets)
        : mine_(mine), silence_ms_(silence_ms), remotes_(remotes), packets_(packets) {}

    // `hosts`: the ranks of each.
    void watch(const std::vector<std::vector<int>> &hosts);
    void heard(Remote &from, const PulseNotice &notice);
    // Asks whom it is time to ask, and gives up those that have been silent for too long.
    void tick(int64_t now_ns);
    int64_t next_ns() const { return next_ns_; }

private:
    PulseNotice pulse(uint64_t question) const;
    bool asks(const Remote &remote) const;
    void lose(const Remote &silent, int64_t now_ns);

    const RankBlock &mine_;
    int64_t silence_ms_;
    const std::vector<std::unique_ptr<Remote>> &remotes_;
    Packets &packets_;
    std::vector<Remote *> opposite_;  // of each other host the rank that this one asks, if it is this one's to ask
    int suspected_ = -1;              // a host all of whose ranks are asked, because one has been silent
    int64_t next_ns_ = 0;
};

}  // namespace odc
