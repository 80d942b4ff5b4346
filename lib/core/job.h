// SPDX-License-Identifier: Apache-2.0
// One rank's view of its job: the peers' blocks, and the job error. core/wait.h has its waits.
#pragma once

#include "base/deadline.h"
#include "base/futex.h"
#include "core/control_channel.h"
#include "memory/control_block.h"
#include "transport/transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace odc {

struct Membership;
struct Peer;
class Endpoint;

class Job {
public:
    explicit Job(const Membership &membership);  // which outlives this
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;

    int rank() const { return rank_; }
    int size() const { return static_cast<int>(blocks_.size()); }
    const Peer &peer(int rank) const;
    Endpoint &endpoint_to(int rank) const;
    ControlBlock &block(int rank) { return *blocks_[static_cast<size_t>(rank)]; }
    const ControlBlock &block(int rank) const { return *blocks_[static_cast<size_t>(rank)]; }
    ControlBlock &mine() { return block(rank()); }
    const ControlBlock &mine() const { return block(rank()); }
    uint64_t minibatch() const { return minibatch_; }
    void end_minibatch() { log_.set_minibatch(++minibatch_); }

    Log &log() const { return log_; }

    // "rank 3 (host h, pid 42)"
    std::string who(int rank) const;
    // "has been in odc_gather of shard \"x\" in minibatch 7 for 1.2 s"; of a rank of another host
    // "was last heard from 0.2 s ago, 1.2 s into odc_gather of shard \"x\" in minibatch 7"
    std::string what(int rank) const;

    // Throws the job error if there is one. Cheap: asked at the start of every call.
    void check() const;
    // Throws also if another rank has failed, for calls in which no wait would notice. As cheap.
    void check_peers();
    bool has_failed() const { return error_status_.load(std::memory_order_acquire) != ODC_OK; }
    // Keeps the first job error and sends its message to all ranks. Throws it, or the one that was first.
    [[noreturn]] void fail_job(odc_status status, const std::string &text);
    // odc_abort: as fail_job, but returns.
    void abort(const std::string &text);
    // In a catch: fails the job, as others see a part of this rank's work, which cannot be taken back. Throws the job error.
    [[noreturn]] void fail_halfway(Call call);
    // In a catch: throws the job error if there is one, as it may be the cause; else rethrows.
    [[noreturn]] void rethrow() const;
    void leave();

    // Callbacks of an engine whose work goes on after its calls; may be empty.
    struct Hooks {
        std::function<void()> while_waiting;  // now and then, in every wait; throws the job's error
        std::function<void()> before_leaving;
    };
    void set_hooks(Hooks hooks) { hooks_ = std::move(hooks); }

    ControlChannel &channel() { return channel_; }
    const ControlChannel &channel() const { return channel_; }
    // Whether bytes on their way from or to a rank may still arrive.
    bool serves(int rank) const {
        return !has_failed() && odc::serves(block(rank).state.load(std::memory_order_acquire));
    }
    // The ranks of this host, ascending, and this rank's index among them.
    const std::vector<int> &local_peers() const { return local_peers_; }
    size_t local_rank() const {
        return static_cast<size_t>(std::find(local_peers_.begin(), local_peers_.end(), rank_) - local_peers_.begin());
    }
    bool on_this_host(int rank) const { return is_local_[static_cast<size_t>(rank)] != 0; }

    // The deadline of a wait that begins now.
    Deadline deadline() const;
    int64_t timeout_ms() const;
    // If another rank has failed or is lost, makes that this rank's job error, unless it has one.
    void learn();

    // Tells the others, for their errors, what call this rank is in. `record`: offset of its shard's; 0: no shard.
    class CallScope {
    public:
        CallScope(Job &job, Call call, uint64_t record = 0) : job_(job) { job_.note(call, record); }
        ~CallScope() { job_.note_done(); }
        CallScope(const CallScope &) = delete;
        CallScope &operator=(const CallScope &) = delete;

    private:
        Job &job_;
    };
    // Within a CallScope: from now until note_device_done() the call waits for this rank's device, first for the work on the
    // shard of `record` (0: no shard).
    void note_device_wait(uint64_t record);
    void note_device_done();

    // After an error of `call`: cancels the requests and returns once they access none of this rank's memory. A peer may still
    // access memory for what was sent to it: a slow peer is waited for; if it is lost, all connections are closed and the job
    // fails. `look` is called now and then; if it throws, call this again.
    void cancel(const std::vector<std::shared_ptr<Request>> &requests, Call call, const std::function<void()> &look);

    // Sleeps until the doorbell rings, 20 ms at most. `rung`: the doorbell's count before the caller last checked its condition.
    void sleep(Doorbell &doorbell, uint32_t rung);
    void sleep(int on) { sleep(block(on).doorbell, block(on).doorbell.rung.load()); }
    // Sleeps briefly, for conditions that ring no doorbell.
    void nap(int on);

    class Wait;  // core/wait.h

private:
    void note(Call call, uint64_t record);
    void note_done();
    std::string of_shard(int rank, uint64_t record) const;
    void look_at_states();
    void run_waiting_hook();
    std::string all_lost_with(int rank) const;
    void look_for_deaths();
    void look_for_replaced_programs();
    bool set_error(odc_status status, const std::string &text);
    // Tells all ranks of the first error, before the program may end.
    void let_know();
    // Wakes every rank: also those that do not wait for this one must hear of its failure.
    void ring_all();

    const Membership &membership_;
    Log &log_;
    int rank_;
    const std::vector<int> &local_peers_;
    std::vector<char> is_local_;          // by rank
    std::vector<ControlBlock *> blocks_;  // by rank
    ControlChannel channel_;
    Hooks hooks_;
    uint64_t minibatch_ = 0;
    int spins_;  // before a wait goes to sleep
    std::atomic<uint32_t> asked_program_{0};
    std::mutex mutex_;
    std::atomic<int32_t> error_status_{ODC_OK};  // written after the text, under the mutex
    std::string error_text_;
};

}  // namespace odc
