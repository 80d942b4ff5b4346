// SPDX-License-Identifier: Apache-2.0
// The end of a minibatch, the one wait for all, and reductions.
#include <algorithm>
#include <cstring>

#include "core/context.h"
#include "core/engines.h"
#include "core/operation.h"
#include "core/shard_directory.h"
#include "core/wait.h"

namespace odc {

namespace {

void check_values(const char *call, const double *values, size_t count, int32_t op) {
    if (count > kMaxValues) {
        fail(ODC_ERROR_ARGUMENT, "{}: count is {}, at most {} values can be combined", call, count, kMaxValues);
    }
    if (count > 0 && values == nullptr) {
        fail(ODC_ERROR_ARGUMENT, "{}: values is NULL", call);
    }
    if (count > 0 && op != ODC_SUM && op != ODC_MAX) {
        fail(ODC_ERROR_ARGUMENT, "{}: op {} is no odc_reduction", call, op);
    }
}

void write(Contribution &contribution, const double *values, size_t count, int32_t op) {
    contribution.count = static_cast<uint32_t>(count);
    contribution.op = count > 0 ? op : 0;
    contribution.has_registered = 0;
    std::copy_n(values, count, contribution.values);
}

// After an interruption the same call must be made again: its values are with the peers already.
std::string text_of(const Contribution &one) {
    return one.count == 0 ? "no values"
                          : formatted("{} values by {}", one.count, one.op == ODC_SUM ? "ODC_SUM" : "ODC_MAX");
}

void check_same(const char *call, const Contribution &theirs, const double *values, size_t count, int32_t op) {
    if (theirs.count != count || theirs.op != (count > 0 ? op : 0) ||
        (count > 0 && std::memcmp(theirs.values, values, count * sizeof(double)) != 0)) {
        fail(ODC_ERROR_ARGUMENT, "{} was interrupted and has handed in other values; call it again with the same",
             call);
    }
}

}  // namespace

void Context::sync(double *values, size_t count, int32_t op) {
    check_not_arrived(Call::Sync);
    check_values("odc_minibatch_sync", values, count, op);
    job_.check();
    if (job_.mine().arrived.load(std::memory_order_relaxed) <= minibatch()) {
        for (const auto &[name, shard] : shards_) {
            if (shard->own_numel() > 0 && shard->published <= minibatch()) {
                fail(ODC_ERROR_PHASE,
                     "odc_minibatch_sync: this rank has not published its slice of shard \"{}\" in minibatch {}; "
                     "publish it, also when there is nothing to do",
                     name, minibatch());
            }
        }
    }
    const Job::CallScope scope(job_, Call::Sync);
    if (job_.mine().arrived.load(std::memory_order_relaxed) <= minibatch()) {
        claims_.check_answered();
        finish_started();
        arrive(values, count, op);
    } else {
        check_same("odc_minibatch_sync", job_.mine().synced[minibatch() % 2], values, count, op);
    }
    await_arrivals();
    arrivals_.prefetch(job_.rank(), minibatch());
    const Contribution &all = sync_tree_.combined(minibatch());
    for (Shard *shard : fresh_) {
        for (uint64_t index = 0; index < shard->owners(); ++index) {
            directory_->look_up(*shard, index);
        }
    }
    if (all.has_registered != 0) {
        directory_->read_to_ends();
    }
    directory_->end_minibatch();
    for (const std::unique_ptr<Engine> &engine : engines_->all()) {
        engine->after_arrival();
    }
    take(all, &ControlBlock::synced, minibatch(), "odc_minibatch_sync_reduce", values);
    fresh_.clear();
    freed_.clear();
    count_lateness();
    claims_.end_minibatch();
    counters_.syncs.add_alone(1);
    job_.end_minibatch();
}

void Context::finish_started() {
    try {
        for (const std::unique_ptr<Engine> &engine : engines_->all()) {
            std::vector<Operation *> started;
            for (auto &[number, operation] : operations_) {
                if (&operation->shard->engine() == engine.get()) {
                    started.push_back(operation.get());
                }
            }
            engine->before_arrival(started);
        }
    } catch (...) {
        for (auto &[number, operation] : operations_) {
            if (job_.has_failed()) {
                cancel(*operation);
            }
        }
        job_.rethrow();
    }
    operations_.clear();
    synced_operations_ = last_operation_;
}

void Context::arrive(const double *values, size_t count, int32_t op) {
    begin_collective();
    ControlBlock &mine = job_.mine();
    Contribution &brought = mine.synced[minibatch() % 2];
    write(brought, values, count, op);
    brought.has_registered = directory_->has_added() ? 1 : 0;
    const int64_t now = now_ns();
    const double speed = speed_.end(now, counters_.wait_ns());
    arrivals_.at_ns(job_.rank(), minibatch()).store(now, std::memory_order_relaxed);
    arrivals_.set_speed(job_.rank(), minibatch(), speed);
    // Releases this rank's additions, and its last reads, to everybody; so does joining.
    mine.arrived.store(minibatch() + 1, std::memory_order_release);
    sync_tree_.join(minibatch());
    ring(mine);
    tell_arrival(Call::Sync, brought, now, speed);
}

// Before this rank's block says that it has arrived.
void Context::begin_collective() {
    const uint64_t number = collective();
    if (number > 0) {
        job_.channel().finish_arrivals(number - 1);
    }
    job_.mine().broadcasts[number % 2] = job_.channel().broadcasts();
}

void Context::tell_arrival(Call call, const Contribution &brought, int64_t at_ns, double speed) {
    if (!job_.channel().has_others()) {
        return;  // before the values are copied
    }
    try {
        const uint64_t number = collective();
        const uint64_t broadcasts = job_.mine().broadcasts[number % 2];
        job_.channel().arrive(number, {job_.rank(), call, broadcasts, 0, speed, brought}, at_ns);
    } catch (...) {
        job_.fail_halfway(call);
    }
}

template <class HasCome>
void Context::await_host(HostTree &tree, uint64_t number, Job::Wait &wait, const HasCome &has_come) {
    size_t come = 0;
    tree.await(wait, number, [&] {
        const std::vector<int> &local_peers = job_.local_peers();
        while (come < local_peers.size() && has_come(local_peers[come])) {
            ++come;
        }
        return come < local_peers.size() ? local_peers[come] : -1;
    });
}

template <class HasCome>
void Context::await_other_hosts(Job::Wait &wait, const HasCome &has_come) {
    if (job_.local_peers().size() > 1) {
        job_.channel().pass_on_arrivals(collective());
    }
    for (int rank = 0; rank < job_.size(); ++rank) {
        if (!job_.on_this_host(rank)) {
            wait.until(rank, [&] { return has_come(rank); });
        }
    }
}

// For errors: all of them, as the one that is waited for may have come without this rank having heard of it.
template <class HasCome>
std::string Context::missing_ranks(const char *done, const HasCome &has_come) const {
    std::string missing;
    for (int rank = 0; rank < job_.size(); ++rank) {
        if (!has_come(rank)) {
            missing += formatted("{}{} has not {} in minibatch {}; it {}", missing.empty() ? "" : "; ", job_.who(rank),
                                 done, minibatch(), job_.what(rank));
        }
    }
    return missing;
}

void Context::await_arrivals() {
    const auto has_arrived = [this](int rank) {
        return job_.block(rank).arrived.load(std::memory_order_acquire) > minibatch();
    };
    Job::Wait wait(job_, call_name(Call::Sync));
    wait.describe([&] { return missing_ranks("arrived", has_arrived); });
    await_host(sync_tree_, minibatch(), wait, has_arrived);
    await_other_hosts(wait, has_arrived);
    if (job_.channel().has_others()) {
        await_votes(wait);
    }
}

// An arrival that was passed on may come before the publish of a single shard, whose vote the conversion of exact sums needs. An
// owner that has released the shard has published it before, or has no vote.
void Context::await_votes(Job::Wait &wait) {
    for (const auto &[name, shard] : shards_) {
        for (uint64_t index = 0; shard->is_exact() && index < shard->owners(); ++index) {
            directory_->await_presence(*shard, index, wait);
        }
    }
}

// By the times of arrival, so that it does not matter in which order they were waited for.
void Context::count_lateness() {
    const auto arrived_at = [this](int rank) {
        return arrivals_.at_ns(rank, minibatch()).load(std::memory_order_relaxed);
    };
    const int64_t mine = arrived_at(job_.rank());
    int last = job_.rank();
    int64_t last_at = mine;
    for (int rank = 0; rank < job_.size(); ++rank) {
        const int64_t at = arrived_at(rank);
        if (at > mine) {
            counters_.peers[static_cast<size_t>(rank)].sync_late_ns.add_alone(static_cast<uint64_t>(at - mine));
        }
        if (at > last_at) {
            last = rank;
            last_at = at;
        }
    }
    if (last == job_.rank()) {
        job_.log().debug("syncs; this rank came last");
    } else {
        job_.log().debug("syncs; rank {} came last, {} us after this one", last, (last_at - mine) / 1000);
    }
    counters_.peers[static_cast<size_t>(last)].sync_last.add_alone(1);
    counters_.sync_last_rank.set(static_cast<uint64_t>(last));
    counters_.sync_wait_ns.add_alone(static_cast<uint64_t>(last_at - mine));
}

void Context::take(const Contribution &combined, Contribution (ControlBlock::*brought)[2], uint64_t number,
                   const char *call, double *values) {
    const Contribution &mine = (job_.mine().*brought)[number % 2];
    for (int rank = 0; combined.differs != 0 && rank < job_.size(); ++rank) {
        const Contribution &theirs = (job_.block(rank).*brought)[number % 2];
        if (theirs.count != mine.count || theirs.op != mine.op) {
            job_.fail_job(
                ODC_ERROR_MISMATCH,
                formatted("in {} of minibatch {} {} combines {}, and {} {}; make the same call on all ranks", call,
                          minibatch(), job_.who(job_.rank()), text_of(mine), job_.who(rank), text_of(theirs)));
        }
    }
    std::copy_n(combined.values, combined.count, values);
}

void Context::await_reduction() {
    Job::Wait wait(job_, "odc_all_reduce");
    wait.describe([&] {
        return missing_ranks("called odc_all_reduce", [&](int rank) {
            return job_.block(rank).reductions.load(std::memory_order_acquire) > reductions_;
        });
    });
    const auto has_come = [&](int rank) {
        const ControlBlock &other = job_.block(rank);
        const bool passed = other.opened.load(std::memory_order_acquire) > minibatch() ||
                            other.arrived.load(std::memory_order_acquire) > minibatch();
        if (other.reductions.load(std::memory_order_acquire) > reductions_) {
            return true;
        }
        if (passed) {
            job_.fail_job(ODC_ERROR_MISMATCH, formatted("{} called odc_all_reduce in minibatch {}, but {} went on "
                                                        "without it",
                                                        job_.who(job_.rank()), minibatch(), job_.who(rank)));
        }
        return false;
    };
    await_host(reduction_tree_, reductions_, wait, has_come);
    await_other_hosts(wait, has_come);
}

void Context::all_reduce(double *values, size_t count, int32_t op) {
    check_not_arrived(Call::AllReduce);
    check_values("odc_all_reduce", values, count, op);
    if (count == 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_all_reduce: count is 0");
    }
    ControlBlock &mine = job_.mine();
    if (mine.opened.load(std::memory_order_relaxed) > minibatch()) {
        fail(ODC_ERROR_PHASE,
             "odc_all_reduce: only between odc_minibatch_sync and odc_publish, and minibatch {} is published; or let "
             "the values ride on odc_minibatch_sync_reduce",
             minibatch());
    }
    job_.check();
    const Job::CallScope scope(job_, Call::AllReduce);
    // Written already if the call before this was interrupted.
    if (mine.reductions.load(std::memory_order_relaxed) == reductions_) {
        begin_collective();
        Contribution &brought = mine.reduced[reductions_ % 2];
        write(brought, values, count, op);
        mine.reductions.store(reductions_ + 1, std::memory_order_release);
        reduction_tree_.join(reductions_);
        ring(mine);
        tell_arrival(Call::AllReduce, brought, now_ns(), 0);
    } else {
        check_same("odc_all_reduce", mine.reduced[reductions_ % 2], values, count, op);
    }
    const int64_t begin = now_ns();
    await_reduction();
    counters_.sync_wait_ns.add_alone(static_cast<uint64_t>(now_ns() - begin));
    take(reduction_tree_.combined(reductions_), &ControlBlock::reduced, reductions_, "odc_all_reduce", values);
    ++reductions_;
}

}  // namespace odc
