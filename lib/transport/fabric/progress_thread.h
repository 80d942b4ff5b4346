// SPDX-License-Identifier: Apache-2.0
// A context's thread for peers of other hosts (see fabric.h). From start() on it alone uses the context's endpoints, which
// the thread of odc_init has opened; the context's threads hand it commands. It never waits for a peer, a lock or the provider: what
// cannot be done now is tried again in the next step.
#pragma once

#include "transport/fabric/command_queue.h"
#include "transport/fabric/control_message.h"
#include "transport/fabric/provider/endpoint.h"
#include "transport/fabric/types.h"
#include "transport/transport.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace odc {

class AccumulateSource;
class AccumulateTarget;
class Arena;
class ArrivalExchange;
class ClaimExchange;
class ClaimRequest;
class GdrAdd;
class GetQueue;
class Heartbeat;
class LocalPeers;
class RegisteredMemory;
class ReliableStream;
class Error;
struct EndedPeer;
struct RemoteRank;

class ProgressThread {
public:
    ProgressThread(const FabricConfig &config, const std::vector<FabricNic> &nics);
    ~ProgressThread();
    ProgressThread(const ProgressThread &) = delete;
    ProgressThread &operator=(const ProgressThread &) = delete;

    const std::vector<std::byte> &name(size_t nic) const;
    void start(const Token &token, const std::vector<FabricPeer> &peers, const std::vector<std::vector<int>> &hosts,
               std::vector<FabricLocalPeer> local_peers);
    std::shared_ptr<Arena> replicas() const { return replicas_; }
    uint64_t replica_offset(int rank) const;

    // For the context's threads (progress_commands.cc); Fabric documents them. `ranks` empty: all of other hosts.
    void tell(std::string message, std::vector<int> ranks);
    void tell_when(const std::atomic<uint64_t> &word, uint64_t value, std::string message, std::vector<int> ranks);
    void arrive(uint64_t number, const Arrival &own, int64_t at_ns);
    void pass_on_arrivals(uint64_t number);
    void finish_arrivals(uint64_t number);
    void leave(std::string message);
    void fail_job(std::string message);
    void await_failed();
    void flush();
    // Reads the slice once its published word is at least `generation`.
    void get(const RemoteSlice &from, std::byte *to, uint64_t generation, const ReadAhead &ahead,
             std::shared_ptr<Request> request);
    void add(const RemoteSlice &to, const std::byte *from, uint64_t generation, std::shared_ptr<Request> request);
    void claim(uint64_t minibatch, std::shared_ptr<ClaimRequest> request);
    void cancel(const std::shared_ptr<Request> &request);
    bool reaches_gpu() const { return config_.gpu != nullptr; }
    void register_memory(std::byte *start, size_t bytes, MemoryKind kind, Access access);
    void use_gdr_add(GdrAdd &gdr_add);
    void register_slice(const RemoteSlice &slice);
    void deregister_slice(uint64_t record);
    void tell_registered(const RegisteredMessage &message);
    uint64_t packets_sent() const { return packets_sent_.load(std::memory_order_relaxed); }
    uint64_t sent_bytes() const;

private:
    static constexpr int64_t kShutdownNs = 1'000'000'000;  // for the peers to acknowledge what was sent

    // A message to be sent once `word` is at least `value`.
    struct Watched {
        const std::atomic<uint64_t> *word;
        uint64_t value;
        std::string message;
        std::vector<int> ranks;
        bool is_reached() const { return word->load(std::memory_order_acquire) >= value; }
    };
    // CommandQueue's, and on the calling thread before this one is started.
    bool call(const std::function<void()> &body);

    void run();
    void fail_all(const Error &error);
    bool step();
    bool take_commands();
    void finish_closing();
    void report_ended(const std::vector<EndedPeer> &local_peers);
    void send_to(const std::vector<int> &ranks, const std::string &message);
    void send_to_all(const std::string &message);
    bool check_watched();
    void rest(int64_t now);
    bool may_sleep();
    void log_congestion();
    void on_message(RemoteRank &from, const ControlMessage &message);
    void acknowledge_last(RemoteRank &from);
    void complete(const std::shared_ptr<Request> &request);  // may be NULL
    void completed(const std::shared_ptr<Request> &request);
    void begin_shutdown(const std::string &last_message);
    bool shutdown_is_done(int64_t now) const;
    void tear_down();
    RemoteRank &remote(int rank) const { return *remotes_[static_cast<size_t>(rank)]; }

    FabricConfig config_;
    std::vector<std::unique_ptr<FabricEndpoint>> endpoints_;
    std::shared_ptr<Arena> replicas_;
    std::vector<std::unique_ptr<RemoteRank>> remotes_;  // by rank; NULL for this host's ranks
    std::unique_ptr<ReliableStream> stream_;
    std::unique_ptr<Heartbeat> heartbeat_;
    std::unique_ptr<LocalPeers> local_peers_;
    size_t staging_bytes_;  // of each pool of bounce buffers
    std::unique_ptr<RegisteredMemory> registered_;
    std::unique_ptr<GetQueue> gets_;
    std::unique_ptr<AccumulateTarget> accumulate_target_;
    std::unique_ptr<AccumulateSource> accumulate_source_;
    std::unique_ptr<ClaimExchange> claims_;
    std::unique_ptr<ArrivalExchange> arrivals_;
    std::unordered_map<uint64_t, std::unordered_map<FabricEndpoint *, MemoryRegion>> slices_;  // own, by record
    std::unordered_set<std::shared_ptr<Request>> pending_;
    std::vector<Watched> watched_;
    uint64_t flush_ = 0;    // the ping whose answers a flush waits for; 0: none
    uint64_t retries_ = 0;  // because the provider had no room, since the minibatch counted last
    bool retrying_ = false;
    uint64_t logged_full_ = 0;  // times that staging was full
    uint64_t counted_minibatch_ = 0;
    int closing_ = 0;          // number of remotes that are `closing`
    int64_t shutdown_ns_ = 0;  // when the last message was sent; 0: not yet

    CommandQueue commands_;
    bool flushed_ = false;      // changed by commands_.update()
    int idle_ = 0;              // steps without work
    int spurious_wakeups_ = 0;  // of endpoints, since the last step with work
    std::atomic<uint64_t> packets_sent_{0};
    std::thread thread_;
};

}  // namespace odc
