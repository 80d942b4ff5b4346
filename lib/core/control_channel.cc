// SPDX-License-Identifier: Apache-2.0
#include "core/control_channel.h"

#include "transport/fabric/fabric.h"

namespace odc {

void ControlChannel::tell(const ControlMessage &message) {
    if (fabric_ != nullptr) {
        fabric_->tell(message);
        broadcasts_ += is_broadcast(message) ? 1 : 0;
    }
}

void ControlChannel::tell(const ControlMessage &message, const std::vector<int32_t> &ranks) {
    if (fabric_ != nullptr) {
        fabric_->tell(message, ranks);
    }
}

void ControlChannel::tell_when(const std::atomic<uint64_t> &word, uint64_t value, const ControlMessage &message,
                               const std::vector<int32_t> &ranks) {
    if (fabric_ != nullptr) {
        fabric_->tell_when(word, value, message, ranks);
    }
}

void ControlChannel::tell_registered(const RegisteredMessage &message) {
    fabric_->tell_registered(message);
    ++broadcasts_;
}

void ControlChannel::arrive(uint64_t number, const Arrival &own, int64_t at_ns) { fabric_->arrive(number, own, at_ns); }

void ControlChannel::pass_on_arrivals(uint64_t number) {
    if (fabric_ != nullptr) {
        fabric_->pass_on_arrivals(number);
    }
}

void ControlChannel::finish_arrivals(uint64_t number) {
    if (fabric_ != nullptr) {
        fabric_->finish_arrivals(number);
    }
}

void ControlChannel::leave(const LeftMessage &message) {
    if (fabric_ != nullptr) {
        fabric_->leave(message);
    }
}

std::shared_ptr<ClaimRequest> ControlChannel::claim(uint64_t minibatch, uint64_t count) {
    return fabric_->claim(minibatch, count);
}

void ControlChannel::fail(const FailedMessage &message) {
    if (fabric_ != nullptr) {
        fabric_->fail(message);
    }
}

void ControlChannel::await_failed() {
    if (fabric_ != nullptr) {
        fabric_->await_failed();
    }
}

void ControlChannel::flush() {
    if (fabric_ != nullptr) {
        fabric_->flush();
    }
}

uint64_t ControlChannel::packets_sent() const { return fabric_ != nullptr ? fabric_->packets_sent() : 0; }

uint64_t ControlChannel::sent_bytes() const { return fabric_ != nullptr ? fabric_->sent_bytes() : 0; }

}  // namespace odc
