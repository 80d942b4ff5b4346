// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/progress_thread.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>

#include "base/deadline.h"
#include "base/element_type.h"
#include "base/error.h"
#include "base/thread.h"
#include "memory/host_kernels.h"

namespace odc {

namespace {

constexpr int64_t kFarewellNs = 1'000'000'000;  // for the peers to hear the last words
constexpr int64_t kLastWordsNs = 250'000'000;   // that a call that fails takes longer, for the peers to hear why
constexpr int64_t kClosingNs = 50'000'000;
constexpr int64_t kSoonNs = 1'000'000;        // when something refused is tried again
constexpr int64_t kUnheardNs = 50'000;        // when what rings no bell is looked at: a held stripe, a GPU's word
constexpr int kEagerSteps = 200;              // without a bell, before the thread begins to sleep between looks
constexpr int64_t kLongestNapNs = 2'000'000;  // and how long it sleeps at most
constexpr int kVainRings = 50;                // of a bell, before a millisecond is spent on taking it back

std::vector<std::unique_ptr<FabricEndpoint>> open_all(const std::vector<FabricPort> &ports, const CudaDevice *gpu) {
    std::vector<std::unique_ptr<FabricEndpoint>> endpoints;
    for (const FabricPort &port : ports) {
        endpoints.push_back(std::make_unique<FabricEndpoint>(port, gpu));
    }
    return endpoints;
}

// Of staging, for each use at each endpoint: additions need some; gathers and offers, too, where callers' memory would
// have to be registered.
size_t share_of_staging(size_t bytes, const std::vector<std::unique_ptr<FabricEndpoint>> &endpoints) {
    size_t uses = 0;
    for (const auto &endpoint : endpoints) {
        uses += endpoint->needs_local() ? 3 : 1;
    }
    if (bytes < uses * kStripeBytes) {
        fail(ODC_ERROR_ARGUMENT, "ODC_STAGING_BYTES=\"", bytes, "\" is wrong: the ", endpoints.size(),
             " NICs that routes go through need at least ", uses * kStripeBytes);
    }
    return bytes / std::max<size_t>(1, uses);
}

}  // namespace

ProgressThread::ProgressThread(const FabricTerms &terms, const std::vector<FabricPort> &ports)
    : terms_(terms), endpoints_(open_all(ports, terms.gpu)), images_(Arena::create()),
      staging_bytes_(share_of_staging(terms.staging_bytes, endpoints_)),
      gathers_(staging_bytes_, registered_, [this](const std::shared_ptr<Request> &request) { settled(request); }),
      accumulate_target_(terms.rank, staging_bytes_, registered_,
                         [this](RemoteRank &to, const ControlMessage &n) { stream_->say(to, encode(n)); }),
      accumulate_source_(staging_bytes_, registered_,
                         [this](RemoteRank &to, const ControlMessage &n) { stream_->say(to, encode(n)); }),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_.valid()) {
        fail_errno("eventfd");
    }
    // Here a refusal to register it is an error of odc_init.
    for (const auto &endpoint : endpoints_) {
        if (endpoint->needs_local()) {
            gathers_.prepare(*endpoint);
            accumulate_target_.prepare(*endpoint);
            accumulate_source_.prepare(*endpoint);
        }
    }
}

