/* SPDX-License-Identifier: Apache-2.0
 * A libcuda.so.1 for tests: the CUDA driver's functions that libodc calls, on host memory, across processes and
 * asynchronously. libodc finds it where LD_LIBRARY_PATH leads to it, or where the program is linked with it. Each stream is
 * a thread that waits a random while before each operation. The host cannot touch device memory: that faults, as with
 * a GPU. What a test needs besides the driver's functions is declared here; streams are CUstream, NULL is the legacy
 * default stream (of the current context; without one, of device 0). Results are CUDA's (0: success).
 *
 * Environment:
 *   FAKE_CUDA_DEVICES=N      GPUs of the machine, 1 unless given, at most 16
 *   CUDA_VISIBLE_DEVICES     numbers of those that the process sees, in its order: "1,0"
 *   FAKE_CUDA_CAPABILITY=80  compute capability; 90 unless given
 *   CUDA_FORCE_PTX_JIT=1     loads PTX only, not machine code; CUDA_DISABLE_PTX_JIT=1: the other way round
 *   FAKE_CUDA_VERSION=12080  of the interface; 13000 unless given; newer functions are not found
 *   FAKE_CUDA_MEMORY=BYTES   of each device, for each process: what others use does not count; 1 GiB unless given
 *   FAKE_CUDA_P2P=WHAT       all (unless given); none; no-atomics (sums are not lost for that); floats (atomics on floats only);
 *                            scalars (none on vectors, which fail); or all, but what is read from another GPU is wrong (blind),
 *                            or sums there are lost (lossy)
 *   FAKE_CUDA_ADAPTERS=WHAT  network adapters reach device memory, and what they write is seen once it is flushed (flush,
 *                            unless given), or at once (ordered), or nobody knows when (never); or they do not (none)
 *   FAKE_CUDA_MIG=N          the devices are parts (MIG) of GPUs, N of each; none can access another
 *   FAKE_CUDA_DELAY_US=N     the longest delay before an operation; 200 unless given
 *   FAKE_CUDA_SEED=N         of the delays; else ODC_TEST_SEED, else random
 *   FAKE_CUDA_FAIL=LIST      "cuMemCreate:2:2,cuMemcpyAsync:5:700": function, which of its calls (0: each), result
 *   FAKE_CUDA_VERBOSE=1      tell the seed and each call that fails on standard error
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_CUDA_API __attribute__((visibility("default")))

/* ---- The user's program. Each call initializes the driver if necessary. ---- */

/* Makes the primary context of `device` current in the thread; it stays retained. */
FAKE_CUDA_API int fake_cuda_set_device(int device);
/* Zeroed device memory, accessible by the device itself only. 0: there is none. */
FAKE_CUDA_API unsigned long long fake_cuda_alloc(int device, size_t bytes);
FAKE_CUDA_API int fake_cuda_free(unsigned long long address);
/* Immediate, without any order with streams, regardless of access rights. */
FAKE_CUDA_API int fake_cuda_write(unsigned long long address, const void *from, size_t bytes);
FAKE_CUDA_API int fake_cuda_read(void *to, unsigned long long address, size_t bytes);
/* flags: 1 is CU_STREAM_NON_BLOCKING. NULL: there is no such device. */
FAKE_CUDA_API void *fake_cuda_stream_create(int device, unsigned flags);
FAKE_CUDA_API int fake_cuda_stream_destroy(void *stream);
/* Waits until all enqueued work is done, for 60 s at most (then returns 600). */
FAKE_CUDA_API int fake_cuda_stream_wait(void *stream);
/* Occupies the stream, as a long kernel does. */
FAKE_CUDA_API int fake_cuda_launch_delay(void *stream, unsigned microseconds);
/* A capture in global mode. The end reports whether it was invalidated. */
FAKE_CUDA_API int fake_cuda_begin_capture(void *stream);
FAKE_CUDA_API int fake_cuda_end_capture(void *stream);

/* ---- Network adapters (fake_fabric) ---- */

/* Where an adapter accesses these bytes of device memory, and the device; NULL: they are not mapped, not contiguous, or were
 * not allocated for adapters (gpuDirectRDMACapable). */
FAKE_CUDA_API void *fake_cuda_for_adapters(unsigned long long address, size_t bytes, int *device);
FAKE_CUDA_API int fake_cuda_is_device_memory(const void *place);
/* Sets a function that each cuFlushGPUDirectRDMAWrites calls from now on. */
FAKE_CUDA_API void fake_cuda_on_flush(void (*flush)(void));

/* ---- Faults ---- */

/* The nth call of `function` from now on only returns `result`; nth 0: each call. */
FAKE_CUDA_API void fake_cuda_fail(const char *function, unsigned nth, int result);
/* Cancels all such failures. */
FAKE_CUDA_API void fake_cuda_fail_no_more(void);
/* Enqueues an operation that fails with a sticky error, as a faulty kernel of the user does. */
FAKE_CUDA_API int fake_cuda_fault(void *stream, int result);
/* Enqueues an operation that does not end before fake_cuda_unhang, which ends all of this process's. */
FAKE_CUDA_API int fake_cuda_hang(void *stream);
FAKE_CUDA_API void fake_cuda_unhang(void);

/* ---- Enqueued work ---- */

/* What this process has enqueued so far. */
struct fake_cuda_work {
    size_t copies;         /* by cuMemcpyAsync */
    size_t batched_copies; /* by cuMemcpyBatchAsync, of those that prefer to overlap with kernels */
    unsigned most_blocks;  /* of a kernel */
    unsigned addends;      /* of the last kernel */
    unsigned lazy_loads;   /* kernels that their first launch loaded, for which a GPU may have to be idle */
    /* The addresses of the gradients of its first addends, in the order of addition. */
    unsigned long long from[8];
};
FAKE_CUDA_API struct fake_cuda_work fake_cuda_enqueued(void);

/* ---- Leaks ---- */

/* The live objects of this process. */
struct fake_cuda_counts {
    size_t streams, events, modules;
    size_t handles;      /* of physical memory, created and imported */
    size_t reservations; /* of addresses */
    size_t mappings;
    size_t allocations;   /* of fake_cuda_alloc */
    size_t registrations; /* of host memory */
    size_t registered;    /* bytes of it */
    size_t contexts;      /* retains without a release, without those of this header */
    size_t memory;        /* bytes of device memory that this process made, mapped or not */
};
FAKE_CUDA_API struct fake_cuda_counts fake_cuda_live(void);

#ifdef __cplusplus
}
#endif

#endif
