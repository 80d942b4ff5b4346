// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/progress_thread.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "memory/host_kernels.h"
#include "transport/fabric/accumulate_source.h"
#include "transport/fabric/accumulate_target.h"
#include "transport/fabric/arrival_exchange.h"
#include "transport/fabric/claim_exchange.h"
#include "transport/fabric/get.h"
#include "transport/fabric/heartbeat.h"
#include "transport/fabric/local_peers.h"
#include "transport/fabric/reliable_stream.h"

namespace odc {

namespace {

constexpr int64_t kClosingNs = 50'000'000;    // for a peer that has sent its own last message to acknowledge ours
constexpr int64_t kRetryNs = 1'000'000;       // until the provider is tried again after FI_EAGAIN
constexpr int64_t kPollNs = 50'000;           // until what wakes nobody is checked again: a locked stripe, a GPU's word
constexpr int64_t kHostNs = 20'000'000;       // until ranks of this host that have not arrived are looked at again
constexpr int kEagerSteps = 200;              // without a wait_fd, steps before the thread sleeps between polls
constexpr int64_t kLongestNapNs = 2'000'000;  // and how long it then sleeps at most
constexpr int kSpuriousWakeups = 50;          // before wait_fds are rearmed, which takes a millisecond

std::vector<std::unique_ptr<FabricEndpoint>> open_all(const std::vector<FabricNic> &nics, const CudaDevice *gpu) {
    std::vector<std::unique_ptr<FabricEndpoint>> endpoints;
    for (const FabricNic &nic : nics) {
        endpoints.push_back(std::make_unique<FabricEndpoint>(nic, gpu));
    }
    return endpoints;
}

// Divides the bytes among the pools of bounce buffers: each endpoint has one for additions of others and, if local buffers
// must be registered, one for gets and one for this rank's additions.
size_t staging_bytes_per_pool(size_t bytes, const std::vector<std::unique_ptr<FabricEndpoint>> &endpoints) {
    size_t uses = 0;
    for (const auto &endpoint : endpoints) {
        uses += endpoint->needs_local() ? 3 : 1;
    }
    if (bytes < uses * kStripeBytes) {
        fail(ODC_ERROR_ARGUMENT,
             "ODC_STAGING_BYTES=\"{}\" is wrong: the {} NICs that routes go through need at least {}", bytes,
             endpoints.size(), uses * kStripeBytes);
    }
    return bytes / std::max<size_t>(1, uses);
}

}  // namespace

ProgressThread::ProgressThread(const FabricConfig &config, const std::vector<FabricNic> &nics)
    : config_(config), endpoints_(open_all(nics, config.gpu)), replicas_(Arena::create()),
      staging_bytes_(staging_bytes_per_pool(config.staging_bytes, endpoints_)),
      registered_(std::make_unique<RegisteredMemory>()),
      gets_(std::make_unique<GetQueue>(staging_bytes_, *registered_, *config.mine,
                                       [this](const std::shared_ptr<Request> &request) { completed(request); })),
      accumulate_target_(std::make_unique<AccumulateTarget>(config.rank, staging_bytes_, *registered_)),
      accumulate_source_(std::make_unique<AccumulateSource>(staging_bytes_, *registered_)),
      claims_(std::make_unique<ClaimExchange>(*config.mine)) {
    // Now, so that a failure is an error of odc_init.
    for (const auto &endpoint : endpoints_) {
        if (endpoint->needs_local()) {
            gets_->prepare(*endpoint);
            accumulate_target_->prepare(*endpoint);
            accumulate_source_->prepare(*endpoint);
        }
    }
}

void ProgressThread::start(const Token &token, const std::vector<FabricPeer> &peers,
                           const std::vector<std::vector<int>> &hosts, std::vector<FabricLocalPeer> local_peers) {
    remotes_.resize(static_cast<size_t>(config_.size));
    stream_ = std::make_unique<ReliableStream>(
        *config_.mine, token, remotes_,
        [this](RemoteRank &from, const ControlMessage &message) { on_message(from, message); });
    for (const FabricPeer &peer : peers) {
        FabricEndpoint &endpoint = *endpoints_.at(peer.nic);
        const std::vector<std::byte> name = endpoint.with_local_scope(peer.name);
        remotes_[static_cast<size_t>(peer.rank)] = std::make_unique<RemoteRank>(
            RemoteRank{peer.rank, peer.host, &endpoint, endpoint.connect(name), name,
                       RankReplica(*replicas_, peer.rank, config_.size, peer.pid, peer.host_name), stream_.get()});
    }
    heartbeat_ = std::make_unique<Heartbeat>(config_.rank, config_.silence_ms, remotes_, *stream_, *config_.log);
    heartbeat_->watch(hosts);
    std::vector<const ControlBlock *> local_blocks{config_.mine};
    for (const FabricLocalPeer &one : local_peers) {
        local_blocks.push_back(one.block);
    }
    std::sort(local_blocks.begin(), local_blocks.end(),
              [](const ControlBlock *a, const ControlBlock *b) { return a->rank < b->rank; });
    arrivals_ = std::make_unique<ArrivalExchange>(
        config_.rank, remotes_, hosts, std::move(local_blocks),
        [this](RemoteRank &to, const std::string &messages) { stream_->send(to, messages); });
    local_peers_ = std::make_unique<LocalPeers>(config_.rank, std::move(local_peers));
    for (const auto &endpoint : endpoints_) {
        stream_->post_receives(*endpoint);
    }
    try {
        thread_ = start_thread("odc", "the progress thread", [this] { run(); });
    } catch (const Error &error) {
        fail(error.status(), "odc_init: {}", error.what());
    }
}

ProgressThread::~ProgressThread() {
    if (!thread_.joinable()) {
        // Before the buffers that they receive into are freed.
        for (const auto &endpoint : endpoints_) {
            endpoint->close(FabricEndpoint::InFlight::None);
        }
        return;
    }
    commands_.submit([this] {
        if (shutdown_ns_ == 0) {
            begin_shutdown(encode(GoodbyeMessage{}));
        }
    });
    thread_.join();
}

const std::vector<std::byte> &ProgressThread::name(size_t nic) const { return endpoints_[nic]->name(); }

uint64_t ProgressThread::replica_offset(int rank) const { return remote(rank).replica.block_offset(); }

// ---- The thread ----

void ProgressThread::run() {
    try {
        while (step()) {
        }
    } catch (const std::exception &) {
        fail_all(current_error());
    }
    tear_down();
}

// Fails the waits for other hosts' ranks here, and other hosts' waits for this rank.
void ProgressThread::fail_all(const Error &error) {
    const ControlBlock &mine = *config_.mine;
    const std::string text =
        error.status() == ODC_ERROR_DEVICE  // the same text as the context's threads use, which may detect it first
            ? formatted("rank {} (host {}, pid {}): {}", config_.rank, mine.host, mine.pid, error.what())
            : formatted("the progress thread of rank {} ended: {}", config_.rank, error.what());
    if (shutdown_ns_ == 0) {
        begin_shutdown(encode(FailedMessage{error.status(), text}));
    }
    for (const auto &one : remotes_) {
        if (one) {
            one->replica.mark_lost(text);
        }
    }
    config_.log->warn("has lost all ranks of other hosts: {}", text);
    // The failure may repeat.
    for (bool going = true; going && now_ns() - shutdown_ns_ < kShutdownNs;) {
        try {
            going = step();
        } catch (const std::exception &) {
            rest(now_ns());
        }
    }
}

// False once the shutdown is done.
bool ProgressThread::step() {
    bool busy = take_commands();
    for (const auto &endpoint : endpoints_) {
        busy = endpoint->poll() || busy;
    }
    busy = accumulate_target_->add_one() || busy;
    busy = accumulate_source_->pump() || busy;
    busy = arrivals_->pump() || busy;
    busy = stream_->pump() || busy;
    busy = accumulate_target_->pump() || busy;
    busy = gets_->pump() || busy;
    packets_sent_.store(stream_->sent(), std::memory_order_relaxed);
    const int64_t now = now_ns();
    heartbeat_->tick(now);
    for (RemoteRank *missing : arrivals_->overdue(now)) {
        heartbeat_->ping(*missing, now);
    }
    gets_->cancel_overdue(now);
    report_ended(local_peers_->check_programs(now));
    finish_closing();
    log_congestion();
    if (flush_ != 0 && heartbeat_->is_answered(flush_)) {
        flush_ = 0;
        commands_.update([this] { flushed_ = true; });
    }
    if (shutdown_ns_ != 0 && shutdown_is_done(now)) {
        return false;
    }
    if (busy) {
        idle_ = 0;
        spurious_wakeups_ = 0;
    } else {
        rest(now);
    }
    return true;
}

void ProgressThread::finish_closing() {
    for (size_t i = 0; closing_ > 0 && i < remotes_.size(); ++i) {
        RemoteRank *one = remotes_[i].get();
        if (one != nullptr && one->closing && (one->gone || stream_->delivered(*one))) {
            one->gone = true;
            one->closing = false;
            --closing_;
        }
    }
}

bool ProgressThread::take_commands() {
    const bool any = commands_.take();
    // Words first: a message that was sent after a word had its value must come after the word's own message.
    const bool reached = check_watched();
    commands_.run();
    return any || reached;
}

void ProgressThread::rest(int64_t now) {
    int64_t nap = std::max<int64_t>(0, heartbeat_->next_ns() - now);
    const bool retry = stream_->must_retry() || gets_->must_retry() || accumulate_target_->must_retry();
    retries_ += retry && !retrying_ ? 1 : 0;
    retrying_ = retry;
    if (shutdown_ns_ != 0 || retry) {
        nap = std::min(nap, kRetryNs);
    }
    if (arrivals_->awaits_host()) {
        nap = std::min(nap, kHostNs);
    }
    if (accumulate_target_->blocked() || !watched_.empty()) {
        nap = std::min(nap, kPollNs);
    }
    std::vector<pollfd> fds{{commands_.wait_fd(), POLLIN, 0}, {local_peers_->wait_fd(), POLLIN, 0}};
    for (const auto &endpoint : endpoints_) {
        if (endpoint->wait_fd() >= 0) {
            fds.push_back({endpoint->wait_fd(), POLLIN, 0});
        } else if (++idle_ < kEagerSteps) {
            sched_yield();
            return;
        } else {
            nap = std::min({nap, kLongestNapNs, int64_t{1000} * idle_});
        }
    }
    if (!commands_.begin_sleep()) {
        return;
    }
    if (!may_sleep()) {
        commands_.end_sleep(0);
        return;
    }
    const timespec limit{nap / 1'000'000'000, nap % 1'000'000'000};
    ppoll(fds.data(), fds.size(), &limit, nullptr);
    commands_.end_sleep(fds[0].revents);
    if (fds[1].revents != 0) {
        report_ended(local_peers_->dead());
    }
    const bool woken = std::any_of(fds.begin() + 2, fds.end(), [](const pollfd &fd) { return fd.revents != 0; });
    spurious_wakeups_ = woken ? spurious_wakeups_ + 1 : 0;
}

// Once a minibatch: a line for each time would delay what is late already.
void ProgressThread::log_congestion() {
    const uint64_t minibatch = config_.log->minibatch();
    if (minibatch == counted_minibatch_ || !config_.log->on(ODC_LOG_DEBUG)) {
        return;
    }
    const uint64_t full = gets_->times_full() + accumulate_target_->times_full() + accumulate_source_->times_full();
    if (full > logged_full_ || retries_ > 0) {
        config_.log->debug(
            "staging of {} bytes was full {} times, and the provider had no room {} "
            "times, since minibatch {}",
            staging_bytes_, full - logged_full_, retries_, counted_minibatch_);
    }
    counted_minibatch_ = minibatch;
    logged_full_ = full;
    retries_ = 0;
}

void ProgressThread::report_ended(const std::vector<EndedPeer> &local_peers) {
    for (const EndedPeer &one : local_peers) {
        send_to_all(encode(DeadMessage{one.rank, one.how}));
    }
}

bool ProgressThread::check_watched() {
    return std::erase_if(watched_, [this](const Watched &one) {
               const bool reached = one.is_reached();
               if (reached) {
                   send_to(one.ranks, one.message);
               }
               return reached;
           }) > 0;
}

void ProgressThread::send_to(const std::vector<int> &ranks, const std::string &message) {
    if (ranks.empty()) {
        send_to_all(message);
    }
    for (const int rank : ranks) {
        if (remotes_[static_cast<size_t>(rank)]) {
            stream_->send(remote(rank), message);
        }
    }
}

void ProgressThread::send_to_all(const std::string &message) {
    for (const auto &one : remotes_) {
        if (one) {
            stream_->send(*one, message);
        }
    }
}

// If it is false, the endpoints must be polled first.
bool ProgressThread::may_sleep() {
    const bool rearm = spurious_wakeups_ >= kSpuriousWakeups;
    if (rearm) {
        spurious_wakeups_ = 0;
    }
    return std::all_of(endpoints_.begin(), endpoints_.end(), [rearm](const auto &endpoint) {
        return endpoint->wait_fd() < 0 || (!(rearm && endpoint->rearm_wait_fd()) && endpoint->may_sleep());
    });
}

void ProgressThread::on_message(RemoteRank &from, const ControlMessage &message) {
    std::visit(
        [&](const auto &one) {
            using Kind = std::decay_t<decltype(one)>;
            if constexpr (std::is_same_v<Kind, AddMessage>) {
                accumulate_target_->on_add(from, one);
            } else if constexpr (std::is_same_v<Kind, AppliedMessage>) {
                complete(accumulate_source_->on_applied(from, one));
            } else if constexpr (std::is_same_v<Kind, ClaimMessage>) {
                claims_->on_claim(from, one);
            } else if constexpr (std::is_same_v<Kind, ClaimedMessage>) {
                complete(claims_->on_claimed(from, one));
            } else if constexpr (std::is_same_v<Kind, ArrivedMessage>) {
                arrivals_->on_message(one);
            } else if constexpr (std::is_same_v<Kind, HeartbeatMessage>) {
                heartbeat_->on_message(from, one);
                if (one.ping != 0) {
                    arrivals_->answer(from, one.known);
                }
            } else if constexpr (std::is_same_v<Kind, DeadMessage>) {
                heartbeat_->on_message(from, one);
            } else if constexpr (std::is_same_v<Kind, AckMessage>) {
                from.awaits_ack = false;
            } else {
                from.replica.apply(one);
                if constexpr (std::is_same_v<Kind, FailedMessage>) {
                    config_.mine->peer_failed.store(1, std::memory_order_release);
                }
                if constexpr (std::is_same_v<Kind, FailedMessage> || std::is_same_v<Kind, GoodbyeMessage>) {
                    acknowledge_last(from);
                } else if constexpr (std::is_same_v<Kind, PublishedMessage> ||
                                     std::is_same_v<Kind, AllPublishedMessage>) {
                    gets_->on_published(from);
                }
            }
        },
        message);
}

// Acknowledges a peer's last message, after which it closes its endpoint.
void ProgressThread::acknowledge_last(RemoteRank &from) {
    closing_ += from.closing ? 0 : 1;
    from.closing = true;
    from.awaits_ack = false;
    stream_->send(from, encode(AckMessage{}));
}

void ProgressThread::complete(const std::shared_ptr<Request> &request) {
    if (request) {
        request->complete();
        completed(request);
    }
}

void ProgressThread::completed(const std::shared_ptr<Request> &request) {
    ring(remote(request->owner()).replica.block());
    pending_.erase(request);
}

// ---- The end ----

void ProgressThread::begin_shutdown(const std::string &last_message) {
    shutdown_ns_ = now_ns();
    gets_->stop();
    accumulate_target_->stop();
    for (const auto &one : remotes_) {
        if (one && !one->gone && !one->closing) {
            stream_->send(*one, last_message);
            one->awaits_ack = true;
        }
    }
}

bool ProgressThread::shutdown_is_done(int64_t now) const {
    const bool all_done = std::all_of(remotes_.begin(), remotes_.end(), [&](const auto &one) {
        // A peer that has sent its own last message may be gone before it gets ours.
        const bool sent_all = one && (stream_->delivered(*one) || (one->closing && now - shutdown_ns_ > kClosingNs));
        return !one || one->gone || (!one->awaits_ack && sent_all);
    });
    return (all_done && !gets_->in_flight() && !accumulate_target_->in_flight()) || now - shutdown_ns_ > kShutdownNs;
}

void ProgressThread::tear_down() {
    commands_.end();  // runs what other threads may wait for
    gets_->stop();
    accumulate_target_->stop();
    const auto in_flight = gets_->in_flight() || accumulate_target_->in_flight() ? FabricEndpoint::InFlight::Reads
                                                                                 : FabricEndpoint::InFlight::None;
    slices_.clear();
    accumulate_source_->stop();
    for (const auto &endpoint : endpoints_) {
        endpoint->close(in_flight);
    }
    for (const auto &request : pending_) {
        request->set_cancelled();
        ring(remote(request->owner()).replica.block());
    }
    commands_.release();
}

}  // namespace odc
