// SPDX-License-Identifier: Apache-2.0
#include "core/job.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/program.h"
#include "bootstrap/membership.h"
#include "memory/shard_record.h"
#include "topology/host.h"

namespace odc {

namespace {

constexpr int kPatientSpins = 4000;  // some tens of microseconds: what a futex would cost
constexpr int kCrowdedSpins = 20;    // more ranks than cores: the awaited rank may need this core

std::string seconds(int64_t ns) { return formatted("{:.1f} s", static_cast<double>(ns) * 1e-9); }

}  // namespace

Job::Job(const Membership &membership)
    : membership_(membership), log_(*membership.config.log), rank_(membership.config.rank),
      local_peers_(membership.hosts[membership.own().host_index]), channel_(membership.fabric.get()) {
    for (const Peer &one : membership.peers) {
        is_local_.push_back(static_cast<char>(one.pidfd.valid()));
        blocks_.push_back(&one.control_block());
    }
    is_local_[static_cast<size_t>(rank_)] = 1;
    spins_ = size() <= topology().cores ? kPatientSpins : kCrowdedSpins;
    mine().last_call_at_ns = now_ns();
}

const Peer &Job::peer(int rank) const { return membership_.peers[static_cast<size_t>(rank)]; }

Endpoint &Job::endpoint_to(int rank) const { return *peer(rank).route.endpoint; }

Deadline Job::deadline() const {
    const JobConfig &config = membership_.config;
    return {config.timeout_ms, config.interrupted, config.interrupted_arg, config.log};
}

int64_t Job::timeout_ms() const { return membership_.config.timeout_ms; }

std::string Job::who(int rank) const {
    return formatted("rank {} (host {}, pid {})", rank, peer(rank).host, peer(rank).pid);
}

// `record`: 0 for none.
std::string Job::of_shard(int rank, uint64_t record) const {
    if (record == 0) {
        return "";
    }
    return formatted(" of shard \"{}\"", text_name(*reinterpret_cast<ShardRecord *>(peer(rank).arena->record(record)),
                                                   static_cast<uint32_t>(size())));
}

std::string Job::what(int rank) const {
    const ControlBlock &other = block(rank);
    const uint64_t last_call = other.last_call.load(std::memory_order_acquire);  // with the record that it names
    const auto call = static_cast<Call>(last_call >> 56);
    const uint64_t record = last_call & kLastCallRecord;
    const bool inside = (last_call & kLastCallInside) != 0;
    const bool awaits_gpu = (last_call & kLastCallAwaitsGpu) != 0;
    const int64_t at_ns = other.last_call_at_ns.load(std::memory_order_relaxed);
    const std::string shard = of_shard(rank, record);
    const std::string where = formatted("{}{} in minibatch {}", call_name(call), awaits_gpu ? "" : shard,
                                        other.last_minibatch.load(std::memory_order_relaxed));
    if (const int64_t heard_ns = other.heard_at_ns.load(std::memory_order_relaxed); heard_ns != 0) {
        return formatted("was last heard from {} ago, {}{}{}{}", seconds(now_ns() - heard_ns),
                         seconds(std::max<int64_t>(heard_ns - at_ns, 0)), inside ? " into " : " after ", where,
                         awaits_gpu ? formatted(", where it waited for its GPU's work{}", shard) : "");
    }
    const std::string since = seconds(now_ns() - at_ns);
    return formatted("{}{}{}{}", inside ? "has been in " : "last left ", where,
                     inside ? formatted(" for {}", since) : formatted(", {} ago", since),
                     awaits_gpu ? formatted(", where it waits for its GPU's work{}", shard) : "");
}

void Job::note(Call call, uint64_t record) {
    if (log_.on(ODC_LOG_TRACE)) {
        log_.trace("calls {}{}", call_name(call), of_shard(rank(), record));
    }
    ControlBlock &block = mine();
    block.last_call.store(static_cast<uint64_t>(call) << 56 | kLastCallInside | record, std::memory_order_release);
    block.last_minibatch.store(minibatch_, std::memory_order_relaxed);
    block.last_call_at_ns.store(tick_ns(), std::memory_order_relaxed);
}

void Job::note_device_wait(uint64_t record) {
    const uint64_t call = mine().last_call.load(std::memory_order_relaxed) & ~kLastCallRecord;
    mine().last_call.store(call | kLastCallAwaitsGpu | record, std::memory_order_release);
}

void Job::note_device_done() {
    mine().last_call.fetch_and(~(kLastCallAwaitsGpu | kLastCallRecord), std::memory_order_relaxed);
}

void Job::note_done() {
    ControlBlock &block = mine();
    if ((block.last_call.load(std::memory_order_relaxed) & kLastCallAwaitsGpu) != 0) {  // a wait that ended in an error
        note_device_done();
    }
    block.last_call.fetch_and(~kLastCallInside, std::memory_order_relaxed);
    block.last_call_at_ns.store(tick_ns(), std::memory_order_relaxed);
}

void Job::check_peers() {
    check();
    if (mine().peer_failed.load(std::memory_order_acquire) != 0) {
        look_at_states();
    }
}

void Job::check() const {
    const auto status = static_cast<odc_status>(error_status_.load(std::memory_order_acquire));
    if (status != ODC_OK) {
        throw Error(status, error_text_);
    }
}

bool Job::set_error(odc_status status, const std::string &text) {
    std::unique_lock lock(mutex_);
    if (error_status_.load(std::memory_order_relaxed) != ODC_OK) {
        return false;
    }
    error_text_ = cut(text, sizeof(ControlBlock::error_text) - 1);  // as the others read it
    error_status_.store(status, std::memory_order_release);
    const RankState state = mine().state.load(std::memory_order_relaxed);
    if (state == RankState::Running) {
        record_failure(mine(), status, error_text_.c_str());
    }
    // What is under way to and from other hosts ends with the connections, also of a rank that has left, whose control
    // block nobody reads.
    if (state == RankState::Running || state == RankState::Left) {
        channel_.fail({status, error_text_});
    }
    lock.unlock();
    log().error("the job has failed: {}: {}", status_string(status), error_text_);
    return true;
}

void Job::ring_all() {
    for (ControlBlock *block : blocks_) {
        ring(*block);
    }
    size_t span = kTreeFan;  // ranks of a node
    for (int level = 0; level < kTreeLevels; ++level, span *= kTreeFan) {
        for (size_t index = 0; index < local_peers().size(); index += span) {
            ControlBlock &first = block(local_peers()[index]);
            ring(first.sync_tree[level].doorbell);
            ring(first.reduction_tree[level].doorbell);
        }
    }
}

void Job::let_know() {
    if (mine().state.load(std::memory_order_relaxed) == RankState::Failed) {
        for (ControlBlock *block : blocks_) {
            block->peer_failed.store(1, std::memory_order_release);
        }
    }
    ring_all();
    if (mine().state.load() == RankState::Failed) {
        channel_.await_failed();
    }
}

void Job::fail_job(odc_status status, const std::string &text) {
    if (set_error(status, text)) {
        let_know();
    }
    check();
    fail(ODC_ERROR_INTERNAL, "a job error was not kept: {}", text);
}

void Job::abort(const std::string &text) {
    if (set_error(ODC_ERROR_ABORTED, text)) {
        let_know();
    }
}

void Job::fail_halfway(Call call) {
    std::string text = "out of memory";  // short enough to need none
    try {
        throw;
    } catch (const Error &error) {
        try {
            text = formatted("{} stopped halfway in {}: {}", who(rank()), call_name(call), error.what());
        } catch (const std::bad_alloc &) {
        }
    } catch (const std::exception &) {
    } catch (...) {  // pthread_exit in a callback
        abort(formatted("{} stopped halfway in {}: its thread ended", who(rank()), call_name(call)));
        throw;
    }
    try {
        abort(text);
    } catch (const std::bad_alloc &) {  // the error is kept, even if a rank could not be told
    }
    check();
    throw std::logic_error("an abort was not kept");
}

void Job::rethrow() const {
    try {
        throw;
    } catch (const std::exception &) {  // what pthread_exit throws must go on
        check();
        throw;
    }
}

void Job::leave() {
    if (hooks_.before_leaving) {
        hooks_.before_leaving();
    }
    const std::lock_guard lock(mutex_);
    ControlBlock &block = mine();
    if (block.state.load(std::memory_order_relaxed) != RankState::Running) {
        return;
    }
    block.left_minibatch.store(minibatch_, std::memory_order_relaxed);
    block.state.store(RankState::Left, std::memory_order_release);
    channel_.leave(LeftMessage{minibatch_});
    ring_all();
}

void Job::look_at_states() {
    check();
    for (int rank = 0; rank < size(); ++rank) {
        ControlBlock &other = block(rank);
        const RankState state = other.state.load(std::memory_order_acquire);
        if (rank != this->rank() && state == RankState::Failed) {
            fail_job(static_cast<odc_status>(other.error_status), other.error_text);
        }
        if (state == RankState::Lost) {
            run_waiting_hook();  // a device's failure ends the progress thread, and with it all that is known of other hosts
            fail_job(ODC_ERROR_PEER_LOST, all_lost_with(rank));
        }
    }
}

void Job::learn() {
    try {
        look_at_states();
    } catch (const Error &) {
        // It is this rank's job error now.
    }
}

// Names all lost ranks, as a host is lost with all its ranks.
std::string Job::all_lost_with(int rank) const {
    std::string others;
    for (int other = 0; other < size(); ++other) {
        if (other != rank && block(other).state.load(std::memory_order_acquire) == RankState::Lost) {
            others += formatted("{}{}", others.empty() ? "; so is " : ", ", who(other));
        }
    }
    return formatted("{} is lost: {}; it {}{}", who(rank), block(rank).error_text, what(rank), others);
}

void Job::look_for_deaths() {
    std::vector<pollfd> pidfds;
    for (const Peer &one : membership_.peers) {
        pidfds.push_back({one.pidfd.get(), POLLIN, 0});
    }
    pidfds[static_cast<size_t>(rank())].fd = -1;
    if (poll(pidfds.data(), pidfds.size(), 0) <= 0) {
        return look_for_replaced_programs();
    }
    // A job error that a dead rank has left explains more than its death.
    look_at_states();
    for (int rank = 0; rank < size(); ++rank) {
        if (pidfds[static_cast<size_t>(rank)].revents == 0) {
            continue;
        }
        if (block(rank).state.load(std::memory_order_acquire) != RankState::Running) {
            continue;
        }
        fail_job(ODC_ERROR_PEER_LOST, formatted("{} died; it {}", who(rank), what(rank)));
    }
}

// Takes a system call for each rank, so a call checks only some of many ranks.
void Job::look_for_replaced_programs() {
    for (size_t i = 0; i < std::min(blocks_.size(), kProgramsAtOnce); ++i) {
        const int rank = static_cast<int>(asked_program_.fetch_add(1, std::memory_order_relaxed) % blocks_.size());
        const Peer &one = peer(rank);
        if (rank == this->rank() || !one.program.valid() || !is_program_gone(one.program.get())) {
            continue;
        }
        look_at_states();  // it may have left or failed first
        if (block(rank).state.load(std::memory_order_acquire) == RankState::Running) {
            const char *const ending = ending_text(how_program_went(one.pidfd.get()));
            fail_job(ODC_ERROR_PEER_LOST, formatted("{} {}; it {}", who(rank), ending, what(rank)));
        }
    }
}

void Job::sleep(Doorbell &doorbell, uint32_t rung) {
    doorbell.waiters.fetch_add(1);
    // The doorbell may have been rung before we were counted; then the futex returns at once.
    futex_wait(doorbell.rung, rung, deadline().slice_ms());
    doorbell.waiters.fetch_sub(1);
}

// Counts as a waiter, too, so that an awaited rank of another host is asked whether it is alive.
void Job::nap(int on) {
    block(on).doorbell.waiters.fetch_add(1);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    block(on).doorbell.waiters.fetch_sub(1);
}

// Lets the engine notice that its device has failed: other ranks may be waiting for this one.
void Job::run_waiting_hook() {
    if (hooks_.while_waiting) {
        hooks_.while_waiting();
    }
}

void Job::cancel(const std::vector<std::shared_ptr<Request>> &requests, Call call, const std::function<void()> &look) {
    constexpr int64_t kLostNs = 1'000'000'000;
    const Deadline over = deadline();
    for (const auto &request : requests) {
        request->cancel();
    }
    for (const auto &request : requests) {
        const int owner = request->owner();
        for (int64_t lost_ns = 0; request->is_pending(); sleep(owner)) {
            look();
            if (serves(owner) && !over.over()) {
                lost_ns = 0;
            } else if (lost_ns == 0) {
                lost_ns = now_ns();
                learn();
            } else if (now_ns() - lost_ns > kLostNs) {
                abort(formatted("{} gave up {}, and {} does not answer", who(rank()), call_name(call), who(owner)));
            }
        }
    }
}

}  // namespace odc
