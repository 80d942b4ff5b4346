// SPDX-License-Identifier: Apache-2.0
// Remote reads in chunks: many on their way at once, from many owners, in the order in which they were asked for.
#pragma once

#include "transport/fabric/remote_rank.h"

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace odc {

// By measurement: 512 KiB, and eight of them, were the best over two and four hosts joined by plain TCP.
constexpr size_t kChunkBytes = kMostBytes;

// A stretch of a peer's memory that is read once, front to back.
class Flow {
public:
    Flow(RemoteRank &from, uint64_t address, uint64_t key, uint64_t bytes)
        : from_(from), address_(address), key_(key), bytes_(bytes) {}
    virtual ~Flow() = default;

    RemoteRank &from() { return from_; }
    uint64_t bytes() const { return bytes_; }
    // No further chunk is asked for; it ends when those on their way have landed.
    void stop();

    // Where a chunk goes, and its descriptor if the endpoint needs one. NULL: no room now.
    virtual std::byte *target(uint64_t offset, size_t bytes, void **descriptor) = 0;
    virtual void landed(std::byte *target, uint64_t offset, size_t bytes) = 0;
    // Nothing has come to `target` after all.
    virtual void returned(std::byte *target) = 0;
    // Nothing is on its way any more, and no chunk will be asked for.
    virtual void ended() = 0;

private:
    friend class RmaReads;
    RemoteRank &from_;
    uint64_t address_;
    uint64_t key_;
    uint64_t bytes_;
    uint64_t asked_ = 0;
    unsigned flying_ = 0;
};

class RmaReads {
public:
    // At most `window` chunks of `chunk_bytes` are on their way, from all peers together.
    RmaReads(unsigned window, size_t chunk_bytes);
    ~RmaReads();
    RmaReads(const RmaReads &) = delete;
    RmaReads &operator=(const RmaReads &) = delete;

    void start(std::shared_ptr<Flow> flow);
    // Starts what there is room for; true if anything was started.
    bool pump();
    // Whether something waits for room at the provider, which tells nobody when there is some.
    bool refused() const { return refused_; }
    bool in_flight() const { return flying_ > 0; }
    // Starts nothing more: what is yet to be started ends at once.
    void stop();

private:
    struct Chunk;
    struct Lane {
        RemoteRank *from;
        std::deque<std::shared_ptr<Flow>> flows;
        unsigned in_flight = 0;
    };
    // Starts one chunk of the lane's first flow, unless the peer has `most` on their way.
    bool pump(Lane &lane, unsigned most);
    unsigned share() const;
    bool start_chunk(Lane &lane, Flow &flow);
    void completed(Chunk &chunk, const std::string &error);

    unsigned window_;
    size_t chunk_bytes_;
    std::vector<std::unique_ptr<Lane>> lanes_;  // one a peer, in the order of their first flows
    std::unordered_map<RemoteRank *, Lane *> lane_of_;
    size_t turn_ = 0;
    unsigned flying_ = 0;
    bool refused_ = false;
    bool stopped_ = false;
    std::vector<std::unique_ptr<Chunk>> chunks_;
    std::vector<Chunk *> free_;
};

}  // namespace odc
