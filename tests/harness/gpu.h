/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory and streams for tests, by whichever CUDA driver the program finds: a real one or fake_cuda. */
#ifndef ODC_TESTS_GPU_H
#define ODC_TESTS_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "fakes/cuda/fake_cuda.h"

/* The value of ODC_TEST_MEMORY: "gpu" for shards in GPU memory, "mixed" for both kinds; otherwise host memory. */
int tests_gpu(void);
int tests_mixed_memory(void);
/* "cuda:1": ranks are spread over ODC_TEST_DEVICES GPUs (default 1). NULL without GPUs. */
const char *gpu_of(int rank);

/* ---- For the calling thread, on its current GPU ---- */

/* Called once, before anything below. */
void gpu_choose(int rank);
void *gpu_new(size_t bytes);
/* Freed by gpu_collect, so streams may still use it. */
void gpu_free_later(void *memory);
void gpu_collect(void);
/* Immediate, without any order with streams. */
void gpu_write(void *to, const void *from, size_t bytes);
void gpu_read(void *to, const void *from, size_t bytes);

/* One of four, by `choice`: the legacy default stream, one ordered with it, two that are not. */
void *gpu_stream(uint64_t choice);
void gpu_copy(void *to, const void *from, size_t bytes, void *stream);
void gpu_fill(void *to, unsigned char value, size_t bytes, void *stream);
void gpu_wait(void *stream);

/* ---- What programs do besides libodc ---- */

/* Free bytes on the thread's GPU. */
size_t gpu_free_bytes(void);
/* The number of GPUs that this process sees. */
int gpu_count(void);
/* Memory and streams (flags: 1 is CU_STREAM_NON_BLOCKING) on any of them. */
void *gpu_new_on(int device, size_t bytes);
void gpu_free(void *memory); /* at once */
void *gpu_new_stream(int device, unsigned flags);
void gpu_end_stream(void *stream);
/* Blocks the stream until gpu_let_go, by any thread, which releases all streams held by this process. */
void gpu_hold(void *stream);
void gpu_let_go(void);
/* Whether all work on it is complete; errors fail the test. */
int gpu_is_done(void *stream);
/* A capture in global mode. The end returns 0 if the capture is valid, else CUDA's error. */
void gpu_begin_capture(void *stream);
int gpu_end_capture(void *stream);
/* Sets the thread's current context to that device's, or none for -1. */
void gpu_make_current(int device);
/* Whether the context is as gpu_make_current left it, and the only one on the thread's stack. */
int gpu_is_current(int device);

/* The thread's capture interaction mode, then global, 0. */
int gpu_capture_mode(void);

/* ---- Only with fake_cuda ---- */

/* Whether there is a driver that is not fake_cuda. */
int gpu_is_real(void);
/* Skips the test and says why where the GPU is real. */
void needs_fake_cuda(const char *why);
/* The same for a process that has chosen its GPU, so that the test can continue otherwise. */
int gpu_is_pretended(void);
struct fake_cuda_work gpu_enqueued(void);
struct fake_cuda_counts gpu_live(void);
void gpu_check_live(struct fake_cuda_counts before); /* fails unless the counts are the same now */
int gpu_fault(void *stream, int result);
/* Whether the thread's GPU has one. */
int gpu_has_failed(void);
void gpu_fail(const char *function, unsigned nth, int result);
void gpu_fail_no_more(void);

#endif
