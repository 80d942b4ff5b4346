/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory and streams for tests, from whichever CUDA driver the program finds: a GPU's, or that of fake_cuda. */
#ifndef ODC_TESTS_GPU_H
#define ODC_TESTS_GPU_H

#include <stddef.h>
#include <stdint.h>

/* What ODC_TEST_MEMORY asks for: "gpu" for shards in GPU memory, "mixed" for both kinds, else host memory. */
int tests_gpu(void);
int tests_mixed_memory(void);
/* "cuda:1": ranks are spread over ODC_TEST_DEVICES GPUs, one unless given. NULL without GPUs. */
const char *gpu_of(int rank);

/* ---- For the calling thread, on the GPU that it has chosen ---- */

/* Once, before anything below. */
void gpu_choose(int rank);
void *gpu_new(size_t bytes);
/* Freed by gpu_collect: what streams still use may be handed over. */
void gpu_free_later(void *memory);
void gpu_collect(void);
/* At once, without any order with streams. */
void gpu_write(void *to, const void *from, size_t bytes);
void gpu_read(void *to, const void *from, size_t bytes);

/* One of four, by `choice`: the legacy default stream, one that is ordered with it, two that are not. */
void *gpu_stream(uint64_t choice);
void gpu_copy(void *to, const void *from, size_t bytes, void *stream);
void gpu_fill(void *to, unsigned char value, size_t bytes, void *stream);
void gpu_wait(void *stream);

#endif
