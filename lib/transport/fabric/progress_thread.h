// SPDX-License-Identifier: Apache-2.0
// The one thread of a context that works for peers of other hosts (see fabric.h). It alone touches libfabric; the
// context's threads hand it commands. It never waits for a peer, a lock or room: what cannot be done now is tried again.
#pragma once

#include "base/fd.h"
#include "transport/fabric/accumulate_source.h"
#include "transport/fabric/accumulate_target.h"
#include "transport/fabric/get.h"
#include "transport/fabric/heartbeat.h"
#include "transport/fabric/local_peers.h"
#include "transport/fabric/reliable_stream.h"
#include "transport/fabric/types.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace odc {

class ProgressThread {
public:
    ProgressThread(const FabricTerms &terms, const std::vector<FabricPort> &ports);
    ~ProgressThread();
    ProgressThread(const ProgressThread &) = delete;
    ProgressThread &operator=(const ProgressThread &) = delete;

    const std::vector<std::byte> &name(size_t port) const { return endpoints_[port]->name(); }
    void start(const Token &token, const std::vector<FabricPeer> &peers, const std::vector<std::vector<int>> &hosts,
               std::vector<FabricLocalPeer> local_peers);
    std::shared_ptr<Arena> images() const { return images_; }
    uint64_t image_of(int rank) const { return remotes_[static_cast<size_t>(rank)]->replica.block_offset(); }

    // For the context's threads. `ranks` empty: all of other hosts.
    void tell(std::string message, std::vector<int> ranks);
    void tell_when(const std::atomic<uint64_t> &word, uint64_t value, std::string message, std::vector<int> ranks);
    void fail_job(std::string message);
    void await_failed();
    // Returns when the peers have heard all that was said to them, or after a second.
    void flush();
    // Once the owner has published minibatch `wanted` - 1.
    void get(const RemoteSlice &from, std::byte *to, uint64_t wanted, std::shared_ptr<Request> request);
    void add(const RemoteSlice &to, const std::byte *from, uint64_t epoch, std::shared_ptr<Request> request);
    void cancel(const std::shared_ptr<Request> &request);
    bool reaches_gpu() const { return terms_.gpu != nullptr; }
    void register_memory(std::byte *start, size_t bytes, MemoryKind kind, Access access);
    void add_by(GdrAdd &sums);
    void expose(const RemoteSlice &slice);
    void announce(const PostMessage &message);
    void conceal(uint64_t record);
    uint64_t packets_sent() const { return packets_sent_.load(std::memory_order_relaxed); }

private:
    using Command = std::function<void()>;
    // What is to be said once a word has its value.
    struct Watched {
        const std::atomic<uint64_t> *word;
        uint64_t value;
        std::string message;
        std::vector<int> ranks;
        bool is_there() const { return word->load(std::memory_order_acquire) >= value; }
    };
    // False: the thread has ended, and the command was not taken.
    bool post(Command command);
    // Returns when the thread has done it, or this one before the thread is started; throws what it threw. False: the thread
    // has ended, and lets go of everything.
    bool call(const std::function<void()> &body);

    void start_thread();
    void run();
    void fail_all(const Error &error);
    bool step();
    bool take_commands();
    void bury_closing();
    void tell_of_ended(const std::vector<LocalPeers::Ended> &local_peers);
    void say_to(const std::vector<int> &ranks, const std::string &message);
    void say_to_all(const std::string &message);
    bool look_at_words();
    void rest(int64_t now);
    bool may_sleep();
    void hear(RemoteRank &from, const ControlMessage &message);
    void hear_last_words(RemoteRank &from);
    void settled(const std::shared_ptr<Request> &request);
    void begin_farewell(const std::string &words);
    bool farewell_is_over(int64_t now) const;
    void let_go();
    RemoteRank &remote(int rank) { return *remotes_[static_cast<size_t>(rank)]; }

    FabricTerms terms_;
    std::vector<std::unique_ptr<FabricEndpoint>> endpoints_;
    std::shared_ptr<Arena> images_;
    std::vector<std::unique_ptr<RemoteRank>> remotes_;  // by rank; NULL for this host's
    std::unique_ptr<ReliableStream> stream_;
    std::unique_ptr<Heartbeat> heartbeat_;
    std::unique_ptr<LocalPeers> local_peers_;
    size_t staging_bytes_;  // for each use, at each endpoint
    RegisteredMemory registered_;
    GetQueue gathers_;
    AccumulateTarget accumulate_target_;
    AccumulateSource accumulate_source_;
    std::unordered_map<uint64_t, std::unordered_map<FabricEndpoint *, Exposed>> exposed_;  // own slices, by record
    std::unordered_set<std::shared_ptr<Request>> unsettled_;
    std::vector<Watched> watched_;
    uint64_t flush_ = 0;       // the question whose answers a flush waits for; 0: none
    int closing_ = 0;          // remotes that have said goodbye and are not gone yet
    int64_t farewell_ns_ = 0;  // when the last words were said; 0: not yet

    std::mutex mutex_;
    std::deque<Command> commands_;
    std::deque<Command> taken_;  // by the thread
    bool ended_ = false;
    bool flushed_ = false;
    bool through_ = false;             // nothing of this is in use any more
    std::condition_variable changed_;  // one of these
    std::atomic<bool> sleeping_{false};
    Fd wake_;       // eventfd
    int idle_ = 0;  // steps without anything to do
    int vain_ = 0;  // rings of the endpoints' bells since there was something to do
    std::atomic<uint64_t> packets_sent_{0};
    std::thread thread_;
};

}  // namespace odc
