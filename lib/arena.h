// SPDX-License-Identifier: Apache-2.0
// One rank's shared memory: a sealed, anonymous, sparse file that its peers map piece by piece. The file is handed
// over once, in odc_init, so registering a shard needs no peer's help and no further descriptor.
#pragma once

#include "fd.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace odc {

// A piece of the file that is mapped as a whole.
struct Segment {
    uint64_t offset;
    uint64_t bytes;
};

// A reference, stored in shared memory, to something in the same rank's arena.
struct Link {
    Segment segment;
    std::atomic<uint64_t> offset;  // in the file; 0: none. Written last, with release.
};

struct Allocation {
    Segment segment;
    uint64_t offset;  // in the file
    uint64_t bytes;
    std::byte *start;
};

class Mapping;

class Arena {
public:
    // Both map the first segment, which begins with the rank's block.
    static std::unique_ptr<Arena> create();
    static std::unique_ptr<Arena> open(Fd fd);

    // Zeroed memory, aligned to 64 bytes, whose pages are there when this returns (ODC_ERROR_NO_MEMORY otherwise).
    // For the owner only; calls must not overlap.
    Allocation allocate(uint64_t bytes);
    // Returns whole pages of an allocation to the system. Peers that still map them read zeros.
    void give_back(const Allocation &allocation);

    // The address here of a place in the file. Safe from several threads.
    std::byte *at(const Segment &segment, uint64_t offset);
    std::byte *start() { return start_; }
    // Keeps the first segment mapped for longer than the arena.
    std::shared_ptr<Mapping> hold() { return mappings_.at(0); }
    int fd() const { return fd_.get(); }

private:
    Arena(Fd fd, uint64_t file_bytes);
    std::byte *map(const Segment &segment);
    void commit(uint64_t offset, uint64_t bytes);
    void use_large_pages(uint64_t begin, uint64_t end);

    Fd fd_;
    uint64_t file_bytes_;
    uint64_t device_;
    uint64_t inode_;
    std::byte *start_ = nullptr;
    Segment current_{};       // the owner's segment with room left
    uint64_t next_ = 0;       // first free offset in it
    uint64_t committed_ = 0;  // offsets below, in the current segment, have their pages
    std::mutex mutex_;
    std::map<uint64_t, std::shared_ptr<Mapping>> mappings_;  // by segment offset
};

}  // namespace odc
