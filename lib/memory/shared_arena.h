// SPDX-License-Identifier: Apache-2.0
// One rank's shared memory: a sealed, anonymous, sparse file that its peers map piece by piece. The file is handed
// over once, in odc_init, so registering a shard needs no peer's help and no further descriptor.
//
// It begins with the records (the rank's block, then one post per shard), which stay mapped; the slices follow.
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

// The first records have a mapping of their own, because each rank maps those of all others in odc_init.
constexpr uint64_t kFirstRecordBytes = uint64_t{64} << 10;

// Ranks that are threads of one process share one mapping: their accesses then meet at one address, which saves
// address space and is what a race detector can see. Forked children do not inherit it.
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

// Memory for slices. `start`, if there are any bytes, stays mapped until the allocation is freed.
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

    // For the owner only, calls must not overlap. Memory is aligned to 64 bytes, and its pages are there when these
    // return (ODC_ERROR_NO_MEMORY otherwise). Slices begin as zeros.
    // One region, in parts that are freed one by one; a part of no bytes has no memory.
    std::vector<Allocation> allocate(const std::vector<uint64_t> &sizes);
    // Pages that are free as a whole go back to the system.
    void free(const Allocation &allocation);
    // Offset of a record in the file, zeroed when it is new. A freed record's place is given to records of the same
    // size only, so that who still looks at it sees a record, if another's.
    uint64_t allocate_record(uint64_t bytes);
    void free_record(uint64_t offset, uint64_t bytes);

    // These are safe from several threads. The address here of a record.
    std::byte *record(uint64_t offset);
    // Maps a segment of slices, until unmap has been called as often.
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
    uint64_t record_bytes_;  // of the file; slices lie above
    uint64_t device_;
    uint64_t inode_;

    std::mutex mutex_;
    std::map<uint64_t, std::shared_ptr<Mapping>> records_;  // by offset
    std::map<uint64_t, Use> slices_;                        // by offset of the segment

    uint64_t next_record_ = 0;
    std::map<uint64_t, std::vector<uint64_t>> free_records_;  // by size
    uint64_t next_segment_;
    FreeRanges free_;  // slices: zeroed, whole pages given back
};

}  // namespace odc
