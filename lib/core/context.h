// SPDX-License-Identifier: Apache-2.0
// The contract: what one rank may do when, and what it waits for.
#pragma once

#include "core/host_tree.h"
#include "core/job.h"
#include "core/shard.h"
#include "core/shard_directory.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace odc {

// A gather or an addition on its way.
struct Operation {
    Call call;
    Shard *shard;
    std::byte *buffer;           // read only, for additions
    void *stream;                // the caller's, for GPU memory
    std::vector<uint64_t> left;  // gather: owners still to read; addition: all, until none has to be waited for
    struct Pending {
        uint64_t index;  // of the owner
        std::shared_ptr<Request> request;
    };
    std::vector<Pending> pending;
    std::vector<StagedGet> staged_gets = {};  // into GPU memory
    bool kept = false;                        // until odc_wait or sync has finished it, which may be called again
};

class Context {
public:
    // The log outlives it.
    Context(const odc_config &config, Log &log);
    ~Context();

    Job &job() { return job_; }
    const Job &job() const { return job_; }
    uint64_t minibatch() const { return minibatch_; }

    std::vector<Shard *> register_shards(std::vector<Description> descriptions);
    void release(Shard &shard);
    // `stream`, here and below: for shards in GPU memory.
    void publish(Shard &shard, void *stream);
    void publish_all(void *stream);

    void gather(Shard &shard, void *full, void *stream);
    void scatter_add(Shard &shard, const void *full, void *stream);
    uint64_t gather_start(Shard &shard, void *full, void *stream);
    uint64_t scatter_add_start(Shard &shard, const void *full, void *stream);
    void wait(uint64_t operation);

    void sync(double *values, size_t count, int32_t op);
    void all_reduce(double *values, size_t count, int32_t op);
    void shutdown();
    void abort(const char *text);

    odc_stats stats() const;
    odc_peer_stats peer_stats(int rank) const;

private:
    // Relaxed counters: cheap enough to be always on, and read from any thread.
    struct PeerTimes {
        std::atomic<uint64_t> publish_wait_ns{0};
        std::atomic<uint64_t> sync_late_ns{0};
        std::atomic<uint64_t> sync_last{0};
        std::atomic<int64_t> *arrived_at_ns[2] = {};  // where its time of arrival stands, by minibatch parity
    };
    struct Totals {
        std::atomic<uint64_t> gather_calls{0};
        std::atomic<uint64_t> gather_bytes{0};
        std::atomic<uint64_t> scatter_add_calls{0};
        std::atomic<uint64_t> scatter_add_bytes{0};
        std::atomic<uint64_t> syncs{0};
        std::atomic<uint64_t> publish_wait_ns{0};
        std::atomic<uint64_t> sync_wait_ns{0};
        std::atomic<uint64_t> lock_wait_ns{0};
        std::atomic<uint64_t> slice_bytes{0};
    };
    // What a call does, for the others to read while it lasts.
    class Noted {
    public:
        Noted(Job &job, Call call, uint64_t post, uint64_t minibatch) : job_(job) { job_.note(call, post, minibatch); }
        ~Noted() { job_.note_done(); }
        Noted(const Noted &) = delete;
        Noted &operator=(const Noted &) = delete;

    private:
        Job &job_;
    };
    Noted note(Call call, const Shard *shard);

    void check_not_left(Call call) const;
    void check_not_arrived(Call call);
    void check_new(const std::vector<Description> &descriptions);
    void settle(const std::vector<std::unique_ptr<Shard>> &shards);
    // `kept`: the places of those that were taken from kept_mirrors_.
    std::vector<Allocation> allocate_on_host(const std::vector<std::unique_ptr<Shard>> &shards, std::set<size_t> &kept);
    void give_back(const Shard &shard, const Allocation &region);
    // In a catch: others see what this rank has begun, which cannot be taken back. Throws the job's error.
    [[noreturn]] void fail_halfway(Call call);
    // In a catch: throws the job's error if there is one, which may have caused what was caught.
    [[noreturn]] void rethrow();
    // Publishes it for the ranks of this host; they are not rung for.
    void open(Shard &shard, void *stream);
    // For those of other hosts.
    void tell_published(Shard &shard);
    void tell_all_published(const std::vector<Shard *> &opened);
    bool is_published(Shard &shard, uint64_t index);
    void await_publish(Shard &shard, uint64_t index, Job::Wait &wait);
    std::string missing_publish(const Shard &shard, uint64_t index);
    void get(Operation &operation, uint64_t index);
    bool expect(Operation &operation, uint64_t index);
    std::byte *place(const Operation &operation, uint64_t index) const;
    void add(Operation &operation, Job::Wait &wait);
    void begin(const Operation &operation);
    void count(const Operation &operation);
    void start(Operation &operation);
    void start_on_host(Operation &operation);
    void finish(Operation &operation);
    void await_transfers(Operation &operation, Job::Wait &wait);
    std::string under_way(const Operation &operation, int owner);
    void settle(Operation &operation);
    template <class Look>
    void settle(Operation &operation, const Look &look);
    void give_up(Operation &operation);
    bool leave_unfinished(Operation &operation);
    void expose(Shard &shard);
    void conceal(Shard &shard);
    // To the ranks of other hosts; those of this host see them already.
    void announce_elsewhere(const std::vector<Shard *> &shards);
    bool reaches_out(const Shard &shard);
    bool nics_reach_gpu();
    uint64_t keep(Operation begun);

