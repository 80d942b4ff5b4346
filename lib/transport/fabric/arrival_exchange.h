// SPDX-License-Identifier: Apache-2.0
// The arrivals in a collective call, a sync or a reduction, between hosts: a Bruck all-gather. In round k each host sends all that
// it knows of itself and the 2^k - 1 hosts before it to the host 2^k after it, each of its ranks to those of its own index there.
// So a rank sends log2(hosts) messages a call, not one to each rank, and what it sends depends only on what it knows, not on who
// told it.
//
// The rounds are only a shortcut: a rank that is pinged by one that has not heard of its arrival answers with it, so that a
// stopped rank keeps back no arrival but its own, and errors blame who has not come. Such pings come from a rank that waits, for
// the rank that it waits for and, each second or so, for all that are missing.
#pragma once

#include "transport/fabric/remote_rank.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace odc {

class ArrivalExchange {
public:
    using Send = std::function<void(RemoteRank &to, const std::string &messages)>;

    // `remotes`: by rank, NULL for this host's ranks. `hosts`: the ranks of each. `local_blocks`: of this host's ranks, ascending,
    // this one's among them.
    ArrivalExchange(int rank, const std::vector<std::unique_ptr<RemoteRank>> &remotes,
                    const std::vector<std::vector<int>> &hosts, std::vector<const ControlBlock *> local_blocks,
                    Send send);

    // This rank has arrived in collective call `number`, as its block says, at the time `at_ns`; its age in `own` does not matter.
    void arrive(uint64_t number, const Arrival &own, int64_t at_ns);
    // Throws ODC_ERROR_INTERNAL if it is about a rank of this host, or none, or an arrival before the last one is known.
    void on_message(const ArrivedMessage &message);
    // Sends this rank's arrivals to one that has heard of `known` of them, if there are more.
    void answer(RemoteRank &to, uint64_t known);
    // Messages of this rank's arrivals that a rank which has heard of `known` of them may lack; empty: none.
    std::string own_arrivals_since(uint64_t known) const;
    // Sends what can be sent; true if there was anything.
    bool pump();
    // Whether this rank has sent all that the call needs of it. From any thread.
    bool is_done(uint64_t number) const { return done_.load(std::memory_order_acquire) > number; }
    // Whether ranks of this host are missing, whose arrival does not wake the progress thread.
    bool awaits_host() const { return arrived_ > 0 && round_ < rounds_ && complete_hosts_ == 0; }
    // The ranks that have to be pinged now as they are missing.
    std::vector<RemoteRank *> overdue(int64_t now_ns);

private:
    bool is_complete(size_t hosts);
    bool has_arrived(size_t host) const;
    size_t hosts_told_of(size_t round) const;
    void send_round(size_t round);
    int64_t pause_ns() const;
    Arrival arrival_of(int rank, size_t index, size_t host) const;
    const TimedArrival &last() const { return own_[(arrived_ - 1) % 2]; }
    uint64_t count_in(const ControlBlock &block) const;
    size_t before(size_t hosts) const { return (mine_ + hosts_.size() - hosts) % hosts_.size(); }

    int rank_;
    const std::vector<std::unique_ptr<RemoteRank>> &remotes_;
    std::vector<std::vector<int>> hosts_;
    std::vector<const ControlBlock *> local_blocks_;
    Send send_;
    size_t mine_ = 0;           // this host
    size_t index_ = 0;          // of this rank on it
    size_t rounds_ = 0;         // of a call
    TimedArrival own_[2] = {};  // by call parity
    uint64_t arrived_ = 0;
    size_t round_ = 0;           // the next of the last call
    size_t complete_hosts_ = 0;  // so many hosts, from this one backwards, have arrived in it
    int64_t ask_ns_ = 0;         // when the missing are pinged next
    std::atomic<uint64_t> done_{0};
};

}  // namespace odc