void ProgressThread::start(const Token &token, const std::vector<FabricPeer> &peers,
                           const std::vector<std::vector<int>> &hosts, std::vector<FabricLocalPeer> local_peers) {
    remotes_.resize(static_cast<size_t>(terms_.size));
    for (const FabricPeer &peer : peers) {
        FabricEndpoint &endpoint = *endpoints_.at(peer.port);
        const std::vector<std::byte> name = endpoint.as_seen_here(peer.name);
        remotes_[static_cast<size_t>(peer.rank)] = std::make_unique<RemoteRank>(
            RemoteRank{peer.rank, peer.host, &endpoint, endpoint.connect(name), name,
                       RankReplica(*images_, peer.rank, terms_.size, peer.pid, peer.host_name)});
    }
    stream_ = std::make_unique<ReliableStream>(
        *terms_.mine, token, remotes_,
        [this](RemoteRank &from, const ControlMessage &message) { hear(from, message); });
    heartbeat_ = std::make_unique<Heartbeat>(terms_.rank, terms_.silence_ms, remotes_, *stream_);
    heartbeat_->watch(hosts);
    local_peers_ = std::make_unique<LocalPeers>(terms_.rank, std::move(local_peers));
    for (const auto &endpoint : endpoints_) {
        stream_->listen(*endpoint);
    }
    start_thread();
}

void ProgressThread::start_thread() {
    try {
        thread_ = start_quietly("odc", "the library thread", [this] { run(); });
    } catch (const Error &error) {
        throw Error(error.status(), say("odc_init: ", error.what()));
    }
}

ProgressThread::~ProgressThread() {
    if (!thread_.joinable()) {
        // Before the buffers that they receive into.
        for (const auto &endpoint : endpoints_) {
            endpoint->shut(FabricEndpoint::InFlight::Nothing);
        }
        return;
    }
    post([this] {
        if (farewell_ns_ == 0) {
            begin_farewell(encode(ByeMessage{}));
        }
    });
    thread_.join();
}

// ---- For the context's threads ----

bool ProgressThread::post(Command command) {
    {
        const std::lock_guard lock(mutex_);
        if (ended_) {
            return false;
        }
        commands_.push_back(std::move(command));
    }
    if (sleeping_.exchange(false)) {
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
    }
    return true;
}

bool ProgressThread::call(const std::function<void()> &body) {
    if (!thread_.joinable()) {
        body();
        return true;
    }
    std::mutex mutex;
    std::condition_variable answered;
    bool done = false;
    std::exception_ptr error;
    const bool taken = post([&] {
        try {
            body();
        } catch (...) {
            error = std::current_exception();
        }
        const std::lock_guard lock(mutex);
        done = true;
        answered.notify_one();
    });
    if (!taken) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return through_; });
        return false;
    }
    std::unique_lock lock(mutex);
    answered.wait(lock, [&] { return done; });
    if (error) {
        std::rethrow_exception(error);
    }
    return true;
}

void ProgressThread::tell(std::string message, std::vector<int> ranks) {
    post([this, message = std::move(message), ranks = std::move(ranks)] { say_to(ranks, message); });
}

void ProgressThread::tell_when(const std::atomic<uint64_t> &word, uint64_t value, std::string message,
                               std::vector<int> ranks) {
    post([this, watched = Watched{&word, value, std::move(message), std::move(ranks)}] {
        if (watched.is_there()) {
            say_to(watched.ranks, watched.message);
        } else {
            watched_.push_back(watched);
        }
    });
}

void ProgressThread::fail_job(std::string message) {
    post([this, message = std::move(message)] {
        if (farewell_ns_ == 0) {
            begin_farewell(message);
            heartbeat_->suspect_all(now_ns());  // others may have died of the same, and never answer
        }
    });
}

void ProgressThread::await_failed() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(kLastWordsNs), [this] { return ended_; });
}

void ProgressThread::flush() {
    post([this] { flush_ = heartbeat_->ask_all(); });
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(kFarewellNs), [this] { return flushed_ || ended_; });
}

void ProgressThread::get(const RemoteSlice &from, std::byte *to, uint64_t wanted, std::shared_ptr<Request> request) {
    const bool taken = post([this, from, to, wanted, request] {
        unsettled_.insert(request);
        gathers_.start(remote(request->owner()), from, to, wanted, request);
    });
    if (!taken) {
        request->give_up();
    }
}

