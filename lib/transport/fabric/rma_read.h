// SPDX-License-Identifier: Apache-2.0
// Pipelined RMA reads from many peers: in chunks, several in flight, in order of their start for each peer.
#pragma once

#include "transport/fabric/remote_rank.h"

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace odc {

// 512 KiB, and eight chunks in flight, were the fastest between two and four hosts over plain TCP.
constexpr size_t kChunkBytes = kMaxReadBytes;

// The read of a range of a peer's memory.
class ChunkedRead {
public:
    ChunkedRead(RemoteRank &from, uint64_t address, uint64_t key, uint64_t bytes)
        : from_(from), address_(address), key_(key), bytes_(bytes) {}
    virtual ~ChunkedRead() = default;

    RemoteRank &from() { return from_; }
    uint64_t bytes() const { return bytes_; }
    // Reads no further chunks; the read finishes when those in flight have arrived.
    void stop();

    // The destination of a chunk, and its descriptor if the endpoint needs one. NULL if there is none now.
    virtual std::byte *buffer(uint64_t offset, size_t bytes, void **descriptor) = 0;
    virtual void arrived(std::byte *buffer, uint64_t offset, size_t bytes) = 0;
    // Nothing was read into the buffer.
    virtual void unused(std::byte *buffer) = 0;
    // No chunk is in flight, and no further one will be.
    virtual void finished() = 0;

private:
    friend class RmaReads;
    RemoteRank &from_;
    uint64_t address_;
    uint64_t key_;
    uint64_t bytes_;
    uint64_t requested_ = 0;
    unsigned in_flight_ = 0;
};

class RmaReads {
public:
    // At most `window` chunks of `chunk_bytes` are in flight, from all peers together.
    RmaReads(unsigned window, size_t chunk_bytes);
    ~RmaReads();
    RmaReads(const RmaReads &) = delete;
    RmaReads &operator=(const RmaReads &) = delete;

    void start(std::shared_ptr<ChunkedRead> read);
    // Posts reads while the window and the provider allow it; true if it posted any.
    bool pump();
    // The provider had no room (FI_EAGAIN), and does not tell when it has: call pump() again soon.
    bool must_retry() const { return must_retry_; }
    bool in_flight() const { return in_flight_ > 0; }
    // Posts nothing more; drops reads that are not posted as a whole, and finishes later ones at once.
    void stop();

private:
    struct Chunk;
    struct PeerQueue {
        RemoteRank *from;
        std::deque<std::shared_ptr<ChunkedRead>> reads;
        unsigned in_flight = 0;
    };
    // Posts one chunk of the queue's first read, unless the peer has `most` chunks in flight.
    bool pump(PeerQueue &queue, unsigned most);
    unsigned most_per_peer() const;
    bool post_chunk(PeerQueue &queue, ChunkedRead &read);
    void completed(Chunk &chunk, const std::string &error);

    unsigned window_;
    size_t chunk_bytes_;
    std::vector<std::unique_ptr<PeerQueue>> queues_;  // in the order of their first reads
    std::unordered_map<RemoteRank *, PeerQueue *> queue_of_;
    size_t turn_ = 0;
    unsigned in_flight_ = 0;
    bool must_retry_ = false;
    bool stopped_ = false;
    std::vector<std::unique_ptr<Chunk>> chunks_;
    std::vector<Chunk *> free_;
};

}  // namespace odc
