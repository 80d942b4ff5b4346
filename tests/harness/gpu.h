/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory and streams for tests, from whichever CUDA driver the program finds: a GPU's, or that of fake_cuda. */
#ifndef ODC_TESTS_GPU_H
#define ODC_TESTS_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "fakes/cuda/fake_cuda.h"

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

/* ---- What programs do besides ---- */

/* What is free on the thread's GPU. */
size_t gpu_free_bytes(void);
/* How many GPUs there are for this process. */
int gpu_count(void);
/* Memory and a stream (flags: 1 is CU_STREAM_NON_BLOCKING) of any of them. */
void *gpu_new_on(int device, size_t bytes);
void gpu_free(void *memory); /* at once */
void *gpu_new_stream(int device, unsigned flags);
void gpu_end_stream(void *stream);
/* The stream goes no further until gpu_let_go, by any thread, which ends all holds of this process. */
void gpu_hold(void *stream);
void gpu_let_go(void);
/* Whether everything on it is done; checked for errors. */
int gpu_is_done(void *stream);
/* A capture in global mode. The end returns 0 if nothing broke it, else CUDA's error. */
void gpu_begin_capture(void *stream);
int gpu_end_capture(void *stream);
/* The thread's current context: of that device, or none for -1. */
void gpu_make_current(int device);
/* Whether it is as gpu_make_current left it, and the only one on the thread's stack. */
int gpu_is_current(int device);

/* How the thread's calls treat captures, which is then global mode, 0. */
int gpu_capture_mode(void);

/* ---- By fake_cuda only ---- */

/* Skips the test, and says why, where the GPU is real. */
void needs_fake_cuda(const char *why);
/* The same of a process that has chosen its GPU, to go another way. */
int gpu_is_pretended(void);
struct fake_cuda_work gpu_enqueued(void);
struct fake_cuda_counts gpu_live(void);
void gpu_check_live(struct fake_cuda_counts before); /* so many there are now */
int gpu_fault(void *stream, int result);
/* Whether the thread's GPU has. */
int gpu_has_failed(void);
void gpu_fail(const char *function, unsigned nth, int result);
void gpu_fail_no_more(void);

#endif