void ProgressThread::add(const RemoteSlice &to, const std::byte *from, uint64_t epoch,
                         std::shared_ptr<Request> request) {
    const bool taken = post([this, to, from, epoch, request] {
        unsettled_.insert(request);
        accumulate_source_.start(remote(request->owner()), to, from, epoch, request);
    });
    if (!taken) {
        request->give_up();
    }
}

void ProgressThread::cancel(const std::shared_ptr<Request> &request) {
    post([this, request] { gathers_.cancel(request); });
}

void ProgressThread::expose(const RemoteSlice &slice) {
    const bool taken = call([&] {
        const size_t bytes = slice.numel * element_size(slice.parameter_type);
        if (bytes > 0) {
            auto &exposed = exposed_[slice.record];
            for (const auto &endpoint : endpoints_) {
                exposed[endpoint.get()] = endpoint->expose(slice.parameters, bytes, slice.memory, Access::RemoteRank);
            }
        }
        if (slice.gradient_type != 0 && slice.numel > 0) {
            accumulate_target_.open(slice);
        }
    });
    if (!taken) {
        fail(ODC_ERROR_PEER_LOST, "the connections to other hosts are closed");
    }
}

void ProgressThread::register_memory(std::byte *start, size_t bytes, MemoryKind kind, Access access) {
    if (!call([&] { registered_.register_memory(endpoints_, start, bytes, kind, access); })) {
        fail(ODC_ERROR_PEER_LOST, "the connections to other hosts are closed");
    }
}

void ProgressThread::add_by(GdrAdd &sums) {
    call([&] { accumulate_target_.add_by(sums); });
}

void ProgressThread::announce(const PostMessage &message) {
    post([this, own = message]() mutable {
        const auto exposed = exposed_.find(own.record);
        for (const auto &one : remotes_) {
            if (!one) {
                continue;
            }
            if (exposed != exposed_.end()) {
                const Exposed &here = exposed->second.at(one->endpoint);
                own.address = here.address;
                own.key = here.key;
            }
            stream_->say(*one, encode(own));
        }
    });
}

// A thread that has ended exposes nothing any more.
void ProgressThread::conceal(uint64_t record) {
    call([&] {
        exposed_.erase(record);
        accumulate_target_.close(record);
    });
}

// ---- The thread ----

void ProgressThread::run() {
    try {
        while (step()) {
        }
    } catch (const std::exception &) {
        fail_all(current_error());
    }
    let_go();
}

// Here whoever waits for another host reads it, there whoever waits for this rank.
void ProgressThread::fail_all(const Error &error) {
    const ControlBlock &mine = *terms_.mine;
    const std::string words =
        error.status() == ODC_ERROR_DEVICE  // as the context's threads say it, who may meet with it first
            ? say("rank ", terms_.rank, " (host ", mine.host, ", pid ", mine.pid, "): ", error.what())
            : say("the library thread of rank ", terms_.rank, " ended: ", error.what());
    if (farewell_ns_ == 0) {
        begin_farewell(encode(FailedMessage{error.status(), words}));
    }
    for (const auto &one : remotes_) {
        if (one) {
            one->replica.lose(words);
        }
    }
    // What went wrong may do so again.
    for (bool going = true; going && now_ns() - farewell_ns_ < kFarewellNs;) {
        try {
            going = step();
        } catch (const std::exception &) {
            rest(now_ns());
        }
    }
}

// False: all is said and done.
bool ProgressThread::step() {
    bool busy = take_commands();
    for (const auto &endpoint : endpoints_) {
        busy = endpoint->poll() || busy;
    }
    busy = accumulate_target_.work() || busy;
    busy = accumulate_source_.pump() || busy;
    busy = stream_->pump() || busy;
    busy = accumulate_target_.pump() || busy;
    busy = gathers_.pump() || busy;
    packets_sent_.store(stream_->sent(), std::memory_order_relaxed);
    const int64_t now = now_ns();
    heartbeat_->tick(now);
    tell_of_ended(local_peers_->gone(now));
    bury_closing();
    if (flush_ != 0 && heartbeat_->is_answered(flush_)) {
        flush_ = 0;
        const std::lock_guard lock(mutex_);
        flushed_ = true;
        changed_.notify_all();
    }
    if (farewell_ns_ != 0 && farewell_is_over(now)) {
        return false;
    }
    if (busy) {
        idle_ = 0;
        vain_ = 0;
    } else {
        rest(now);
    }
    return true;
}

