// SPDX-License-Identifier: Apache-2.0
// What a context's threads leave to its progress thread.
#include "base/deadline.h"
#include "base/element_type.h"
#include "base/error.h"
#include "transport/fabric/accumulate_source.h"
#include "transport/fabric/accumulate_target.h"
#include "transport/fabric/arrival_exchange.h"
#include "transport/fabric/claim_exchange.h"
#include "transport/fabric/get.h"
#include "transport/fabric/heartbeat.h"
#include "transport/fabric/progress_thread.h"
#include "transport/fabric/reliable_stream.h"

namespace odc {

namespace {

constexpr int64_t kNotifyNs = 250'000'000;  // how long a failing call waits for the peers to be told

}  // namespace

bool ProgressThread::call(const std::function<void()> &body) {
    if (!thread_.joinable()) {
        body();
        return true;
    }
    return commands_.call(body);
}

void ProgressThread::tell(std::string message, std::vector<int> ranks) {
    commands_.submit([this, message = std::move(message), ranks = std::move(ranks)] { send_to(ranks, message); });
}

void ProgressThread::tell_when(const std::atomic<uint64_t> &word, uint64_t value, std::string message,
                               std::vector<int> ranks) {
    commands_.submit([this, watched = Watched{&word, value, std::move(message), std::move(ranks)}] {
        if (watched.is_reached()) {
            send_to(watched.ranks, watched.message);
        } else {
            watched_.push_back(watched);
        }
    });
}

void ProgressThread::arrive(uint64_t number, const Arrival &own, int64_t at_ns) {
    commands_.submit([this, number, own, at_ns] { arrivals_->arrive(number, own, at_ns); });
}

void ProgressThread::pass_on_arrivals(uint64_t number) {
    if (!arrivals_->is_done(number)) {
        commands_.submit([this] { arrivals_->pump(); });
    }
}

void ProgressThread::finish_arrivals(uint64_t number) {
    if (!arrivals_->is_done(number)) {
        commands_.call([this] { arrivals_->pump(); });
    }
}

void ProgressThread::leave(std::string message) {
    commands_.submit([this, message = std::move(message)] {
        arrivals_->pump();
        send_to_all(arrivals_->own_arrivals_since(0) + message);  // in this order, as who has left sends no arrivals
    });
}

void ProgressThread::fail_job(std::string message) {
    commands_.submit([this, message = std::move(message)] {
        if (shutdown_ns_ == 0) {
            begin_shutdown(message);
            heartbeat_->suspect_all(now_ns());  // others may have died of the same cause
        }
    });
}

void ProgressThread::await_failed() {
    commands_.wait_for(kNotifyNs, [] { return false; });
}

void ProgressThread::flush() {
    commands_.submit([this] { flush_ = heartbeat_->ping_all(); });
    commands_.wait_for(kShutdownNs, [this] { return flushed_; });
}

void ProgressThread::get(const RemoteSlice &from, std::byte *to, uint64_t generation, const ReadAhead &ahead,
                         std::shared_ptr<Request> request) {
    const bool taken = commands_.submit([this, from, to, generation, ahead, request] {
        pending_.insert(request);
        gets_->start(remote(request->owner()), from, to, generation, ahead, request);
    });
    if (!taken) {
        request->set_cancelled();
    }
}

void ProgressThread::add(const RemoteSlice &to, const std::byte *from, uint64_t generation,
                         std::shared_ptr<Request> request) {
    const bool taken = commands_.submit([this, to, from, generation, request] {
        pending_.insert(request);
        accumulate_source_->start(remote(request->owner()), to, from, generation, request);
    });
    if (!taken) {
        request->set_cancelled();
    }
}

void ProgressThread::claim(uint64_t minibatch, std::shared_ptr<ClaimRequest> request) {
    const bool taken = commands_.submit([this, minibatch, request] {
        pending_.insert(request);
        claims_->start(remote(0), minibatch, request);
    });
    if (!taken) {
        request->set_cancelled();
    }
}

void ProgressThread::cancel(const std::shared_ptr<Request> &request) {
    commands_.submit([this, request] { gets_->cancel(request); });
}

void ProgressThread::register_slice(const RemoteSlice &slice) {
    const bool taken = call([&] {
        const size_t bytes = slice.numel * element_size(slice.parameter_type);
        if (bytes > 0) {
            auto &regions = slices_[slice.record];
            for (const auto &endpoint : endpoints_) {
                regions[endpoint.get()] =
                    endpoint->register_memory(slice.parameters, bytes, slice.memory, Access::RemoteRead);
            }
        }
        if (slice.gradient_type != 0 && slice.numel > 0) {
            accumulate_target_->add_slice(slice);
        }
    });
    if (!taken) {
        fail(ODC_ERROR_PEER_LOST, "the connections to other hosts are closed");
    }
}

void ProgressThread::register_memory(std::byte *start, size_t bytes, MemoryKind kind, Access access) {
    if (!call([&] { registered_->register_memory(endpoints_, start, bytes, kind, access); })) {
        fail(ODC_ERROR_PEER_LOST, "the connections to other hosts are closed");
    }
}

void ProgressThread::use_gdr_add(GdrAdd &gdr_add) {
    call([&] { accumulate_target_->use_gdr_add(gdr_add); });
}

void ProgressThread::tell_registered(const RegisteredMessage &message) {
    commands_.submit([this, own = message]() mutable {
        const auto regions = slices_.find(own.record);
        for (const auto &one : remotes_) {
            if (!one) {
                continue;
            }
            if (regions != slices_.end()) {
                const MemoryRegion &here = regions->second.at(one->endpoint);
                own.address = here.address;
                own.key = here.key;
            }
            stream_->send(*one, encode(own));
        }
    });
}

// No error if the thread has ended: it has deregistered everything.
void ProgressThread::deregister_slice(uint64_t record) {
    call([&] {
        slices_.erase(record);
        accumulate_target_->remove_slice(record);
    });
}

uint64_t ProgressThread::sent_bytes() const { return accumulate_source_->applied_bytes(); }

}  // namespace odc
