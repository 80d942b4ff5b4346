/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "ranks.h"

enum { STREAMS = 4, MAX_DEVICES = 16, MAX_FREED = 4096 };

typedef unsigned long long address;

static struct {
    int (*init)(unsigned flags);
    int (*retain)(void **context, int device);
    int (*set_current)(void *context); /* pushes */
    int (*copy)(address to, address from, size_t bytes, void *stream);
    int (*fill)(address to, unsigned char value, size_t bytes, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*query)(void *stream);
    /* A real driver's, or fake_cuda's. */
    int (*allocate)(address *memory, size_t bytes);
    int (*release)(address memory);
    int (*write)(address to, const void *from, size_t bytes);
    int (*read)(void *to, address from, size_t bytes);
    address (*fake_allocate)(int device, size_t bytes);
} cuda;

static pthread_once_t loaded = PTHREAD_ONCE_INIT;

typedef int (*get_address_fn)(const char *name, void **function, int version, uint64_t flags, int *found);

static void get(get_address_fn get_address, const char *name, int version, void *function) {
    void *found = NULL;
    if (get_address(name, &found, version, 1, NULL) != 0 || found == NULL) {
        fprintf(stderr, "the CUDA driver lacks %s\n", name);
        exit(1);
    }
    memcpy(function, &found, sizeof found);
}

static void look_up(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
}

static void load(void) {
    get_address_fn get_address = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    look_up(library, "cuGetProcAddress_v2", &get_address);
    get(get_address, "cuInit", 2000, &cuda.init);
    get(get_address, "cuDevicePrimaryCtxRetain", 7000, &cuda.retain);
    get(get_address, "cuCtxPushCurrent", 4000, &cuda.set_current);
    get(get_address, "cuMemcpyAsync", 4000, &cuda.copy);
    get(get_address, "cuMemsetD8Async", 3020, &cuda.fill);
    get(get_address, "cuStreamCreate", 2000, &cuda.stream_create);
    get(get_address, "cuStreamQuery", 2000, &cuda.query);
    look_up(library, "fake_cuda_alloc", &cuda.fake_allocate);
    if (cuda.fake_allocate != NULL) {
        look_up(library, "fake_cuda_free", &cuda.release);
        look_up(library, "fake_cuda_write", &cuda.write);
        look_up(library, "fake_cuda_read", &cuda.read);
    } else {
        get(get_address, "cuMemAlloc", 3020, &cuda.allocate);
        get(get_address, "cuMemFree", 3020, &cuda.release);
        get(get_address, "cuMemcpyHtoD", 3020, &cuda.write);
        get(get_address, "cuMemcpyDtoH", 3020, &cuda.read);
    }
    CHECK_EQUAL(cuda.init(0), 0);
}

static int memory_is(const char *kind) {
    const char *asked = getenv("ODC_TEST_MEMORY");
    return asked != NULL && strcmp(asked, kind) == 0;
}

int tests_gpu(void) { return memory_is("gpu") || tests_mixed_memory(); }

int tests_mixed_memory(void) { return memory_is("mixed"); }

static int device_of(int rank) {
    const char *devices = getenv("ODC_TEST_DEVICES");
    return devices != NULL ? rank % atoi(devices) : 0;
}

const char *gpu_of(int rank) {
    static const char *names[MAX_DEVICES] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3",
                                             "cuda:4", "cuda:5", "cuda:6", "cuda:7"};
    return tests_gpu() ? names[device_of(rank)] : NULL;
}

static _Thread_local struct {
    int device;
    void *streams[STREAMS];
    void *freed[MAX_FREED];
    int freed_count;
} mine;

void gpu_choose(int rank) {
    void *context = NULL;
    pthread_once(&loaded, load);
    mine.device = device_of(rank);
    CHECK_EQUAL(cuda.retain(&context, mine.device), 0);
    CHECK_EQUAL(cuda.set_current(context), 0);
    for (int i = 1; i < STREAMS; ++i) {
        CHECK_EQUAL(cuda.stream_create(&mine.streams[i], i == 1 ? 0 : 1), 0);
    }
}

static address of(const void *memory) { return (address)(uintptr_t)memory; }

void *gpu_new(size_t bytes) {
    address memory = 0;
    if (cuda.fake_allocate != NULL) {
        memory = cuda.fake_allocate(mine.device, bytes);
    } else {
        CHECK_EQUAL(cuda.allocate(&memory, bytes), 0);
    }
    CHECK(memory != 0);
    return (void *)(uintptr_t)memory;
}

void gpu_free_later(void *memory) {
    CHECK(mine.freed_count < MAX_FREED);
    mine.freed[mine.freed_count++] = memory;
}

void gpu_collect(void) {
    for (int i = 0; i < STREAMS; ++i) {
        gpu_wait(mine.streams[i]);
    }
    while (mine.freed_count > 0) {
        CHECK_EQUAL(cuda.release(of(mine.freed[--mine.freed_count])), 0);
    }
}

void gpu_write(void *to, const void *from, size_t bytes) { CHECK_EQUAL(cuda.write(of(to), from, bytes), 0); }

void gpu_read(void *to, const void *from, size_t bytes) { CHECK_EQUAL(cuda.read(to, of(from), bytes), 0); }

void *gpu_stream(uint64_t choice) { return mine.streams[choice % STREAMS]; }

void gpu_copy(void *to, const void *from, size_t bytes, void *stream) {
    CHECK_EQUAL(cuda.copy(of(to), of(from), bytes, stream), 0);
}

void gpu_fill(void *to, unsigned char value, size_t bytes, void *stream) {
    CHECK_EQUAL(cuda.fill(of(to), value, bytes, stream), 0);
}

void gpu_wait(void *stream) {
    int64_t begin = now_ns();
    int result = 0;
    while ((result = cuda.query(stream)) == 600) { /* not ready */
        CHECK(now_ns() - begin < (int64_t)30000000000);
        sleep_us(50);
    }
    CHECK_EQUAL(result, 0);
}
