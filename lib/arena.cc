// SPDX-License-Identifier: Apache-2.0
#include "arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <tuple>

#include "status.h"
#include "topology.h"

namespace odc {

namespace {

constexpr uint64_t kFileBytes = uint64_t{1} << 60;      // sparse: only allocated pages take memory
constexpr uint64_t kSegmentBytes = uint64_t{16} << 20;  // shards smaller than this share a mapping
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kPage = 4096;  // smallest; larger pages only round further
constexpr uint64_t kLargePage = uint64_t{2} << 20;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

// Ranks that are threads of one process share one mapping: their accesses then meet at one address, which saves
// address space and is what a race detector can see.
class Mapping {
public:
    using Key = std::tuple<uint64_t, uint64_t, uint64_t>;  // device, inode, offset

    static std::shared_ptr<Mapping> get(const Key &key, int fd, const Segment &segment) {
        static std::mutex mutex;
        static std::map<Key, std::weak_ptr<Mapping>> all;
        const std::lock_guard lock(mutex);
        std::erase_if(all, [](const auto &entry) { return entry.second.expired(); });
        if (auto known = all[key].lock()) {
            return known;
        }
        auto made = std::make_shared<Mapping>(fd, segment);
        all[key] = made;
        return made;
    }

    Mapping(int fd, const Segment &segment) : bytes_(segment.bytes) {
        // Addresses for one large page more, so that the segment can begin at one.
        void *room = mmap(nullptr, bytes_ + kLargePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (room == MAP_FAILED) {
            fail_errno(say("mmap of ", bytes_, " bytes of addresses"));
        }
        const auto begin = reinterpret_cast<uintptr_t>(room);
        const uintptr_t aligned = round_up(begin, kLargePage);
        if (aligned > begin) {
            munmap(room, aligned - begin);
        }
        if (begin + kLargePage > aligned) {
            munmap(reinterpret_cast<void *>(aligned + bytes_), begin + kLargePage - aligned);
        }
        void *start = mmap(reinterpret_cast<void *>(aligned), bytes_, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, static_cast<off_t>(segment.offset));
        if (start == MAP_FAILED) {
            fail_errno(say("mmap of ", bytes_, " bytes of shared memory"));
        }
        start_ = static_cast<std::byte *>(start);
    }
    ~Mapping() { munmap(start_, bytes_); }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;

    std::byte *start() const { return start_; }

private:
    std::byte *start_;
    uint64_t bytes_;
};

Arena::Arena(Fd fd, uint64_t file_bytes) : fd_(std::move(fd)), file_bytes_(file_bytes) {
    struct stat status {};
    if (fstat(fd_.get(), &status) != 0) {
        fail_errno("fstat of shared memory");
    }
    device_ = status.st_dev;
    inode_ = status.st_ino;
}

std::unique_ptr<Arena> Arena::create() {
    Fd fd(memfd_create("odc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) {
        fail_errno("memfd_create for this rank's shared memory");
    }
    // Growing past the limit would raise SIGXFSZ.
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    const uint64_t bytes = std::min<uint64_t>(kFileBytes, limit.rlim_cur) / kPage * kPage;
    if (bytes < kSegmentBytes) {
        fail(ODC_ERROR_SYSTEM, "shared memory needs files of ", kSegmentBytes, " bytes at least, but RLIMIT_FSIZE is ",
             limit.rlim_cur, "; raise it (ulimit -f)");
    }
    if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
        fail_errno("ftruncate of shared memory");
    }
    if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        fail_errno("sealing of shared memory");
    }
    std::unique_ptr<Arena> arena(new Arena(std::move(fd), bytes));
    arena->current_ = {0, kSegmentBytes};
    arena->start_ = arena->map(arena->current_);
    return arena;
}

std::unique_ptr<Arena> Arena::open(Fd fd) {
    std::unique_ptr<Arena> arena(new Arena(std::move(fd), 0));
    arena->start_ = arena->map({0, kSegmentBytes});
    return arena;
}

std::byte *Arena::map(const Segment &segment) {
    const std::lock_guard lock(mutex_);
    auto &mapping = mappings_[segment.offset];
    if (!mapping) {
        mapping = Mapping::get({device_, inode_, segment.offset}, fd_.get(), segment);
    }
    return mapping->start();
}

std::byte *Arena::at(const Segment &segment, uint64_t offset) { return map(segment) + (offset - segment.offset); }

// fallocate gives up all its work when a signal comes, so it is asked for in pieces; before each, another look at what is
// left, because the host's other ranks take memory at the same time.
void Arena::commit(uint64_t offset, uint64_t bytes) {
    constexpr uint64_t kPiece = uint64_t{64} << 20;
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t piece = std::min(kPiece, bytes - done);
        const uint64_t available = available_memory();
        int error = ENOMEM;
        if (piece <= available) {
            error =
                fallocate(fd_.get(), 0, static_cast<off_t>(offset + done), static_cast<off_t>(piece)) == 0 ? 0 : errno;
        }
        if (error == 0) {
            done += piece;
        } else if (error != EINTR) {
            if (done > 0) {
                fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                          static_cast<off_t>(done));
            }
            if (error == ENOMEM || error == ENOSPC) {
                fail(ODC_ERROR_NO_MEMORY, "this rank's slices need ", bytes, " bytes, but after ", done,
                     " of them only ", available,
                     " bytes of memory are available; shard over more ranks or use a smaller type");
            }
            errno = error;
            fail_errno(say("fallocate of ", bytes, " bytes of shared memory"));
        }
    }
}

