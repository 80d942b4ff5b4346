// SPDX-License-Identifier: Apache-2.0
// Copies and additions in host memory, with the widest vectors of this processor (chosen at run time). For buffers larger than
// the caches there are several loops with the same results; which is fastest depends on the processor and is measured during
// the first large copies and additions (loop_choice.h).
#pragma once

#include "memory/loop_choice.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace odc {

enum class CopyLoop {
    Memcpy,
    Stream,          // non-temporal stores, so that the destination does not evict the caller's working set
    StreamPrefetch,  // the same, prefetching the source
    StreamPages      // the same, several pages in turn
};
inline constexpr CopyLoop kCopyLoops[] = {CopyLoop::Memcpy, CopyLoop::Stream, CopyLoop::StreamPrefetch,
                                          CopyLoop::StreamPages};
const char *loop_name(CopyLoop loop);

enum class AddLoop {
    Line,      // from the first cache line to the last
    Prefetch,  // the same, prefetching gradient and accumulator
    Pages      // several pages in turn
};
inline constexpr AddLoop kAddLoops[] = {AddLoop::Line, AddLoop::Prefetch, AddLoop::Pages};
const char *loop_name(AddLoop loop);

void copy_bytes(void *to, const void *from, size_t bytes);
void copy_bytes_by(CopyLoop loop, void *to, const void *from, size_t bytes);

enum class Sum {
    Store,  // accumulator = gradient: the first addition of a minibatch
    Add     // accumulator += gradient
};

// Widens `count` gradients of `gradient_type` to the accumulator's type and stores or adds them. The accumulator is aligned to
// its elements, the gradient need not be. `slice_numel`: elements of the whole slice, by which the loop is chosen.
void add_elements(Sum sum, int32_t gradient_type, void *accumulator, const void *gradient, size_t count,
                  uint64_t slice_numel);
void add_elements_by(AddLoop loop, Sum sum, int32_t gradient_type, void *accumulator, const void *gradient,
                     size_t count);

// Runs add(loop) for `count` elements of `bytes` with the loop for a slice whose sums take `slice_bytes`.
template <class Add>
void run_add_loop(LoopChoice &choice, Sum sum, size_t count, size_t bytes, uint64_t slice_bytes, const Add &add) {
    // Smaller slices may be in the cache, where all loops are equally fast.
    constexpr size_t kPastCacheSlice = size_t{4} << 20;
    constexpr size_t kSampleElements = 4096;
    if (slice_bytes < kPastCacheSlice) {
        add(AddLoop::Line);
    } else if (sum == Sum::Add && count >= kSampleElements) {
        choice.run(bytes, [&](int loop) { add(kAddLoops[static_cast<size_t>(loop)]); });
    } else {
        add(choice.chosen() < 0 ? AddLoop::Line : kAddLoops[static_cast<size_t>(choice.chosen())]);
    }
}

// The loops chosen so far and the speed of each, for odc_build: "; copy by stream (GB/s: memcpy 8.4, ...)".
std::string loop_figures();
// The same of one choice among kAddLoops.
std::string add_loop_figures(const char *what, const LoopChoice &choice);

// The vector instructions in use, for odc_build: "AVX3".
const char *vector_target();

}  // namespace odc
