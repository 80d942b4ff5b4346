// SPDX-License-Identifier: Apache-2.0
// The contract: what one rank may do when, and what it waits for.
#pragma once

#include "base/counters.h"
#include "core/claims.h"
#include "core/host_tree.h"
#include "core/job.h"
#include "core/speeds.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace odc {

struct Description;
class Engines;
struct Operation;
class Shard;
class ShardDirectory;

class Context {
public:
    // The log outlives it.
    Context(const odc_config &config, Log &log);
    ~Context();

    const Job &job() const { return job_; }
    uint64_t minibatch() const { return job_.minibatch(); }

    std::vector<Shard *> register_shards(std::vector<Description> descriptions);
    void release(Shard &shard);
    // `stream`, here and below: for shards in device memory.
    void publish(Shard &shard, void *stream);
    void publish_all(void *stream);

    void gather(Shard &shard, void *full, void *stream);
    void scatter_add(Shard &shard, const void *full, void *stream);
    uint64_t gather_start(Shard &shard, void *full, void *stream);
    uint64_t scatter_add_start(Shard &shard, const void *full, void *stream);
    void wait(uint64_t operation);
    // This rank adds nothing more to the shard in this minibatch.
    void finish(Shard &shard);

    void sync(double *values, size_t count, int32_t op);
    void all_reduce(double *values, size_t count, int32_t op);
    // Returns the next item, or nothing if all `count` items are taken.
    std::optional<uint64_t> claim(uint64_t count);
    const std::vector<uint64_t> &claimed(uint64_t minibatch) const { return claims_.claimed(minibatch); }
    void report_cost(double cost);
    std::vector<double> speeds();
    void shutdown();
    void abort(const char *text);

    odc_stats stats() const;
    odc_peer_stats peer_stats(int rank) const;

private:
    void check_not_left(Call call) const;
    void check_not_arrived(Call call);
    void check_published(Call call, const Shard &shard) const;

    void check_new(const std::vector<Description> &descriptions) const;
    void attach(const std::vector<std::unique_ptr<Shard>> &shards);
    void tell_registered(const std::vector<Shard *> &shards);
    // Publishes to the ranks of this host; the caller rings the doorbell.
    void publish_here(Shard &shard, void *stream);
    void tell_all_published(const std::vector<Shard *> &published);

    void start(Operation &operation);
    void run(Operation operation);
    uint64_t start_only(Operation operation);
    void cancel(Operation &operation);
    void count(const Operation &operation);

    void finish_started();
    void arrive(const double *values, size_t count, int32_t op);
    // The number of the collective call that this rank makes or makes next: syncs and reductions are counted together.
    uint64_t collective() const { return minibatch() + reductions_; }
    void begin_collective();
    void tell_arrival(Call call, const Contribution &brought, int64_t at_ns, double speed);
    template <class HasCome>
    void await_host(HostTree &tree, uint64_t number, Job::Wait &wait, const HasCome &has_come);
    template <class HasCome>
    void await_other_hosts(Job::Wait &wait, const HasCome &has_come);
    template <class HasCome>
    std::string missing_ranks(const char *done, const HasCome &has_come) const;
    void await_arrivals();
    void await_votes(Job::Wait &wait);
    void await_reduction();
    void count_lateness();
    void take(const Contribution &combined, Contribution (ControlBlock::*brought)[2], uint64_t number, const char *call,
              double *values);

    std::unique_ptr<Membership> membership_;
    Job job_;
    HostTree sync_tree_;
    HostTree reduction_tree_;
    Counters counters_;
    std::unique_ptr<ShardDirectory> directory_;
    std::unique_ptr<Engines> engines_;
    bool left_ = false;

    std::map<std::string, std::unique_ptr<Shard>> shards_;  // by name
    std::vector<Shard *> fresh_;                            // registered in this minibatch
    std::set<std::string> freed_;                           // names released in this minibatch

    std::mutex operations_mutex_;
    std::map<uint64_t, std::unique_ptr<Operation>> operations_;
    uint64_t last_operation_ = 0;
    uint64_t synced_operations_ = 0;  // up to here sync has completed them all

    uint64_t reductions_ = 0;  // finished odc_all_reduce calls
    Claims claims_;
    Arrivals arrivals_;
    SpeedMeter speed_;
};

}  // namespace odc