    // For shards in GPU memory (gpu_operations.cc).
    template <class Body>
    void on_gpu(Body body);
    template <class Body>
    void enqueue(Call call, Body body);
    template <class Body>
    void fly(const Operation &operation, Body body);
    void check_stream(void *stream);
    void check_gpu_routes(const Description &description);
    std::vector<GpuAllocation> allocate_on_gpu(const std::vector<std::unique_ptr<Shard>> &shards);
    void drop(const std::vector<GpuAllocation> &parts);
    void mirror_if_needed(Shard &shard);
    void open_staging(const Shard &shard);
    void attach_gpu(Shard &shard);
    void unpin_mirror(Shard &shard);
    bool is_kept_by_mates(const Shard &shard) const;
    void detach_gpu(Shard &shard);
    void offer(const std::vector<std::unique_ptr<Shard>> &shards);
    void open_on_gpu(Shard &shard, void *stream);
    void start_on_gpu(Operation &operation);
    void finish_on_gpu(Operation &operation, Job::Wait &wait);
    void get_published(Operation &operation);
    void await_staged_gets(Operation &operation, Job::Wait &wait);
    void get_on_gpu(Operation &operation, const std::vector<uint64_t> &indexes);
    void add_on_gpu(Operation &operation, Job::Wait &wait);
    void add_directly(Operation &operation);
    void add_by_staging_proxy(Operation &operation, uint64_t index, Job::Wait &wait);
    template <class Ready>
    void wait_for_staging_proxy(Job::Wait &wait, const Ready &ready);
    std::string gpu_work();
    uint64_t begin_flight(Call call, const Shard &shard, const std::string &words);
    void note_gpu_wait();
    void land();
    void fold_mirrors();
    void fold(Shard &shard);
    bool settles_on_gpu();

    void finish_all();
    void arrive(const double *values, size_t count, int32_t op);
    template <class HasCome>
    void await_all(HostTree &tree, uint64_t number, Job::Wait &wait, const HasCome &has_come);
    void await_arrivals();
    void await_reduction();
    void find_arrival_times();
    std::atomic<int64_t> &arrived_at_ns(int rank) {
        return *peers_[static_cast<size_t>(rank)].arrived_at_ns[minibatch_ % 2];
    }
    void charge_lateness();
    void take(const Contribution &combined, Contribution (ControlBlock::*brought)[2], uint64_t number, const char *call,
              double *values);

    Job job_;
    HostTree sync_tree_;
    HostTree reduction_tree_;
    ShardDirectory directory_;
    uint64_t minibatch_ = 0;
    bool left_ = false;

    std::map<std::string, std::unique_ptr<Shard>> shards_;  // by name
    // By bytes: ranks of this host may still have them pinned, so they serve as mirrors only.
    std::multimap<uint64_t, Allocation> kept_mirrors_;
    std::vector<Shard *> fresh_;   // registered in this minibatch
    std::set<std::string> freed_;  // names released in this minibatch

    std::mutex operations_mutex_;
    std::map<uint64_t, Operation> operations_;
    uint64_t last_operation_ = 0;
    uint64_t synced_operations_ = 0;  // up to here sync has completed them all

    uint64_t reductions_ = 0;  // finished odc_all_reduce calls
    Totals totals_;
    std::vector<PeerTimes> peers_;
};

}  // namespace odc
