// SPDX-License-Identifier: Apache-2.0
#include "core/host_tree.h"

#include <algorithm>

#include <odc/odc.h>

namespace odc {

namespace {

// Copies and adds only as many values as there are: each cache line that is not touched is one less to fetch.
void set(Contribution &sum, const Contribution &other) {
    sum.count = other.count;
    sum.op = other.op;
    sum.has_registered = other.has_registered;
    sum.differs = other.differs;
    std::copy_n(other.values, other.count, sum.values);
}

void add(Contribution &sum, const Contribution &other) {
    sum.has_registered |= other.has_registered;
    if (sum.differs != 0 || other.differs != 0 || other.count != sum.count || other.op != sum.op) {
        sum.differs = 1;
        return;
    }
    for (uint32_t i = 0; i < sum.count; ++i) {
        const double value = other.values[i];
        // A NaN wins: it must not be hidden by a larger number.
        const bool replaces = value > sum.values[i] || value != value;
        sum.values[i] = sum.op == ODC_SUM ? sum.values[i] + value : replaces ? value : sum.values[i];
    }
}

}  // namespace

HostTree::HostTree(Job &job, Contribution (ControlBlock::*brought)[2], TreeNode (ControlBlock::*nodes)[kTreeLevels])
    : job_(job), brought_(brought), nodes_(nodes) {
    std::vector<ControlBlock *> members;
    for (const int rank : job.local_peers()) {
        members.push_back(&job.block(rank));
    }
    size_t index = job.local_rank();
    do {
        if (levels_.size() == kTreeLevels) {
            fail(ODC_ERROR_UNSUPPORTED, "odc_init: {} ranks are on one host; at most 65536 can be",
                 job.local_peers().size());
        }
        const size_t first = index / kTreeFan * kTreeFan;
        Level level{&(members[first]->*nodes)[levels_.size()], {}};
        for (size_t i = first; i < std::min(first + kTreeFan, members.size()); ++i) {
            level.blocks.push_back(members[i]);
        }
        levels_.push_back(std::move(level));
        std::vector<ControlBlock *> above;
        for (size_t i = 0; i < members.size(); i += kTreeFan) {
            above.push_back(members[i]);
        }
        members = std::move(above);
        index /= kTreeFan;
    } while (members.size() > 1);
}

const Contribution &HostTree::brought(size_t level, const ControlBlock &member, uint64_t number) const {
    return level == 0 ? (member.*brought_)[number % 2] : (member.*nodes_)[level - 1].combined[number % 2];
}

void HostTree::release(TreeNode &node, uint64_t number) {
    node.released.store(number + 1, std::memory_order_release);
    ring(node.doorbell);
}

void HostTree::join(uint64_t number) {
    for (level_ = 0;; ++level_) {
        const Level &level = levels_[level_];
        // Nobody joins again before all have joined in the last sync of this parity, so the counts of syncs never mix.
        const uint64_t all = (number / 2 + 1) * level.blocks.size();
        if (level.node->joined[number % 2].fetch_add(1, std::memory_order_acq_rel) + 1 < all) {
            return;
        }
        Contribution &sum = level.node->combined[number % 2];
        set(sum, brought(level_, *level.blocks[0], number));
        for (size_t i = 1; i < level.blocks.size(); ++i) {
            add(sum, brought(level_, *level.blocks[i], number));
        }
        if (level_ + 1 == levels_.size()) {
            release(*level.node, number);
            return;
        }
    }
}

// Combines what the ranks first..end-1 brought, in the order of the tree of a host with all ranks of the job.
void HostTree::combine(int first, int end, uint64_t number, Contribution &sum) const {
    int part = 1;  // ranks of each member
    while (part * kTreeFan < end - first) {
        part *= kTreeFan;
    }
    for (int next = first; next < end; next += part) {
        Contribution combined;
        if (part > 1) {
            combine(next, std::min(next + part, end), number, combined);
        }
        const Contribution &member = part > 1 ? combined : (job_.block(next).*brought_)[number % 2];
        next == first ? set(sum, member) : add(sum, member);
    }
}

const Contribution &HostTree::combined(uint64_t number) {
    const TreeNode &root = *levels_.back().node;
    if (job_.local_peers().size() == static_cast<size_t>(job_.size()) &&
        root.released.load(std::memory_order_acquire) > number) {
        return root.combined[number % 2];
    }
    combine(0, job_.size(), number, combined_);
    return combined_;
}

}  // namespace odc
