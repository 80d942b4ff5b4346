// SPDX-License-Identifier: Apache-2.0
// A combining tree of the ranks of a host, for syncs or for reductions. Each node has up to 16 members: ranks, or nodes of
// the level below. A rank joins its node; the last member to join combines what the members brought and joins the node
// above, or releases the root. All others sleep until the node at which they stopped is released, and then release the
// nodes that they completed. So a rank sleeps once, and its work grows with the logarithm of the number of ranks.
//
// The tree is only a shortcut. What a rank brings, and that it has come, is also in its own block, and a wait that has not
// been released within 20 ms looks there: a rank that is stopped, interrupted or killed inside the tree delays the others
// by that much at most.
#pragma once

#include "core/wait.h"

#include <cstdint>
#include <vector>

namespace odc {

class HostTree {
public:
    HostTree(Job &job, Contribution (ControlBlock::*brought)[2], TreeNode (ControlBlock::*nodes)[kTreeLevels]);

    // This rank has come to sync or reduction `number`, as its block says already. Waits for nobody.
    void join(uint64_t number);
    // Waits until all ranks of this host have come. `absent()`: the first rank that has not by its block, or -1.
    template <class Absent>
    void await(Job::Wait &wait, uint64_t number, const Absent &absent);
    // What all ranks of the job brought, once all have come; valid until the next call. Combines 16 consecutive ranks, then
    // 16 such results, and so on: the bits depend neither on how ranks are divided over hosts nor on who came when.
    const Contribution &combined(uint64_t number);

private:
    struct Level {
        TreeNode *node;                      // the one above this rank
        std::vector<ControlBlock *> blocks;  // of each member: the rank's, or the one that the member node lies in
    };
    const Contribution &brought(size_t level, const ControlBlock &member, uint64_t number) const;
    void combine(int first, int end, uint64_t number, Contribution &sum) const;
    static void release(TreeNode &node, uint64_t number);

    Job &job_;
    Contribution (ControlBlock::*brought_)[2];
    TreeNode (ControlBlock::*nodes_)[kTreeLevels];
    std::vector<Level> levels_;
    size_t level_ = 0;  // where this rank stopped: it has completed its nodes of the levels below
    Contribution combined_ = {};
};

template <class Absent>
void HostTree::await(Job::Wait &wait, uint64_t number, const Absent &absent) {
    TreeNode &node = *levels_[level_].node;
    wait.until_all(
        node.doorbell, [&] { return node.released.load(std::memory_order_acquire) > number; }, absent);
    for (size_t level = level_; level-- > 0;) {
        release(*levels_[level].node, number);
    }
}

}  // namespace odc
