// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/rma_read.h"

#include <algorithm>

#include "base/error.h"

namespace odc {

struct RmaReads::Chunk final : OperationContext {
    RmaReads *reads;
    PeerQueue *queue;
    std::shared_ptr<ChunkedRead> read;
    std::byte *buffer;
    uint64_t offset;
    size_t bytes;
    void completed(size_t, const std::string &error) override { reads->completed(*this, error); }
};

void ChunkedRead::stop() {
    const bool over = requested_ == bytes_;
    requested_ = bytes_;
    if (!over && in_flight_ == 0) {
        finished();
    }
}

RmaReads::RmaReads(unsigned window, size_t chunk_bytes) : window_(window), chunk_bytes_(chunk_bytes) {}
RmaReads::~RmaReads() = default;

void RmaReads::start(std::shared_ptr<ChunkedRead> read) {
    if (stopped_) {
        read->stop();
        return;
    }
    PeerQueue *&queue = queue_of_[&read->from()];
    if (queue == nullptr) {
        queues_.push_back(std::make_unique<PeerQueue>(PeerQueue{&read->from(), {}, 0}));
        queue = queues_.back().get();
    }
    queue->reads.push_back(std::move(read));
}

void RmaReads::stop() {
    stopped_ = true;
    for (const auto &queue : queues_) {
        queue->reads.clear();
    }
}

// Takes turns among peers, so that all get their share of buffers and of the provider's room.
bool RmaReads::pump() {
    must_retry_ = false;
    bool any = false;
    const unsigned most = most_per_peer();
    for (size_t idle = 0; idle < queues_.size() && in_flight_ < window_;) {
        turn_ = (turn_ + 1) % queues_.size();
        if (pump(*queues_[turn_], most)) {
            any = true;
            idle = 0;
        } else {
            ++idle;
        }
    }
    return any;
}

// Limits each peer, so that one that does not answer cannot occupy the whole window.
unsigned RmaReads::most_per_peer() const {
    const auto busy = static_cast<unsigned>(
        std::count_if(queues_.begin(), queues_.end(), [](const auto &queue) { return !queue->reads.empty(); }));
    return busy == 0 ? window_ : (window_ + busy - 1) / busy;
}

bool RmaReads::pump(PeerQueue &queue, unsigned most) {
    while (!queue.reads.empty() && queue.in_flight < most) {
        const std::shared_ptr<ChunkedRead> read = queue.reads.front();
        if (!queue.from->gone && read->requested_ < read->bytes_) {
            return post_chunk(queue, *read);
        }
        queue.reads.pop_front();
        read->stop();
    }
    return false;
}

bool RmaReads::post_chunk(PeerQueue &queue, ChunkedRead &read) {
    const uint64_t offset = read.requested_;
    const size_t bytes = std::min<uint64_t>(chunk_bytes_, read.bytes_ - offset);
    void *descriptor = nullptr;
    std::byte *buffer = read.buffer(offset, bytes, &descriptor);
    if (buffer == nullptr) {
        return false;
    }
    if (free_.empty()) {
        chunks_.push_back(std::make_unique<Chunk>());
        chunks_.back()->reads = this;
        free_.push_back(chunks_.back().get());
    }
    Chunk &chunk = *free_.back();
    if (!queue.from->endpoint->read(queue.from->address, buffer, bytes, descriptor, read.address_ + offset, read.key_,
                                    chunk)) {
        read.unused(buffer);
        must_retry_ = queue.from->may_retry() || must_retry_;
        return false;
    }
    free_.pop_back();
    chunk.read = queue.reads.front();
    chunk.queue = &queue;
    ++queue.in_flight;
    chunk.buffer = buffer;
    chunk.offset = offset;
    chunk.bytes = bytes;
    read.requested_ += bytes;
    ++read.in_flight_;
    ++in_flight_;
    return true;
}

void RmaReads::completed(Chunk &chunk, const std::string &error) {
    const std::shared_ptr<ChunkedRead> read = std::move(chunk.read);
    --in_flight_;
    --chunk.queue->in_flight;
    --read->in_flight_;
    free_.push_back(&chunk);
    if (error.empty()) {
        read->arrived(chunk.buffer, chunk.offset, chunk.bytes);
    } else {
        read->unused(chunk.buffer);
        read->requested_ = read->bytes_;
        read->from().mark_lost(formatted("a read of its memory failed ({})", error));
    }
    if (read->in_flight_ == 0 && read->requested_ == read->bytes_) {
        read->finished();
    }
}

}  // namespace odc
