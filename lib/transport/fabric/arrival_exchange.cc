// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/arrival_exchange.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"

namespace odc {

namespace {

// The missing are pinged so long after an arrival, or so much for each rank if that is more, and then as often: pings and answers
// of a thousand ranks cost each some percent of a core at most.
constexpr int64_t kAskNs = 1'000'000'000;
constexpr int64_t kAskOneNs = 4'000'000;

size_t find_index(const std::vector<int> &ranks, int rank) {
    return static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

ArrivalExchange::ArrivalExchange(int rank, const std::vector<std::unique_ptr<RemoteRank>> &remotes,
                                 const std::vector<std::vector<int>> &hosts,
                                 std::vector<const ControlBlock *> local_blocks, Send send)
    : rank_(rank), remotes_(remotes), hosts_(hosts), local_blocks_(std::move(local_blocks)), send_(std::move(send)) {
    while (find_index(hosts_[mine_], rank) == hosts_[mine_].size()) {
        ++mine_;
    }
    index_ = find_index(hosts_[mine_], rank);
    while (size_t{1} << rounds_ < hosts_.size()) {
        ++rounds_;
    }
}

void ArrivalExchange::arrive(uint64_t number, const Arrival &own, int64_t at_ns) {
    own_[number % 2] = {own, at_ns};
    arrived_ = number + 1;
    round_ = 0;
    complete_hosts_ = 0;
    ask_ns_ = at_ns + pause_ns();
}

int64_t ArrivalExchange::pause_ns() const {
    return std::max(kAskNs, static_cast<int64_t>(remotes_.size()) * kAskOneNs);
}

void ArrivalExchange::on_message(const ArrivedMessage &message) {
    for (const Arrival &one : message.arrivals) {
        if (one.rank < 0 || static_cast<size_t>(one.rank) >= remotes_.size() ||
            !remotes_[static_cast<size_t>(one.rank)]) {
            fail(ODC_ERROR_INTERNAL, "a message between hosts tells of the arrival of rank {}", one.rank);
        }
        remotes_[static_cast<size_t>(one.rank)]->replica.apply(message.number, one);
    }
}

// Nobody lacks more than the last two: who has not heard of the one before has not ended that call, nor has this rank the next.
std::string ArrivalExchange::own_arrivals_since(uint64_t known) const {
    std::string messages;
    for (uint64_t number = std::max(known, arrived_ - std::min<uint64_t>(arrived_, 2)); number < arrived_; ++number) {
        messages += encode(ArrivedMessage{number, {own_[number % 2].aged()}});
    }
    return messages;
}

void ArrivalExchange::answer(RemoteRank &to, uint64_t known) {
    if (known < arrived_) {
        send_(to, own_arrivals_since(known));
    }
}

bool ArrivalExchange::pump() {
    bool any = false;
    for (; arrived_ > 0 && round_ < rounds_ && is_complete(hosts_told_of(round_)); ++round_) {
        send_round(round_);
        any = true;
    }
    if (round_ == rounds_) {
        done_.store(arrived_, std::memory_order_release);
    }
    return any;
}

// Whether all ranks of this host and of those before it, `hosts` in all, have arrived.
bool ArrivalExchange::is_complete(size_t hosts) {
    while (complete_hosts_ < hosts && has_arrived(before(complete_hosts_))) {
        ++complete_hosts_;
    }
    return complete_hosts_ >= hosts;
}

// So many hosts, this one and those before it, are told of in the round: in the last one fewer than 2^round may do.
size_t ArrivalExchange::hosts_told_of(size_t round) const {
    const size_t distance = size_t{1} << round;
    return std::min(distance, hosts_.size() - distance);
}

// In how many calls of the last one's kind a rank of this host has arrived. A rank that makes another call holds up the rounds, and
// ranks that wait find that out.
uint64_t ArrivalExchange::count_in(const ControlBlock &block) const {
    return (last().arrival.call == Call::Sync ? block.arrived : block.reductions).load(std::memory_order_acquire);
}

bool ArrivalExchange::has_arrived(size_t host) const {
    if (host == mine_) {
        const uint64_t count = count_in(*local_blocks_[index_]);
        return std::all_of(local_blocks_.begin(), local_blocks_.end(),
                           [&](const ControlBlock *block) { return count_in(*block) >= count; });
    }
    return std::all_of(hosts_[host].begin(), hosts_[host].end(), [this](int rank) {
        return remotes_[static_cast<size_t>(rank)]->replica.known_arrivals() >= arrived_;
    });
}

void ArrivalExchange::send_round(size_t round) {
    const size_t distance = size_t{1} << round;
    const std::vector<int> &receivers = hosts_[(mine_ + distance) % hosts_.size()];
    if (index_ >= receivers.size()) {
        return;  // ranks of lower indices tell all of them
    }
    std::string messages;
    ArrivedMessage message{arrived_ - 1, {}};
    const auto flush = [&] {
        messages += encode(message);
        message.arrivals.clear();
    };
    for (size_t back = 0; back < hosts_told_of(round); ++back) {
        const std::vector<int> &ranks = hosts_[before(back)];
        for (size_t index = 0; index < ranks.size(); ++index) {
            message.arrivals.push_back(arrival_of(ranks[index], index, before(back)));
            if (message.arrivals.size() == ArrivedMessage::kMost) {
                flush();
            }
        }
    }
    flush();
    for (size_t index = index_; index < receivers.size(); index += hosts_[mine_].size()) {
        send_(*remotes_[static_cast<size_t>(receivers[index])], messages);
    }
}

Arrival ArrivalExchange::arrival_of(int rank, size_t index, size_t host) const {
    const uint64_t number = arrived_ - 1;
    if (rank == rank_) {
        return last().aged();
    }
    if (host != mine_) {
        return remotes_[static_cast<size_t>(rank)]->replica.arrival(number);
    }
    const ControlBlock &block = *local_blocks_[index];
    const size_t parity = (count_in(*local_blocks_[index_]) - 1) % 2;
    if (last().arrival.call == Call::AllReduce) {
        return {rank, Call::AllReduce, block.broadcasts[number % 2], 0, 0, block.reduced[parity]};
    }
    const ControlBlock &first = *local_blocks_[index / kTreeFan * kTreeFan];
    return {rank,
            Call::Sync,
            block.broadcasts[number % 2],
            now_ns() - first.arrived_at_ns[parity][index % kTreeFan].load(std::memory_order_relaxed),
            first.speeds[parity][index % kTreeFan].load(std::memory_order_relaxed),
            block.synced[parity]};
}

std::vector<RemoteRank *> ArrivalExchange::overdue(int64_t now) {
    std::vector<RemoteRank *> missing;
    if (arrived_ == 0 || now < ask_ns_) {
        return missing;
    }
    ask_ns_ = now + pause_ns();
    for (const auto &remote : remotes_) {
        if (remote && !remote->gone && remote->replica.known_arrivals() < arrived_ &&
            serves(remote->replica.block().state.load(std::memory_order_relaxed))) {
            missing.push_back(remote.get());
        }
    }
    return missing;
}

}  // namespace odc