// Additions are bound by the translation of addresses as much as by memory: with large pages they run 1.1 (f32) to 1.35
// (bf16) times as fast here. A kernel that cannot (before 6.1, or a larger basic page) leaves the pages as they are.
void Arena::use_large_pages(uint64_t begin, uint64_t end) {
    constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
    begin = round_up(begin, kLargePage);
    end = end / kLargePage * kLargePage;
    if (end > begin) {
        madvise(at(current_, begin), end - begin, kCollapse);
    }
}

Allocation Arena::allocate(uint64_t bytes) {
    const uint64_t available = available_memory();
    if (bytes > available) {
        fail(ODC_ERROR_NO_MEMORY, "this rank's slices need ", bytes, " bytes, but only ", available,
             " bytes of memory are available; shard over more ranks or use a smaller type");
    }
    const uint64_t needed = round_up(std::max<uint64_t>(bytes, 1), kAlignment);
    if (next_ + needed > current_.offset + current_.bytes) {
        const uint64_t offset = current_.offset + current_.bytes;
        const uint64_t segment_bytes = round_up(std::max(needed, kSegmentBytes), kLargePage);
        if (segment_bytes > file_bytes_ - offset) {
            fail(ODC_ERROR_NO_MEMORY, "this rank's shared memory has used up its ", file_bytes_,
                 " bytes of addresses (RLIMIT_FSIZE limits them)");
        }
        const Segment fresh{offset, segment_bytes};
        map(fresh);
        current_ = fresh;
        next_ = committed_ = offset;
    }
    const Allocation made{current_, next_, needed, at(current_, next_)};
    const uint64_t end = round_up(next_ + needed, kPage);
    if (end > committed_) {
        place_near(at(current_, committed_), end - committed_);
        commit(committed_, end - committed_);
        use_large_pages(committed_, end);
        committed_ = end;
    }
    next_ += needed;
    return made;
}

void Arena::give_back(const Allocation &allocation) {
    const uint64_t begin = round_up(allocation.offset, kPage);
    const uint64_t end = (allocation.offset + allocation.bytes) / kPage * kPage;
    if (end > begin) {
        fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                  static_cast<off_t>(end - begin));
    }
}

}  // namespace odc
