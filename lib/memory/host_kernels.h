// SPDX-License-Identifier: Apache-2.0
// Copying and adding host memory, with the widest vectors that this processor has (chosen at run time). What is larger
// than caches is worked through by one of several loops: all give the same bytes, and which is fastest depends on the
// processor and is found out on the first large copies and additions (loop_choice.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace odc {

enum class CopyLoop {
    Memcpy,
    Stream,          // past the cache: the destination would only push out what the caller computes with
    StreamPrefetch,  // the same, prefetching the source
    StreamPages      // the same, several pages in turn
};
inline constexpr CopyLoop kCopyLoops[] = {CopyLoop::Memcpy, CopyLoop::Stream, CopyLoop::StreamPrefetch,
                                          CopyLoop::StreamPages};
const char *loop_name(CopyLoop loop);

enum class AddLoop {
    Line,      // from the first cache line to the last
    Prefetch,  // the same, prefetching both
    Pages      // several pages in turn
};
inline constexpr AddLoop kAddLoops[] = {AddLoop::Line, AddLoop::Prefetch, AddLoop::Pages};
const char *loop_name(AddLoop loop);

// Copies `bytes`.
void copy_bytes(void *to, const void *from, size_t bytes);
void copy_bytes_by(CopyLoop loop, void *to, const void *from, size_t bytes);

enum class Sum {
    Store,  // accumulator = gradient: the first addition of a minibatch
    Add     // accumulator += gradient
};

// Widens `count` gradients of `gradient_type` to the accumulator's type and stores or adds them. No alignment is
// needed beyond the elements' own; none is even needed for the gradient. They are a part of `slice_numel` elements,
// by which the loop is chosen.
void add_elements(Sum sum, int32_t gradient_type, void *accumulator, const void *gradient, size_t count,
                  uint64_t slice_numel);
void add_elements_by(AddLoop loop, Sum sum, int32_t gradient_type, void *accumulator, const void *gradient,
                     size_t count);

// The loops chosen so far and what each one reached, for people: "; copy by stream (GB/s: memcpy 8.4, ...)".
std::string loop_figures();

// The vector instructions in use, for people: "AVX3".
const char *vector_target();

}  // namespace odc