void ProgressThread::bury_closing() {
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
    {
        // Some may be left: one threw.
        const std::lock_guard lock(mutex_);
        std::move(commands_.begin(), commands_.end(), std::back_inserter(taken_));
        commands_.clear();
    }
    // First: what was told after a word was there comes after what that word says.
    const bool any = look_at_words() || !taken_.empty();
    while (!taken_.empty()) {
        const Command command = std::move(taken_.front());
        taken_.pop_front();
        command();
    }
    return any;
}

void ProgressThread::rest(int64_t now) {
    int64_t nap = std::max<int64_t>(0, heartbeat_->next_ns() - now);
    if (farewell_ns_ != 0 || stream_->refused() || gathers_.refused() || accumulate_target_.refused()) {
        nap = std::min(nap, kSoonNs);
    }
    if (accumulate_target_.blocked() || !watched_.empty()) {
        nap = std::min(nap, kUnheardNs);
    }
    std::vector<pollfd> bells{{wake_.get(), POLLIN, 0}, {local_peers_->bell(), POLLIN, 0}};
    for (const auto &endpoint : endpoints_) {
        if (endpoint->bell() >= 0) {
            bells.push_back({endpoint->bell(), POLLIN, 0});
        } else if (++idle_ < kEagerSteps) {
            sched_yield();
            return;
        } else {
            nap = std::min({nap, kLongestNapNs, int64_t{1000} * idle_});
        }
    }
    sleeping_.store(true);
    {
        const std::lock_guard lock(mutex_);
        if (!commands_.empty()) {
            sleeping_.store(false);
            return;
        }
    }
    if (!may_sleep()) {
        sleeping_.store(false);
        return;
    }
    const timespec limit{nap / 1'000'000'000, nap % 1'000'000'000};
    ppoll(bells.data(), bells.size(), &limit, nullptr);
    sleeping_.store(false);
    if (bells[0].revents != 0) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
    }
    if (bells[1].revents != 0) {
        tell_of_ended(local_peers_->dead());
    }
    const bool rang = std::any_of(bells.begin() + 2, bells.end(), [](const pollfd &bell) { return bell.revents != 0; });
    vain_ = rang ? vain_ + 1 : 0;
}

void ProgressThread::tell_of_ended(const std::vector<LocalPeers::Ended> &local_peers) {
    for (const LocalPeers::Ended &one : local_peers) {
        say_to_all(encode(DeadMessage{one.rank, one.how}));
    }
}

bool ProgressThread::look_at_words() {
    return std::erase_if(watched_, [this](const Watched &one) {
               const bool there = one.is_there();
               if (there) {
                   say_to(one.ranks, one.message);
               }
               return there;
           }) > 0;
}

void ProgressThread::say_to(const std::vector<int> &ranks, const std::string &message) {
    if (ranks.empty()) {
        say_to_all(message);
    }
    for (const int rank : ranks) {
        if (remotes_[static_cast<size_t>(rank)]) {
            stream_->say(remote(rank), message);
        }
    }
}

void ProgressThread::say_to_all(const std::string &message) {
    for (const auto &one : remotes_) {
        if (one) {
            stream_->say(*one, message);
        }
    }
}

// The endpoints have to be polled first where it is false.
bool ProgressThread::may_sleep() {
    const bool hush = vain_ >= kVainRings;
    if (hush) {
        vain_ = 0;
    }
    return std::all_of(endpoints_.begin(), endpoints_.end(), [hush](const auto &endpoint) {
        return endpoint->bell() < 0 || (!(hush && endpoint->hush()) && endpoint->may_sleep());
    });
}

