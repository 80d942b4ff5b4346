// SPDX-License-Identifier: Apache-2.0
// Whether the ranks of other hosts live. Local peers see a rank's death themselves and say so; what nobody is left to
// report is that a whole host, or the way to it, is gone. So of each pair of hosts one rank each asks the other four
// times a second, and so does everybody whom he waits for; an answer also says what that rank last did. Who does not
// answer is looked for: if its kernel says that nobody listens there any more, it is dead; else silence decides.
#pragma once

#include "transport/fabric/reliable_stream.h"

#include <memory>
#include <vector>

namespace odc {

class Heartbeat {
public:
    Heartbeat(int rank, int64_t silence_ms, const std::vector<std::unique_ptr<RemoteRank>> &remotes,
              ReliableStream &packets)
        : rank_(rank), silence_ns_(silence_ms * 1'000'000), remotes_(remotes), stream_(packets) {}

    // `hosts`: the ranks of each.
    void watch(const std::vector<std::vector<int>> &hosts);
    void heard(RemoteRank &from, const HeartbeatMessage &message);
    // Throws ODC_ERROR_INTERNAL when it is not for this rank to say.
    void heard(const RemoteRank &from, const DeadMessage &message);
    // Asks everybody; the number of the question.
    uint64_t ask_all();
    // Whether all that can still answer have.
    bool is_answered(uint64_t question) const;
    // Asks whom it is time to ask, and gives up those that are dead or have been silent for too long.
    void tick(int64_t now_ns);
    // Soon asks the kernels of all that have said nothing by then: nobody who is dead is worth waiting for.
    void suspect_all(int64_t now_ns);
    int64_t next_ns() const { return next_ns_; }

private:
    bool asks(const RemoteRank &remote) const;
    void ask(RemoteRank &remote, int64_t now_ns);
    void look_for(RemoteRank &remote);
    void lose_silent(const RemoteRank &silent, int64_t now_ns);

    int rank_;
    int64_t silence_ns_;
    const std::vector<std::unique_ptr<RemoteRank>> &remotes_;
    ReliableStream &stream_;
    std::vector<RemoteRank *> opposite_;  // of each other host the rank that is this one's to ask, if one is
    std::vector<bool> suspected_;         // hosts all of whose ranks are asked, because one has been silent
    bool probing_ = false;                // somebody whose kernel has not answered yet
    uint64_t last_question_ = 0;
    int64_t last_ns_ = 0;
    int64_t next_round_ns_ = 0;
    int64_t suspicion_ns_ = 0;  // 0: none
    int64_t next_ns_ = 0;
};

}  // namespace odc
