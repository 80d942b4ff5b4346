// SPDX-License-Identifier: Apache-2.0
// Pipelined RMA reads from many peers: in chunks, several in flight. Those that somebody waits for go first, in order for each peer,
// then those ahead in their own order.
#pragma once

#include "transport/fabric/remote_rank.h"
#include "transport/transport.h"

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
    ChunkedRead(RemoteRank &from, uint64_t address, uint64_t key, uint64_t bytes, const ReadAhead &ahead = {})
        : from_(from), address_(address), key_(key), bytes_(bytes), ahead_(ahead) {}
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
    ReadAhead ahead_;
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
    // Looks for reads that were ahead and are wanted by now.
    void move_wanted();
    // Posts reads while the window and the provider allow it; true if it posted any.
    bool pump();
    // The provider had no room (FI_EAGAIN), and does not tell when it has: call pump() again soon.
    bool must_retry() const { return must_retry_; }
    bool in_flight() const { return in_flight_ > 0; }
    // Posts nothing more; drops reads that are not posted as a whole, and finishes later ones at once.
    void stop();

private:
    struct Chunk;
    using Queue = std::deque<std::shared_ptr<ChunkedRead>>;
    struct PeerQueues {
        RemoteRank *from;
        Queue wanted;  // in order of their start, or of when they were seen to be wanted
        Queue ahead;   // in their own order
        unsigned in_flight = 0;
    };
    static void drop_ended(const PeerQueues &peer, Queue &queue);
    // Posts chunks of the first reads of this kind of queue, while fewer than `window` are in flight: reads ahead leave some of it to
    // what is wanted next.
    bool post(Queue PeerQueues::*kind, unsigned window);
    unsigned most_per_peer(Queue PeerQueues::*kind, unsigned window) const;
    bool post_chunk(PeerQueues &peer, const std::shared_ptr<ChunkedRead> &read);
    void completed(Chunk &chunk, const std::string &error);

    unsigned window_;
    size_t chunk_bytes_;
    std::vector<std::unique_ptr<PeerQueues>> peers_;  // in the order of their first reads
    std::unordered_map<RemoteRank *, PeerQueues *> queues_of_;
    size_t turn_ = 0;
    unsigned in_flight_ = 0;
    bool must_retry_ = false;
    bool stopped_ = false;
    std::vector<std::unique_ptr<Chunk>> chunks_;
    std::vector<Chunk *> free_;
};

}  // namespace odc
