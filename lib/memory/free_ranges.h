// SPDX-License-Identifier: Apache-2.0
// A best-fit free list of the bytes of a file; each range lies inside one segment.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace odc {

// A piece of the file that is mapped as a whole.
struct Segment {
    uint64_t offset;
    uint64_t bytes;
};

struct Range {
    uint64_t begin;
    uint64_t end;
};

class FreeRanges {
public:
    struct Taken {
        Segment segment;
        uint64_t offset;
    };
    // Takes the beginning of the smallest range of at least `bytes`.
    std::optional<Taken> take(uint64_t bytes) {
        auto best = free_.end();
        for (auto one = free_.begin(); one != free_.end(); ++one) {
            const uint64_t room = one->second.end - one->first;
            if (room >= bytes && (best == free_.end() || room < best->second.end - best->first)) {
                best = one;
            }
        }
        if (best == free_.end()) {
            return std::nullopt;
        }
        const Taken taken{best->second.segment, best->first};
        const Rest rest = best->second;
        free_.erase(best);
        if (taken.offset + bytes < rest.end) {
            free_.emplace(taken.offset + bytes, rest);
        }
        return taken;
    }

    // Frees `range`; returns the free range that now contains it.
    Range put(const Segment &segment, Range range) {
        const auto same = [&](const auto &one) { return one->second.segment.offset == segment.offset; };
        const auto after = free_.find(range.end);
        if (after != free_.end() && same(after)) {
            range.end = after->second.end;
            free_.erase(after);
        }
        const auto next = free_.lower_bound(range.begin);
        if (next != free_.begin()) {
            const auto before = std::prev(next);
            if (before->second.end == range.begin && same(before)) {
                range.begin = before->first;
                free_.erase(before);
            }
        }
        free_.emplace(range.begin, Rest{range.end, segment});
        return range;
    }

    void drop(const Segment &segment) {
        std::erase_if(free_, [&](const auto &one) { return one.second.segment.offset == segment.offset; });
    }

private:
    struct Rest {
        uint64_t end;
        Segment segment;
    };
    std::map<uint64_t, Rest> free_;  // by beginning
};

}  // namespace odc
