// SPDX-License-Identifier: Apache-2.0
#include "memory/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>

#include "base/deadline.h"
#include "base/error.h"
#include "base/fork_gate.h"
#include "memory/memory_lock.h"
#include "topology/host.h"

namespace odc {

namespace {

constexpr uint64_t kFileBytes = uint64_t{1} << 60;      // sparse: only allocated pages take memory
constexpr uint64_t kRecordBytes = uint64_t{1} << 36;    // of records, at most
constexpr uint64_t kSegmentBytes = uint64_t{16} << 20;  // records, and slices smaller than this, share a mapping
// By which peers find the mapping that a record lies in: pinned as in bootstrap/shared_layouts.cc.
static_assert(kSegmentBytes == 16777216);
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kPage = 4096;  // the smallest; with larger pages the kernel rounds further
constexpr uint64_t kLargePage = uint64_t{2} << 20;
constexpr uint64_t kPieceBytes = uint64_t{64} << 20;  // committed at a time
// With this much left after a piece, ranks may commit pieces at the same time without the lock.
constexpr uint64_t kAmpleBytes = 64 * kPieceBytes;
// Left for other allocations in the control group.
constexpr uint64_t kReserveBytes = uint64_t{4} << 20;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
uint64_t round_down(uint64_t value, uint64_t unit) { return value / unit * unit; }

Segment record_segment(uint64_t offset) {
    const uint64_t begin =
        offset < kFirstRecordBytes ? 0 : std::max(round_down(offset, kSegmentBytes), kFirstRecordBytes);
    return {begin, begin == 0 ? kFirstRecordBytes : round_up(begin + 1, kSegmentBytes) - begin};
}

// The process's one mapping of a segment of a file.
std::shared_ptr<Mapping> share(uint64_t device, uint64_t inode, int fd, const Segment &segment) {
    static std::mutex mutex;
    const ProcessLock lock(mutex);
    static auto &all = *new std::map<std::tuple<uint64_t, uint64_t, uint64_t>, std::weak_ptr<Mapping>>;
    static size_t sweep_at = 64;
    if (all.size() >= sweep_at) {
        std::erase_if(all, [](const auto &entry) { return entry.second.expired(); });
        sweep_at = std::max<size_t>(64, 2 * all.size());
    }
    auto &known = all[{device, inode, segment.offset}];
    auto mapping = known.lock();
    if (!mapping) {
        mapping = std::make_shared<Mapping>(fd, segment);
        known = mapping;
    }
    return mapping;
}

// Additions are bound by TLB misses as much as by memory: with large pages they are 1.1 (f32) to 1.35 (bf16) times as fast.
// Kernels before 6.1, or with a larger base page, leave the pages as they are.
void use_large_pages(std::byte *base, const Allocation &made) {
    constexpr int kCollapse = 25;  // MADV_COLLAPSE, missing in older headers
    const uint64_t begin = round_up(made.offset, kLargePage);
    const uint64_t end = round_down(made.offset + made.bytes, kLargePage);
    if (end > begin) {
        madvise(base + (begin - made.segment.offset), end - begin, kCollapse);
    }
}

[[noreturn]] void fail_without_memory(uint64_t bytes, uint64_t done) {
    fail(ODC_ERROR_NO_MEMORY,
         "this rank's shared memory needs {} bytes, but {}only {} bytes of memory are available; shard over more "
         "ranks or use a smaller type",
         bytes, done > 0 ? formatted("after {} of them ", done) : "", available_memory());
}

// Checking the available memory takes 0.2 ms, as the kernel formats several files. So allocations of this process share one
// check until they have taken this part of what it left: few enough bytes if hundreds of ranks do so at once; and where
// memory is not ample, of 32 ranks no more than the reserve.
constexpr uint64_t kSharedCheckPart = 1024;
constexpr uint64_t kMostSharedBytes = kReserveBytes / 32;
constexpr int64_t kSharedCheckNs =
    100'000'000;  // where memory is ample, as others take more than the reserve meanwhile
constinit std::atomic<uint64_t> left_of_last_check = 0;
constinit std::atomic<int64_t> last_check_ns = 0;
constinit std::atomic<bool> was_ample = true;  // at the last check, so the next one is made without the lock

bool last_check_covers(uint64_t bytes) {
    if (was_ample.load(std::memory_order_relaxed) &&
        now_ns() - last_check_ns.load(std::memory_order_relaxed) > kSharedCheckNs) {
        return false;
    }
    uint64_t left = left_of_last_check.load(std::memory_order_relaxed);
    while (left >= bytes) {
        if (left_of_last_check.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

// `most`: of the bytes that later allocations may take without a check of their own.
void share_check(uint64_t left, uint64_t most) {
    last_check_ns.store(now_ns(), std::memory_order_relaxed);
    left_of_last_check.store(std::min(left / kSharedCheckPart, most), std::memory_order_relaxed);
}

// Returns the available memory; takes the lock unless that is ample for `bytes`, and gives it back if it is.
uint64_t check_available(uint64_t bytes, std::optional<MemoryLock> &lock) {
    if (!lock && !was_ample.load(std::memory_order_relaxed)) {
        lock.emplace();
    }
    for (;;) {
        const uint64_t available = available_memory();
        const bool is_ample = available >= kAmpleBytes && available - kAmpleBytes >= bytes;
        was_ample.store(is_ample, std::memory_order_relaxed);
        if (is_ample) {
            lock.reset();
        }
        if (is_ample || lock) {
            return available;
        }
        lock.emplace();
    }
}

[[noreturn]] void fail_mapping(uint64_t bytes) {
    fail_errno(formatted("mmap of {} bytes of shared memory{}", bytes,
                         errno == ENOMEM ? " (see vm.max_map_count and ulimit -v)" : ""));
}

// Reserves addresses that begin at a large page's boundary.
void *reserve_aligned(uint64_t bytes) {
    void *room = mmap(nullptr, bytes + kLargePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        fail_mapping(bytes);
    }
    const auto begin = reinterpret_cast<uintptr_t>(room);
    const uintptr_t aligned = round_up(begin, kLargePage);
    if (aligned > begin) {
        munmap(room, aligned - begin);
    }
    if (begin + kLargePage > aligned) {
        munmap(reinterpret_cast<void *>(aligned + bytes), begin + kLargePage - aligned);
    }
    return reinterpret_cast<void *>(aligned);
}

}  // namespace

Mapping::Mapping(int fd, const Segment &segment) : bytes_(segment.bytes), pid_(getpid()) {
    const bool has_large_pages = segment.offset % kLargePage == 0 && bytes_ >= kLargePage;
    void *at = has_large_pages ? reserve_aligned(bytes_) : nullptr;
    void *start = mmap(at, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0),
                       fd, static_cast<off_t>(segment.offset));
    if (start == MAP_FAILED) {
        if (at != nullptr) {
            const int error = errno;
            munmap(at, bytes_);
            errno = error;
        }
        fail_mapping(bytes_);
    }
    start_ = static_cast<std::byte *>(start);
    madvise(start, bytes_, MADV_DONTFORK);  // or a child that outlives the ranks would hold their memory
}

Mapping::~Mapping() {
    if (getpid() == pid_) {  // in a forked child something else may be mapped there
        munmap(start_, bytes_);
    }
}

Arena::Arena(Fd fd) : fd_(std::move(fd)) {
    struct stat status {};
    if (fstat(fd_.get(), &status) != 0) {
        fail_errno("fstat of shared memory");
    }
    device_ = status.st_dev;
    inode_ = status.st_ino;
    file_bytes_ = static_cast<uint64_t>(status.st_size);
    record_bytes_ = std::clamp(round_down(file_bytes_ / 16, kSegmentBytes), kSegmentBytes, kRecordBytes);
    next_segment_ = record_bytes_;
    record(0);
}

std::unique_ptr<Arena> Arena::create() {
    Fd fd(memfd_create("odc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) {
        fail_errno("memfd_create for this rank's shared memory");
    }
    // Growing past the limit would raise SIGXFSZ.
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    const uint64_t bytes = round_down(std::min<uint64_t>(kFileBytes, limit.rlim_cur), kPage);
    if (bytes < 2 * kSegmentBytes) {
        fail(ODC_ERROR_SYSTEM,
             "shared memory needs files of {} bytes at least, but RLIMIT_FSIZE is {}; raise it (ulimit -f)",
             2 * kSegmentBytes, limit.rlim_cur);
    }
    if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
        fail_errno("ftruncate of shared memory");
    }
    if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        fail_errno("sealing of shared memory");
    }
    return std::unique_ptr<Arena>(new Arena(std::move(fd)));
}

std::unique_ptr<Arena> Arena::open(Fd fd) { return std::unique_ptr<Arena>(new Arena(std::move(fd))); }

std::shared_ptr<Mapping> Arena::get(const Segment &segment) { return share(device_, inode_, fd_.get(), segment); }

std::byte *Arena::record(uint64_t offset) {
    const Segment segment = record_segment(offset);
    const std::lock_guard lock(mutex_);
    auto &mapping = records_[segment.offset];
    if (!mapping) {
        mapping = get(segment);
    }
    return mapping->start() + (offset - segment.offset);
}

std::byte *Arena::map(const Segment &segment) {
    const std::lock_guard lock(mutex_);
    auto use = slices_.find(segment.offset);
    if (use == slices_.end()) {
        use = slices_.emplace(segment.offset, Use{get(segment), 0}).first;
    }
    ++use->second.users;
    return use->second.mapping->start();
}

void Arena::unmap(const std::byte *start) {
    const std::lock_guard lock(mutex_);
    for (auto one = slices_.begin(); one != slices_.end(); ++one) {
        if (one->second.mapping->start() == start) {
            if (--one->second.users == 0) {
                slices_.erase(one);
            }
            return;
        }
    }
}

// In pieces, because a signal makes fallocate undo all its work.
void Arena::commit(Range range) {
    const uint64_t bytes = range.end - range.begin;
    std::optional<MemoryLock> lock;  // held while memory is not ample
    uint64_t available = std::numeric_limits<uint64_t>::max();
    if (!last_check_covers(bytes)) {
        available = check_available(bytes, lock);
        share_check(available - std::min(available, bytes), lock ? kMostSharedBytes : UINT64_MAX);
    }
    uint64_t most = kPieceBytes;
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t piece = std::min(most, bytes - done);
        int error = 0;
        if (available < bytes - done + kReserveBytes) {
            error = ENOMEM;
        } else if (fallocate(fd_.get(), 0, static_cast<off_t>(range.begin + done), static_cast<off_t>(piece)) != 0) {
            error = errno;
        }
        if (error == 0) {
            done += piece;
            available = done < bytes ? check_available(bytes - done, lock) : available;
        } else if (error == ENOMEM || error == ENOSPC) {
            fail_without_memory(bytes, done);
        } else if (error == EINTR) {
            most = std::max(kPage, most / 2);  // signals may come faster than a piece is committed
        } else {
            errno = error;
            fail_errno(formatted("fallocate of {} bytes of shared memory", bytes));
        }
    }
}

FreeRanges::Taken Arena::take(uint64_t bytes) {
    if (const auto taken = free_.take(bytes)) {
        return *taken;
    }
    const uint64_t segment_bytes = round_up(std::max(bytes, kSegmentBytes), kLargePage);
    if (segment_bytes > file_bytes_ - next_segment_) {
        fail(ODC_ERROR_NO_MEMORY,
             "this rank's shared memory has used up its {} bytes of addresses; start with a higher RLIMIT_FSIZE "
             "(ulimit -f), or release shards",
             file_bytes_);
    }
    const Segment fresh{next_segment_, segment_bytes};
    next_segment_ += segment_bytes;
    free_.put(fresh, {fresh.offset, fresh.offset + segment_bytes});
    return *free_.take(bytes);
}

std::vector<Allocation> Arena::allocate(const std::vector<uint64_t> &sizes) {
    std::vector<Allocation> parts;
    uint64_t bytes = 0;
    for (const uint64_t size : sizes) {
        parts.push_back({{}, bytes, round_up(size, kAlignment), nullptr});
        if (__builtin_add_overflow(bytes, parts.back().bytes, &bytes)) {
            bytes = std::numeric_limits<uint64_t>::max();
            break;
        }
    }
    if (bytes == 0) {
        return parts;
    }
    if (bytes > kPieceBytes && bytes > available_memory()) {  // before mmap, which would fail for lack of addresses
        fail_without_memory(bytes, 0);
    }
    const FreeRanges::Taken taken = take(bytes);
    const Allocation made{taken.segment, taken.offset, bytes, nullptr};
    std::byte *base = nullptr;
    try {
        base = map(taken.segment);
        place_near(base + (taken.offset - taken.segment.offset), bytes);
        // If it does not begin at a page, that page is in use and committed already.
        commit({round_up(taken.offset, kPage), round_up(taken.offset + bytes, kPage)});
    } catch (...) {
        if (base != nullptr) {
            unmap(base);
            give_back(made);
        } else {
            // It could not be mapped, so nothing lies in it, and it may be too large for any later mapping.
            free_.drop(taken.segment);
        }
        throw;
    }
    use_large_pages(base, made);
    for (Allocation &part : parts) {
        const uint64_t offset = taken.offset + part.offset;
        part = part.bytes == 0 ? Allocation{}
                               : Allocation{taken.segment, offset, part.bytes,
                                            map(taken.segment) + (offset - taken.segment.offset)};
    }
    unmap(base);
    return parts;
}

// Frees the allocation's bytes; returns the range of whole free pages that went back to the system.
Range Arena::give_back(const Allocation &allocation) {
    const Range free = free_.put(allocation.segment, {allocation.offset, allocation.offset + allocation.bytes});
    const uint64_t begin = round_up(free.begin, kPage);
    const uint64_t end = round_down(free.end, kPage);
    if (begin >= end) {
        return {allocation.offset, allocation.offset};
    }
    if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                  static_cast<off_t>(end - begin)) != 0) {
        return {allocation.offset, allocation.offset};  // not supported in gVisor
    }
    return {begin, end};
}

