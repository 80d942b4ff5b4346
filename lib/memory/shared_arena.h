// SPDX-License-Identifier: Apache-2.0
// One rank's shared memory: a sealed, sparse memfd that its peers map in segments. It is passed to them once, in odc_init, so
// registering a shard takes no further descriptor and nothing from a peer.
//
// It begins with the records (the control block, then a record per shard), which stay mapped; the slices follow.
#pragma once

#include "base/fd.h"
#include "memory/free_ranges.h"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace odc {

// The first records have a small mapping of their own, because every rank maps those of all others in odc_init.
constexpr uint64_t kFirstRecordBytes = uint64_t{64} << 10;

// Ranks that are threads of one process share a mapping, which saves address space and lets race detectors see their accesses.
// Forked children do not inherit it.
class Mapping {
public:
    Mapping(int fd, const Segment &segment);
    ~Mapping();
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    std::byte *start() const { return start_; }

private:
    std::byte *start_;
    uint64_t bytes_;
    pid_t pid_;
};

// Memory for slices; mapped at `start`, unless it has no bytes, until it is freed.
struct Allocation {
    Segment segment;
    uint64_t offset;  // in the file
    uint64_t bytes;
    std::byte *start;
};

class Arena {
public:
    // Both map the first records.
    static std::unique_ptr<Arena> create();
    static std::unique_ptr<Arena> open(Fd fd);

    // For the owner only, from one thread at a time. Memory is aligned to 64 bytes and committed (ODC_ERROR_NO_MEMORY if that
    // fails).
    // Allocates zeroed memory in parts that are freed one by one; a part of 0 bytes gets no memory.
    std::vector<Allocation> allocate(const std::vector<uint64_t> &sizes);
    // Returns pages without allocations to the system.
    void free(const Allocation &allocation);
    // Returns the record's offset in the file; its memory is zero the first time. The space of a freed record is only reused
    // for records of the same size, so that a peer that still looks at it sees a valid record, if another shard's.
    uint64_t allocate_record(uint64_t bytes);
    void free_record(uint64_t offset, uint64_t bytes);

    // Thread-safe, as are map and unmap. The address of a record in this process.
    std::byte *record(uint64_t offset);
    // Maps a segment of slices until unmap has been called as often.
    std::byte *map(const Segment &segment);
    void unmap(const std::byte *start);

    // Keeps the first records mapped for longer than the arena.
    std::shared_ptr<Mapping> hold() { return records_.at(0); }
    int fd() const { return fd_.get(); }

private:
    struct Use {
        std::shared_ptr<Mapping> mapping;
        uint64_t users;
    };

    explicit Arena(Fd fd);
    std::shared_ptr<Mapping> get(const Segment &segment);
    void commit(Range range);
    Range give_back(const Allocation &allocation);
    FreeRanges::Taken take(uint64_t bytes);

    Fd fd_;
    uint64_t file_bytes_;
    uint64_t record_bytes_;  // where slices begin in the file
    uint64_t device_;
    uint64_t inode_;

    std::mutex mutex_;
    std::map<uint64_t, std::shared_ptr<Mapping>> records_;  // by offset
    std::map<uint64_t, Use> slices_;                        // by offset of the segment

    uint64_t next_record_ = 0;
    std::map<uint64_t, std::vector<uint64_t>> free_records_;  // by size
    uint64_t next_segment_;
    FreeRanges free_;  // of slices; zeroed, whole pages returned to the system
};

}  // namespace odc