void ProgressThread::hear(RemoteRank &from, const ControlMessage &message) {
    std::visit(
        [&](const auto &one) {
            using Kind = std::decay_t<decltype(one)>;
            if constexpr (std::is_same_v<Kind, AddMessage>) {
                accumulate_target_.offered(from, one);
            } else if constexpr (std::is_same_v<Kind, AppliedMessage>) {
                if (const std::shared_ptr<Request> request = accumulate_source_.applied(from, one)) {
                    request->finish();
                    settled(request);
                }
            } else if constexpr (std::is_same_v<Kind, HeartbeatMessage> || std::is_same_v<Kind, DeadMessage>) {
                heartbeat_->heard(from, one);
            } else if constexpr (std::is_same_v<Kind, HeardMessage>) {
                from.owes_heard = false;
            } else {
                from.replica.apply(one);
                if constexpr (std::is_same_v<Kind, FailedMessage>) {
                    terms_.mine->peer_failed.store(1, std::memory_order_release);
                }
                if constexpr (std::is_same_v<Kind, FailedMessage> || std::is_same_v<Kind, ByeMessage>) {
                    hear_last_words(from);
                } else if constexpr (std::is_same_v<Kind, PublishedMessage> ||
                                     std::is_same_v<Kind, AllPublishedMessage>) {
                    gathers_.published(from);
                }
            }
        },
        message);
}

// The peer closes its endpoint once it knows that they have come.
void ProgressThread::hear_last_words(RemoteRank &from) {
    closing_ += from.closing ? 0 : 1;
    from.closing = true;
    from.owes_heard = false;
    stream_->say(from, encode(HeardMessage{}));
}

void ProgressThread::settled(const std::shared_ptr<Request> &request) {
    ring(remote(request->owner()).replica.block());
    unsettled_.erase(request);
}

// ---- The end ----

void ProgressThread::begin_farewell(const std::string &words) {
    farewell_ns_ = now_ns();
    gathers_.stop();
    accumulate_target_.stop();
    for (const auto &one : remotes_) {
        if (one && !one->gone && !one->closing) {
            stream_->say(*one, words);
            one->owes_heard = true;
        }
    }
}

bool ProgressThread::farewell_is_over(int64_t now) const {
    const bool heard = std::all_of(remotes_.begin(), remotes_.end(), [&](const auto &one) {
        // Who has said its own last words may be gone before ours have left.
        const bool has_all = one && (stream_->delivered(*one) || (one->closing && now - farewell_ns_ > kClosingNs));
        return !one || one->gone || (!one->owes_heard && has_all);
    });
    return (heard && !gathers_.in_flight() && !accumulate_target_.in_flight()) || now - farewell_ns_ > kFarewellNs;
}

void ProgressThread::let_go() {
    {
        const std::lock_guard lock(mutex_);
        ended_ = true;
        changed_.notify_all();
    }
    // Somebody may wait for what was posted before.
    std::move(commands_.begin(), commands_.end(), std::back_inserter(taken_));
    for (const Command &command : taken_) {
        try {
            command();
        } catch (const std::exception &) {
            // The first reason has been said.
        }
    }
    gathers_.stop();
    accumulate_target_.stop();
    const auto in_flight = gathers_.in_flight() || accumulate_target_.in_flight() ? FabricEndpoint::InFlight::RmaReads
                                                                                  : FabricEndpoint::InFlight::Nothing;
    exposed_.clear();
    accumulate_source_.stop();
    for (const auto &endpoint : endpoints_) {
        endpoint->shut(in_flight);
    }
    for (const auto &request : unsettled_) {
        request->give_up();
        ring(remote(request->owner()).replica.block());
    }
    const std::lock_guard lock(mutex_);
    through_ = true;
    changed_.notify_all();
}

}  // namespace odc
