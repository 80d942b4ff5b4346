// SPDX-License-Identifier: Apache-2.0
#include "core/context.h"

#include <algorithm>

#include "base/element_type.h"
#include "bootstrap/join.h"
#include "bootstrap/membership.h"
#include "core/engines.h"
#include "core/operation.h"
#include "core/shard_directory.h"

namespace odc {

namespace {

// The most bytes of slices that one call may register: with stripes and alignment they stay below 2^64.
constexpr uint64_t kMostSliceBytes = uint64_t{1} << 62;

}  // namespace

Context::Context(const odc_config &config, Log &log)
    : membership_(std::make_unique<Membership>(join(config, log))), job_(*membership_),
      sync_tree_(job_, &ControlBlock::synced, &ControlBlock::sync_tree),
      reduction_tree_(job_, &ControlBlock::reduced, &ControlBlock::reduction_tree), counters_(job_.size()),
      directory_(std::make_unique<ShardDirectory>(job_, counters_)),
      engines_(std::make_unique<Engines>(*membership_, job_, *directory_, counters_)), claims_(job_), arrivals_(job_) {}

Context::~Context() {
    engines_.reset();  // which completes what it can before this rank leaves
    job_.leave();
}

void Context::shutdown() {
    if (left_) {
        fail(ODC_ERROR_PHASE, "odc_shutdown: this rank has left the job already");
    }
    const Job::CallScope scope(job_, Call::Shutdown);
    job_.log().info("leaves the job in minibatch {}", minibatch());
    job_.leave();
    left_ = true;  // unless it was interrupted
    job_.channel().flush();
}

void Context::abort(const char *text) {
    if (left_) {
        fail(ODC_ERROR_PHASE, "odc_abort: this rank has left the job");
    }
    const Job::CallScope scope(job_, Call::Abort);
    job_.abort(formatted("{} aborted the job in minibatch {}: {}", job_.who(job_.rank()), minibatch(),
                         text != nullptr && text[0] != '\0' ? text : "no reason given"));
}

// ---- Phases ----

void Context::check_not_left(Call call) const {
    if (left_) {
        fail(ODC_ERROR_PHASE, "{}: this rank has left the job (odc_shutdown)", call_name(call));
    }
}

void Context::check_not_arrived(Call call) {
    check_not_left(call);
    if (job_.mine().arrived.load(std::memory_order_relaxed) > minibatch() && call != Call::Sync) {
        job_.check();
        fail(ODC_ERROR_PHASE, "{}: odc_minibatch_sync of minibatch {} was interrupted; finish it by calling it again",
             call_name(call), minibatch());
    }
    if (job_.mine().reductions.load(std::memory_order_relaxed) > reductions_ && call != Call::AllReduce) {
        job_.check();
        fail(ODC_ERROR_PHASE, "{}: odc_all_reduce of minibatch {} was interrupted; finish it by calling it again",
             call_name(call), minibatch());
    }
}

void Context::check_published(Call call, const Shard &shard) const {
    if (shard.own_numel() > 0 && shard.published <= minibatch()) {
        fail(ODC_ERROR_PHASE, "{}: publish this rank's slice of shard \"{}\" in minibatch {} first", call_name(call),
             shard.name(), minibatch());
    }
}

// ---- Shards ----

std::vector<Shard *> Context::register_shards(std::vector<Description> descriptions) {
    check_not_arrived(Call::RegisterShard);
    job_.check();
    const Job::CallScope scope(job_, Call::RegisterShard);
    check_new(descriptions);
    std::vector<std::unique_ptr<Shard>> made;
    uint64_t slice_bytes = 0;
    for (Description &one : descriptions) {
        Engine &engine = engines_->engine_for(one);
        made.push_back(std::make_unique<Shard>(std::move(one), engine, job_.rank(), job_.size()));
        slice_bytes += made.back()->slice_bytes();  // each at most 2^62
        if (slice_bytes > kMostSliceBytes) {
            fail(ODC_ERROR_ARGUMENT,
                 "the {} shards of one odc_register_shards, up to \"{}\", are together larger than any memory",
                 descriptions.size(), made.back()->name());
        }
    }
    std::vector<Shard *> handles;
    std::map<std::string, std::unique_ptr<Shard>> added;
    for (const std::unique_ptr<Shard> &one : made) {
        handles.push_back(one.get());
        added.emplace(one->name(), nullptr);
    }
    fresh_.reserve(fresh_.size() + made.size());
    directory_->reserve();
    attach(made);
    // From here nothing allocates: peers see the shards, which cannot be taken back.
    for (std::unique_ptr<Shard> &one : made) {
        job_.log().debug("registers shard \"{}\", here {} bytes", one->name(), one->slice_bytes());
        directory_->add(*one);
        fresh_.push_back(one.get());
        added.find(one->name())->second = std::move(one);
    }
    shards_.merge(added);
    counters_.slice_bytes.add(slice_bytes);
    ring(job_.mine());
    tell_registered(handles);
    return handles;
}

void Context::check_new(const std::vector<Description> &descriptions) const {
    std::map<std::string_view, int> names;
    for (const Description &one : descriptions) {
        if (shards_.count(one.name) != 0 || names[one.name]++ != 0) {
            fail(ODC_ERROR_ARGUMENT, "shard \"{}\" is registered already; release it first, or choose another name",
                 one.name);
        }
        if (freed_.count(one.name) != 0) {
            fail(ODC_ERROR_PHASE,
                 "the name of shard \"{}\" was released in this minibatch ({}); it may be used again in the next",
                 one.name, minibatch());
        }
    }
}

// Gives all of them their records and their memory, or none.
void Context::attach(const std::vector<std::unique_ptr<Shard>> &shards) {
    Arena &arena = *job_.peer(job_.rank()).arena;
    std::vector<std::pair<Engine *, std::vector<Shard *>>> shares;
    for (const std::unique_ptr<Engine> &engine : engines_->all()) {
        std::vector<Shard *> share;
        for (const std::unique_ptr<Shard> &shard : shards) {
            if (&shard->engine() == engine.get()) {
                share.push_back(shard.get());
            }
        }
        if (!share.empty()) {
            shares.push_back({engine.get(), std::move(share)});
        }
    }
    size_t recorded = 0;
    size_t attached = 0;
    try {
        for (; recorded < shards.size(); ++recorded) {
            Shard &shard = *shards[recorded];
            const uint64_t offset = arena.allocate_record(shard.record_bytes());
            shard.set_record(*reinterpret_cast<ShardRecord *>(arena.record(offset)), offset, minibatch());
        }
        for (; attached < shares.size(); ++attached) {
            shares[attached].first->attach(shares[attached].second);
        }
    } catch (...) {
        for (size_t i = 0; i < attached; ++i) {
            for (Shard *shard : shares[i].second) {
                shares[i].first->detach(*shard);
            }
        }
        for (size_t i = 0; i < recorded; ++i) {
            arena.free_record(shards[i]->record_offset(), shards[i]->record_bytes());
        }
        throw;
    }
}

// To the ranks of other hosts; those of this host see them already.
void Context::tell_registered(const std::vector<Shard *> &shards) {
    if (!job_.channel().has_others()) {
        return;
    }
    try {
        for (const Shard *shard : shards) {
            const Description &d = shard->description();
            job_.channel().tell_registered({shard->record_offset(), shard->registered, d.numel, shard->own_numel(), 0,
                                            0, d.parameter_type, d.gradient_type, d.summation, d.first_exponent,
                                            d.memory, d.name, d.ranks, d.slices});
        }
    } catch (...) {
        job_.fail_halfway(Call::RegisterShard);
    }
}

void Context::release(Shard &shard) {
    check_not_arrived(Call::ReleaseShard);
    if (shard.published > minibatch()) {
        fail(ODC_ERROR_PHASE,
             "odc_release_shard: shard \"{}\" is published in minibatch {}; release it after odc_minibatch_sync",
             shard.name(), minibatch());
    }
    {
        const std::lock_guard lock(operations_mutex_);
        for (const auto &[number, operation] : operations_) {
            if (operation->shard == &shard) {
                fail(ODC_ERROR_PHASE, "odc_release_shard: operation {} on shard \"{}\" is started; wait for it first",
                     number, shard.name());
            }
        }
    }
    if (const std::string work = shard.engine().still_enqueued(); !work.empty()) {
        fail(ODC_ERROR_PHASE, "odc_release_shard: {}; release shard \"{}\" after odc_minibatch_sync", work,
             shard.name());
    }
    const Job::CallScope scope(job_, Call::ReleaseShard, shard.record_offset());
    std::erase(fresh_, &shard);
    freed_.insert(shard.name());
    counters_.slice_bytes.subtract(shard.slice_bytes());
    directory_->remove(shard);
    ring(job_.mine());
    job_.channel().tell(ReleasedMessage{shard.record_offset()}, shard.description().ranks);
    shard.engine().detach(shard);
    shards_.erase(shards_.find(shard.name()));
}

// ---- Publishing ----

void Context::publish(Shard &shard, void *stream) {
    check_not_arrived(Call::Publish);
    job_.check();
    if (shard.published > minibatch()) {
        fail(ODC_ERROR_PHASE, "odc_publish: shard \"{}\" is published already in minibatch {}", shard.name(),
             minibatch());
    }
    const Job::CallScope scope(job_, Call::Publish, shard.record_offset());
    publish_here(shard, stream);
    try {
        ring(job_.mine());
        shard.engine().tell_published(shard);
        shard.engine().read_ahead(shard);
    } catch (...) {
        job_.fail_halfway(Call::Publish);
    }
}

void Context::publish_here(Shard &shard, void *stream) {
    shard.engine().publish(shard, stream);
    shard.published = minibatch() + 1;
    if (job_.mine().opened.load(std::memory_order_relaxed) <= minibatch()) {
        speed_.begin(now_ns(), counters_.wait_ns());
    }
    job_.mine().opened.store(minibatch() + 1, std::memory_order_release);
}

void Context::publish_all(void *stream) {
    check_not_arrived(Call::Publish);
    job_.check();
    const Job::CallScope scope(job_, Call::Publish);
    for (const std::unique_ptr<Engine> &engine : engines_->all()) {
        engine->check_stream(stream);
    }
    std::vector<Shard *> unpublished;
    for (const auto &[name, shard] : shards_) {
        if (shard->published <= minibatch()) {
            unpublished.push_back(shard.get());
        }
    }
    if (unpublished.empty() && !shards_.empty()) {
        fail(ODC_ERROR_PHASE, "odc_publish_all: every shard is published already in minibatch {}", minibatch());
    }
    if (unpublished.empty()) {
        return;
    }
    publish_here(*unpublished.front(), stream);
    try {
        for (size_t i = 1; i < unpublished.size(); ++i) {
            publish_here(*unpublished[i], stream);
        }
        ring(job_.mine());
        tell_all_published(unpublished);
        for (Shard *shard : unpublished) {
            shard->engine().read_ahead(*shard);
        }
    } catch (...) {
        job_.fail_halfway(Call::Publish);
    }
}

void Context::tell_all_published(const std::vector<Shard *> &published) {
    // "All are published" does not hold of shards on a device, whose streams may not have come to a publish, and has no votes.
    const auto is_told_alone = [](const auto &one) { return one.second->on_device() || one.second->is_exact(); };
    if (std::none_of(shards_.begin(), shards_.end(), is_told_alone)) {
        job_.channel().tell(AllPublishedMessage{minibatch(), reductions_});
        return;
    }
    for (Shard *shard : published) {
        shard->engine().tell_published(*shard);
    }
}

// ---- Gathers and additions ----

void Context::start(Operation &operation) {
    const Call call = operation.call();
    const Shard &shard = *operation.shard;
    check_not_arrived(call);
    check_published(call, shard);
    if (call == Call::ScatterAdd && shard.finished > minibatch()) {
        fail(
            ODC_ERROR_PHASE,
            "odc_scatter_add: this rank has said that it adds nothing more to shard \"{}\" in minibatch {} (odc_finish, "
            "or an odc_minibatch_sync that was interrupted); add in the next",
            shard.name(), minibatch());
    }
    job_.check_peers();
    shard.engine().start(operation);
    count(operation);
}

void Context::count(const Operation &operation) {
    const Description &d = operation.shard->description();
    if (operation.call() == Call::Gather) {
        counters_.gather_calls.add(1);
        counters_.gather_bytes.add(d.numel * element_size(d.parameter_type));
    } else {
        counters_.scatter_add_calls.add(1);
        counters_.scatter_add_bytes.add(d.numel * element_size(d.gradient_type));
    }
}

// After an error: gives the caller's buffer back.
void Context::cancel(Operation &operation) {
    operation.shard->engine().cancel(operation, [] {});
}

void Context::run(Operation operation) {
    const Job::CallScope scope(job_, operation.call(), operation.shard->record_offset());
    try {
        start(operation);
        operation.shard->engine().finish(operation);
    } catch (...) {
        cancel(operation);
        job_.rethrow();
    }
}

uint64_t Context::start_only(Operation operation) {
    const Job::CallScope scope(job_, operation.call(), operation.shard->record_offset());
    decltype(operations_) entries;  // made before it starts: what has been added cannot be taken back
    Operation &kept = *entries.emplace(0, std::make_unique<Operation>(std::move(operation))).first->second;
    kept.started_only = true;
    try {
        start(kept);
        const std::lock_guard lock(operations_mutex_);
        auto entry = entries.extract(entries.begin());
        entry.key() = ++last_operation_;
        operations_.insert(std::move(entry));
        return last_operation_;
    } catch (...) {
        cancel(kept);
        job_.rethrow();
    }
}

void Context::gather(Shard &shard, void *full, void *stream) {
    run({&shard, stream, Operation::Gather{static_cast<std::byte *>(full)}});
}

void Context::scatter_add(Shard &shard, const void *full, void *stream) {
    run({&shard, stream, Operation::ScatterAdd{static_cast<const std::byte *>(full)}});
}

uint64_t Context::gather_start(Shard &shard, void *full, void *stream) {
    return start_only({&shard, stream, Operation::Gather{static_cast<std::byte *>(full)}});
}

uint64_t Context::scatter_add_start(Shard &shard, const void *full, void *stream) {
    return start_only({&shard, stream, Operation::ScatterAdd{static_cast<const std::byte *>(full)}});
}

// Allowed also while a reduction, or a sync that has arrived, is unfinished, and after this rank has left: the caller must get
// its buffer back.
void Context::wait(uint64_t number) {
    decltype(operations_)::node_type entry;
    uint64_t last = 0;
    {
        const std::lock_guard lock(operations_mutex_);
        entry = operations_.extract(number);
        last = last_operation_;
    }
    const auto put_back = [&] {
        const std::lock_guard lock(operations_mutex_);
        operations_.insert(std::move(entry));
    };
    if (left_ && entry) {
        const Deadline deadline = job_.deadline();
        try {
            Operation &operation = *entry.mapped();
            operation.shard->engine().cancel(operation, [&] { deadline.check_interrupted("odc_wait"); });
        } catch (...) {
            put_back();
            throw;
        }
    }
    check_not_left(Call::Wait);
    if (!entry) {
        if (number > 0 && number <= synced_operations_) {
            return;
        }
        fail(ODC_ERROR_ARGUMENT, "odc_wait: there is no operation {}{}", number,
             number > 0 && number <= last ? " any more; each is waited for once" : "");
    }
    Operation &operation = *entry.mapped();
    const Job::CallScope scope(job_, Call::Wait, operation.shard->record_offset());
    try {
        job_.check();
        operation.shard->engine().finish(operation);
    } catch (...) {
        if (job_.has_failed()) {
            cancel(operation);
        } else {
            put_back();
        }
        job_.rethrow();
    }
}

void Context::finish(Shard &shard) {
    check_not_arrived(Call::Finish);
    check_published(Call::Finish, shard);
    job_.check_peers();
    if (shard.finished > minibatch()) {
        return;
    }
    const Job::CallScope scope(job_, Call::Finish, shard.record_offset());
    std::vector<Operation *> started;
    for (const auto &[number, operation] : operations_) {
        if (operation->shard == &shard && operation->call() == Call::ScatterAdd) {
            started.push_back(operation.get());
        }
    }
    shard.engine().end_additions(shard, started);
}

// ---- Work that ranks claim ----

std::optional<uint64_t> Context::claim(uint64_t count) {
    check_not_arrived(Call::Claim);
    return claims_.claim(count);
}

void Context::report_cost(double cost) {
    check_not_arrived(Call::ReportCost);
    constexpr double kMostCost = 1e100;  // sums of speeds stay finite
    if (!(cost >= 0 && cost <= kMostCost)) {
        fail(ODC_ERROR_ARGUMENT, "odc_report_cost: cost is {}; it must be from 0 to {}", cost, kMostCost);
    }
    speed_.report(cost);
}

// All ranks read the same values, and so compute the same mean.
std::vector<double> Context::speeds() {
    check_not_arrived(Call::GetSpeeds);
    std::vector<double> speeds;
    double sum = 0;
    int measured = 0;
    for (int rank = 0; rank < job_.size(); ++rank) {
        const double speed = minibatch() > 0 ? arrivals_.speed(rank, minibatch() - 1) : 0;
        speeds.push_back(speed);
        sum += speed;
        measured += speed > 0 ? 1 : 0;
    }
    for (double &speed : speeds) {
        speed = speed > 0 ? speed / (sum / measured) : 1;
    }
    return speeds;
}

// ---- Statistics ----

odc_stats Context::stats() const {
    uint64_t pinned_bytes = 0;
    for (const std::unique_ptr<Engine> &engine : engines_->all()) {
        pinned_bytes += engine->pinned_bytes();
    }
    return {sizeof(odc_stats),
            counters_.gather_calls.value(),
            counters_.gather_bytes.value(),
            counters_.scatter_add_calls.value(),
            counters_.scatter_add_bytes.value(),
            counters_.syncs.value(),
            counters_.publish_wait_ns.value(),
            counters_.sync_wait_ns.value(),
            counters_.lock_wait_ns.value(),
            counters_.slice_bytes.value(),
            job_.channel().packets_sent(),
            pinned_bytes,
            counters_.clamped_addends.value(),
            counters_.sync_last_rank.value(),
            job_.mine().read_bytes.load(std::memory_order_relaxed),
            counters_.served_bytes.value(),
            job_.channel().sent_bytes()};
}

odc_peer_stats Context::peer_stats(int rank) const {
    const PeerCounters &peer = counters_.peers[static_cast<size_t>(rank)];
    return {sizeof(odc_peer_stats), peer.publish_wait_ns.value(), peer.sync_late_ns.value(), peer.sync_last.value()};
}

}  // namespace odc
