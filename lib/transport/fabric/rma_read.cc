// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/rma_read.h"

#include <algorithm>

#include "base/error.h"

namespace odc {

struct RmaReads::Chunk final : OperationContext {
    RmaReads *reads;
    PeerQueues *peer;
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
    PeerQueues *&peer = queues_of_[&read->from()];
    if (peer == nullptr) {
        peers_.push_back(std::make_unique<PeerQueues>(PeerQueues{&read->from(), {}, {}, 0}));
        peer = peers_.back().get();
    }
    if (read->ahead_.is_wanted()) {
        peer->wanted.push_back(std::move(read));
        return;
    }
    const auto goes_before = [](uint64_t order, const std::shared_ptr<ChunkedRead> &other) {
        return order < other->ahead_.order;
    };
    const auto place = std::upper_bound(peer->ahead.begin(), peer->ahead.end(), read->ahead_.order, goes_before);
    peer->ahead.insert(place, std::move(read));
}

void RmaReads::stop() {
    stopped_ = true;
    for (const auto &peer : peers_) {
        peer->wanted.clear();
        peer->ahead.clear();
    }
}

// Drops the first reads if they post no more chunks.
void RmaReads::drop_ended(const PeerQueues &peer, Queue &queue) {
    while (!queue.empty() && (peer.from->gone || queue.front()->requested_ == queue.front()->bytes_)) {
        const std::shared_ptr<ChunkedRead> read = std::move(queue.front());
        queue.pop_front();
        read->stop();
    }
}

void RmaReads::move_wanted() {
    for (const auto &peer : peers_) {
        Queue &ahead = peer->ahead;
        // Drops reads that are requested as a whole first: the word that says whether they are wanted may be unmapped.
        std::erase_if(ahead, [](const auto &read) { return read->requested_ == read->bytes_; });
        const auto first = std::stable_partition(ahead.begin(), ahead.end(),
                                                 [](const auto &read) { return !read->ahead_.is_wanted(); });
        peer->wanted.insert(peer->wanted.end(), first, ahead.end());
        ahead.erase(first, ahead.end());
    }
}

bool RmaReads::pump() {
    must_retry_ = false;
    if (in_flight_ == window_) {
        return false;
    }
    bool any_wanted = false;
    for (const auto &peer : peers_) {
        drop_ended(*peer, peer->wanted);
        any_wanted = any_wanted || !peer->wanted.empty();
    }
    return any_wanted ? post(&PeerQueues::wanted, window_) : post(&PeerQueues::ahead, window_ - window_ / 4);
}

// Takes turns among peers, so that all get their share of buffers and of the provider's room.
bool RmaReads::post(Queue PeerQueues::*kind, unsigned window) {
    bool any = false;
    const unsigned most = most_per_peer(kind, window);
    for (size_t idle = 0; idle < peers_.size() && in_flight_ < window;) {
        turn_ = (turn_ + 1) % peers_.size();
        PeerQueues &peer = *peers_[turn_];
        Queue &queue = peer.*kind;
        drop_ended(peer, queue);
        if (!queue.empty() && peer.in_flight < most && post_chunk(peer, queue.front())) {
            any = true;
            idle = 0;
        } else {
            ++idle;
        }
    }
    return any;
}

// Limits each peer, so that of several none that does not answer can occupy the whole window.
unsigned RmaReads::most_per_peer(Queue PeerQueues::*kind, unsigned window) const {
    const auto busy = static_cast<unsigned>(
        std::count_if(peers_.begin(), peers_.end(), [kind](const auto &peer) { return !((*peer).*kind).empty(); }));
    return busy == 0 ? window : (window + busy - 1) / busy;
}

bool RmaReads::post_chunk(PeerQueues &peer, const std::shared_ptr<ChunkedRead> &read) {
    const uint64_t offset = read->requested_;
    const size_t bytes = std::min<uint64_t>(chunk_bytes_, read->bytes_ - offset);
    void *descriptor = nullptr;
    std::byte *buffer = read->buffer(offset, bytes, &descriptor);
    if (buffer == nullptr) {
        return false;
    }
    if (free_.empty()) {
        chunks_.push_back(std::make_unique<Chunk>());
        chunks_.back()->reads = this;
        free_.push_back(chunks_.back().get());
    }
    Chunk &chunk = *free_.back();
    if (!peer.from->endpoint->read(peer.from->address, buffer, bytes, descriptor, read->address_ + offset, read->key_,
                                   chunk)) {
        read->unused(buffer);
        must_retry_ = peer.from->may_retry() || must_retry_;
        return false;
    }
    free_.pop_back();
    chunk.read = read;
    chunk.peer = &peer;
    ++peer.in_flight;
    chunk.buffer = buffer;
    chunk.offset = offset;
    chunk.bytes = bytes;
    read->requested_ += bytes;
    ++read->in_flight_;
    ++in_flight_;
    return true;
}

void RmaReads::completed(Chunk &chunk, const std::string &error) {
    const std::shared_ptr<ChunkedRead> read = std::move(chunk.read);
    --in_flight_;
    --chunk.peer->in_flight;
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
