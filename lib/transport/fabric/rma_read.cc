// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/rma_read.h"

#include <algorithm>

#include "base/error.h"

namespace odc {

struct RmaReads::Chunk final : Started {
    RmaReads *reads;
    Lane *lane;
    std::shared_ptr<Flow> flow;
    std::byte *target;
    uint64_t offset;
    size_t bytes;
    void completed(size_t, const std::string &error) override { reads->completed(*this, error); }
};

void Flow::stop() {
    const bool over = asked_ == bytes_;
    asked_ = bytes_;
    if (!over && flying_ == 0) {
        ended();
    }
}

RmaReads::RmaReads(unsigned window, size_t chunk_bytes) : window_(window), chunk_bytes_(chunk_bytes) {}
RmaReads::~RmaReads() = default;

void RmaReads::start(std::shared_ptr<Flow> flow) {
    if (stopped_) {
        flow->stop();
        return;
    }
    Lane *&lane = lane_of_[&flow->from()];
    if (lane == nullptr) {
        lanes_.push_back(std::make_unique<Lane>(Lane{&flow->from(), {}, 0}));
        lane = lanes_.back().get();
    }
    lane->flows.push_back(std::move(flow));
}

void RmaReads::stop() {
    stopped_ = true;
    for (const auto &lane : lanes_) {
        lane->flows.clear();
    }
}

// In turn from all peers, so that none is always the first to be given what is scarce.
bool RmaReads::pump() {
    refused_ = false;
    bool any = false;
    const unsigned most = share();
    for (size_t idle = 0; idle < lanes_.size() && flying_ < window_;) {
        turn_ = (turn_ + 1) % lanes_.size();
        if (pump(*lanes_[turn_], most)) {
            any = true;
            idle = 0;
        } else {
            ++idle;
        }
    }
    return any;
}

// One peer that does not answer must not hold the whole window.
unsigned RmaReads::share() const {
    const auto busy = static_cast<unsigned>(
        std::count_if(lanes_.begin(), lanes_.end(), [](const auto &lane) { return !lane->flows.empty(); }));
    return busy == 0 ? window_ : (window_ + busy - 1) / busy;
}

bool RmaReads::pump(Lane &lane, unsigned most) {
    while (!lane.flows.empty() && lane.in_flight < most) {
        const std::shared_ptr<Flow> flow = lane.flows.front();
        if (!lane.from->gone && flow->asked_ < flow->bytes_) {
            return start_chunk(lane, *flow);
        }
        lane.flows.pop_front();
        flow->stop();
    }
    return false;
}

bool RmaReads::start_chunk(Lane &lane, Flow &flow) {
    const uint64_t offset = flow.asked_;
    const size_t bytes = std::min<uint64_t>(chunk_bytes_, flow.bytes_ - offset);
    void *descriptor = nullptr;
    std::byte *target = flow.target(offset, bytes, &descriptor);
    if (target == nullptr) {
        return false;
    }
    if (free_.empty()) {
        chunks_.push_back(std::make_unique<Chunk>());
        chunks_.back()->reads = this;
        free_.push_back(chunks_.back().get());
    }
    Chunk &chunk = *free_.back();
    if (!lane.from->endpoint->read(lane.from->address, target, bytes, descriptor, flow.address_ + offset, flow.key_,
                                   chunk)) {
        flow.returned(target);
        refused_ = lane.from->may_retry() || refused_;
        return false;
    }
    free_.pop_back();
    chunk.flow = lane.flows.front();
    chunk.lane = &lane;
    ++lane.in_flight;
    chunk.target = target;
    chunk.offset = offset;
    chunk.bytes = bytes;
    flow.asked_ += bytes;
    ++flow.flying_;
    ++flying_;
    return true;
}

void RmaReads::completed(Chunk &chunk, const std::string &error) {
    const std::shared_ptr<Flow> flow = std::move(chunk.flow);
    --flying_;
    --chunk.lane->in_flight;
    --flow->flying_;
    free_.push_back(&chunk);
    if (error.empty()) {
        flow->landed(chunk.target, chunk.offset, chunk.bytes);
    } else {
        flow->returned(chunk.target);
        flow->asked_ = flow->bytes_;
        flow->from().lose(say("a read of its memory failed (", error, ")"));
    }
    if (flow->flying_ == 0 && flow->asked_ == flow->bytes_) {
        flow->ended();
    }
}

}  // namespace odc
