// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/fabric.h"

#include "base/error.h"
#include "memory/shared_arena.h"
#include "transport/cuda/bounce_pool.h"
#include "transport/fabric/claim_exchange.h"
#include "transport/fabric/progress_thread.h"

namespace odc {

namespace {

class RemoteRequest final : public Request, public std::enable_shared_from_this<RemoteRequest> {
public:
    RemoteRequest(ProgressThread &thread, int owner, OnEnd on_end)
        : Request(owner, std::move(on_end)), thread_(thread) {}
    void cancel() override { thread_.cancel(shared_from_this()); }

private:
    ProgressThread &thread_;
};

class RemoteEndpoint final : public Endpoint {
public:
    RemoteEndpoint(ProgressThread &thread, int peer) : thread_(thread), peer_(peer) {}

    StartedGet start_get(const RemoteSlice &from, void *to, uint64_t generation, GetOptions options) override {
        auto request = std::make_shared<RemoteRequest>(thread_, peer_, std::move(options.on_end));
        thread_.get(from, static_cast<std::byte *>(to), generation, options.ahead, request);
        return {true, request};
    }

    // The owner's progress thread waits, not this one.
    std::shared_ptr<Request> start_add(const RemoteSlice &to, const void *from, uint64_t generation,
                                       WaitHook &) override {
        auto request = std::make_shared<RemoteRequest>(thread_, peer_, Request::OnEnd{});
        thread_.add(to, static_cast<const std::byte *>(from), generation, request);
        return request;
    }

private:
    ProgressThread &thread_;
    int peer_;
};

}  // namespace

Fabric::Fabric(const FabricConfig &config, const std::vector<FabricNic> &nics)
    : thread_(std::make_unique<ProgressThread>(config, nics)) {}

Fabric::~Fabric() = default;

const std::vector<std::byte> &Fabric::name(size_t nic) const { return thread_->name(nic); }

void Fabric::start(const Token &token, const std::vector<FabricPeer> &peers, const std::vector<std::vector<int>> &hosts,
                   std::vector<FabricLocalPeer> local_peers) {
    thread_->start(token, peers, hosts, std::move(local_peers));
}

std::shared_ptr<Arena> Fabric::replicas() const { return thread_->replicas(); }
uint64_t Fabric::replica_offset(int rank) const { return thread_->replica_offset(rank); }
std::unique_ptr<Endpoint> Fabric::endpoint_to(int peer_rank) {
    return std::make_unique<RemoteEndpoint>(*thread_, peer_rank);
}
std::unique_ptr<Endpoint> connect_fabric(const EndpointParams &params) {
    return params.other_hosts->endpoint_to(params.peer_rank);
}
void Fabric::tell(const ControlMessage &message) { thread_->tell(encode(message), {}); }
void Fabric::tell(const ControlMessage &message, const std::vector<int> &ranks) {
    thread_->tell(encode(message), ranks);
}
void Fabric::tell_when(const std::atomic<uint64_t> &word, uint64_t value, const ControlMessage &message,
                       const std::vector<int> &ranks) {
    thread_->tell_when(word, value, encode(message), ranks);
}
std::shared_ptr<ClaimRequest> Fabric::claim(uint64_t minibatch, uint64_t count) {
    auto request = std::make_shared<ClaimRequest>(count);
    thread_->claim(minibatch, request);
    return request;
}
void Fabric::arrive(uint64_t number, const Arrival &own, int64_t at_ns) { thread_->arrive(number, own, at_ns); }
void Fabric::pass_on_arrivals(uint64_t number) { thread_->pass_on_arrivals(number); }
void Fabric::finish_arrivals(uint64_t number) { thread_->finish_arrivals(number); }
void Fabric::leave(const LeftMessage &message) { thread_->leave(encode(message)); }
void Fabric::flush() { thread_->flush(); }
void Fabric::fail(const FailedMessage &message) { thread_->fail_job(encode(message)); }
void Fabric::await_failed() { thread_->await_failed(); }
bool Fabric::reaches_gpu() const { return thread_->reaches_gpu(); }
void Fabric::register_memory(const BouncePool &slots, Access access) {
    thread_->register_memory(slots.start(), slots.bytes(), slots.kind(), access);
}
void Fabric::use_gdr_add(GdrAdd &gdr_add) { thread_->use_gdr_add(gdr_add); }
void Fabric::register_slice(const RemoteSlice &slice) { thread_->register_slice(slice); }
void Fabric::tell_registered(const RegisteredMessage &message) { thread_->tell_registered(message); }
void Fabric::deregister_slice(uint64_t record) { thread_->deregister_slice(record); }
uint64_t Fabric::packets_sent() const { return thread_->packets_sent(); }
uint64_t Fabric::sent_bytes() const { return thread_->sent_bytes(); }

}  // namespace odc