void Arena::free(const Allocation &allocation) {
    if (allocation.bytes == 0) {
        return;
    }
    const uint64_t end = allocation.offset + allocation.bytes;
    const Range gone = give_back(allocation);
    // Bytes in pages that other allocations share are zeroed here.
    const auto zero = [&](uint64_t from, uint64_t to) {
        if (from < to) {
            std::memset(allocation.start + (from - allocation.offset), 0, to - from);
        }
    };
    zero(allocation.offset, std::min(gone.begin, end));
    zero(std::max(gone.end, allocation.offset), end);
    unmap(allocation.start - (allocation.offset - allocation.segment.offset));
}

uint64_t Arena::allocate_record(uint64_t bytes) {
    const uint64_t needed = round_up(bytes, kAlignment);
    if (auto &free = free_records_[needed]; !free.empty()) {
        const uint64_t offset = free.back();
        free.pop_back();
        return offset;
    }
    uint64_t offset = next_record_;
    for (Segment segment = record_segment(offset);
         offset + needed > segment.offset + segment.bytes && offset + needed <= record_bytes_;
         segment = record_segment(offset)) {
        offset = segment.offset + segment.bytes;
    }
    if (offset + needed > record_bytes_) {
        fail(ODC_ERROR_NO_MEMORY, "this rank has used up its {} bytes for descriptions of shards; release some",
             record_bytes_);
    }
    commit({round_up(offset, kPage), round_up(offset + needed, kPage)});
    next_record_ = offset + needed;
    return offset;
}

void Arena::free_record(uint64_t offset, uint64_t bytes) {
    free_records_[round_up(bytes, kAlignment)].push_back(offset);
}

}  // namespace odc
