// SPDX-License-Identifier: Apache-2.0
// How a shard's elements are divided over its ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace odc {

class Slices {
public:
    // Equal slices, the last ones shorter or empty, as torch.chunk divides.
    Slices(uint64_t numel, uint64_t count)
        : numel_(numel), count_(count), each_(numel / count + (numel % count != 0)) {}
    // Slices of the given sizes, whose sum the caller has checked.
    explicit Slices(const std::vector<uint64_t> &sizes) : count_(sizes.size()) {
        for (const uint64_t size : sizes) {
            begins_.push_back(numel_);
            numel_ += size;
        }
    }

    uint64_t count() const { return count_; }
    // The first element of slice `index`, and one past its last.
    uint64_t begin(uint64_t index) const {
        if (index >= count_) {
            return numel_;
        }
        if (!begins_.empty()) {
            return begins_[index];
        }
        // index * each_ may pass 2^64 only where it has passed numel_.
        return each_ != 0 && index > numel_ / each_ ? numel_ : std::min(numel_, index * each_);
    }
    uint64_t numel(uint64_t index) const { return begin(index + 1) - begin(index); }

private:
    uint64_t numel_ = 0;
    uint64_t count_;
    uint64_t each_ = 0;
    std::vector<uint64_t> begins_;  // empty: equal slices
};

}  // namespace odc
