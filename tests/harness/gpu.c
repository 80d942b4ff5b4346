/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "ranks.h"

enum { STREAMS = 4, MAX_DEVICES = 16, MAX_FREED = 4096 };
enum { INVALID_CONTEXT = 201, NOT_READY = 600 }; /* results of CUDA calls */

typedef unsigned long long address;

static struct {
    int (*init)(unsigned flags);
    int (*retain)(void **context, int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*count)(int *count);
    int (*exchange_mode)(int *mode);
    int (*copy)(address to, address from, size_t bytes, void *stream);
    int (*fill)(address to, unsigned char value, size_t bytes, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*query)(void *stream);
    int (*info)(size_t *free, size_t *total);
    /* Functions of fake_cuda; NULL with a real driver. */
    address (*fake_allocate)(int device, size_t bytes);
    int (*release)(address memory);
    int (*write)(address to, const void *from, size_t bytes);
    int (*read)(void *to, address from, size_t bytes);
    int (*hold)(void *stream);
    void (*let_go)(void);
    int (*begin_capture)(void *stream);
    int (*end_capture)(void *stream);
    struct fake_cuda_work (*enqueued)(void);
    struct fake_cuda_counts (*live)(void);
    int (*fault)(void *stream, int result);
    void (*inject)(const char *function, unsigned nth, int result);
    void (*inject_no_more)(void);
    /* Functions of a real driver. */
    int (*allocate)(address *memory, size_t bytes);
    int (*release_real)(address memory);
    int (*register_page)(void *page, size_t bytes, unsigned flags);
    int (*address_of_page)(address *at, void *page, unsigned flags);
    int (*wait_value)(void *stream, address word, uint32_t value, unsigned flags);
    int (*begin_real_capture)(void *stream, int mode);
    int (*end_real_capture)(void *stream, void **graph);
    int (*destroy_graph)(void *graph);
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

static void load_fake(void *library) {
    look_up(library, "fake_cuda_free", &cuda.release);
    look_up(library, "fake_cuda_write", &cuda.write);
    look_up(library, "fake_cuda_read", &cuda.read);
    look_up(library, "fake_cuda_hang", &cuda.hold);
    look_up(library, "fake_cuda_unhang", &cuda.let_go);
    look_up(library, "fake_cuda_begin_capture", &cuda.begin_capture);
    look_up(library, "fake_cuda_end_capture", &cuda.end_capture);
    look_up(library, "fake_cuda_enqueued", &cuda.enqueued);
    look_up(library, "fake_cuda_live", &cuda.live);
    look_up(library, "fake_cuda_fault", &cuda.fault);
    look_up(library, "fake_cuda_fail", &cuda.inject);
    look_up(library, "fake_cuda_fail_no_more", &cuda.inject_no_more);
}

static void load_real(get_address_fn get_address) {
    get(get_address, "cuMemAlloc", 3020, &cuda.allocate);
    get(get_address, "cuMemFree", 3020, &cuda.release_real);
    get(get_address, "cuMemHostRegister", 6050, &cuda.register_page);
    get(get_address, "cuMemHostGetDevicePointer", 3020, &cuda.address_of_page);
    get(get_address, "cuStreamWaitValue32", 11070, &cuda.wait_value);
    get(get_address, "cuStreamBeginCapture", 10010, &cuda.begin_real_capture);
    get(get_address, "cuStreamEndCapture", 10000, &cuda.end_real_capture);
    get(get_address, "cuGraphDestroy", 10000, &cuda.destroy_graph);
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
    get(get_address, "cuCtxPushCurrent", 4000, &cuda.push);
    get(get_address, "cuCtxPopCurrent", 4000, &cuda.pop);
    get(get_address, "cuDeviceGetCount", 2000, &cuda.count);
    get(get_address, "cuThreadExchangeStreamCaptureMode", 10010, &cuda.exchange_mode);
    get(get_address, "cuMemcpyAsync", 4000, &cuda.copy);
    get(get_address, "cuMemsetD8Async", 3020, &cuda.fill);
    get(get_address, "cuStreamCreate", 2000, &cuda.stream_create);
    get(get_address, "cuStreamDestroy", 4000, &cuda.stream_destroy);
    get(get_address, "cuStreamQuery", 2000, &cuda.query);
    get(get_address, "cuMemGetInfo", 3020, &cuda.info);
    look_up(library, "fake_cuda_alloc", &cuda.fake_allocate);
    if (cuda.fake_allocate != NULL) {
        load_fake(library);
    } else {
        load_real(get_address);
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

/* The primary context of a device, which is never released. */
static void *context_of(int device) {
    static void *contexts[MAX_DEVICES];
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    if (contexts[device] == NULL) {
        CHECK_EQUAL(cuda.retain(&contexts[device], device), 0);
    }
    void *context = contexts[device];
    pthread_mutex_unlock(&mutex);
    return context;
}

void gpu_choose(int rank) {
    pthread_once(&loaded, load);
    mine.device = device_of(rank);
    CHECK_EQUAL(cuda.push(context_of(mine.device)), 0);
    if (cuda.fake_allocate == NULL) {
        gpu_free(gpu_new(1)); /* while no stream is held */
    }
    for (int i = 1; i < STREAMS; ++i) {
        CHECK_EQUAL(cuda.stream_create(&mine.streams[i], i == 1 ? 0 : 1), 0);
    }
}

static address of(const void *memory) { return (address)(uintptr_t)memory; }

/* ---- On a GPU: memory of two sizes, allocated in advance ----
 * cuMemAlloc and cuMemFree may wait for streams, which tests hold. */

enum { SMALL = 4096, LARGE = 1 << 20, SMALLS = 8192, LARGES = 160 };

static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct pool {
    size_t bytes;
    int count;
    address begin;
    int free[SMALLS];
    int free_count;
} pools[MAX_DEVICES][2];

static address allocate_real(int device, size_t bytes) {
    address memory = 0;
    void *ignored = NULL;
    CHECK_EQUAL(cuda.push(context_of(device)), 0);
    CHECK_EQUAL(cuda.allocate(&memory, bytes), 0);
    CHECK_EQUAL(cuda.pop(&ignored), 0);
    return memory;
}

static void fill_pools(int device) {
    for (int i = 0; i < 2; ++i) {
        struct pool *pool = &pools[device][i];
        if (pool->begin == 0) {
            pool->bytes = i == 0 ? SMALL : LARGE;
            pool->count = i == 0 ? SMALLS : LARGES;
            pool->begin = allocate_real(device, pool->bytes * (size_t)pool->count);
            for (pool->free_count = 0; pool->free_count < pool->count; ++pool->free_count) {
                pool->free[pool->free_count] = pool->free_count;
            }
        }
    }
}

static address new_real(int device, size_t bytes) {
    address memory = 0;
    pthread_mutex_lock(&pool_mutex);
    fill_pools(device);
    for (int i = 0; i < 2 && memory == 0; ++i) {
        struct pool *pool = &pools[device][i];
        if (bytes <= pool->bytes && pool->free_count > 0) {
            memory = pool->begin + pool->bytes * (size_t)pool->free[--pool->free_count];
        }
    }
    pthread_mutex_unlock(&pool_mutex);
    return memory != 0 ? memory : allocate_real(device, bytes);
}

static int free_real(address memory) {
    int found = 0;
    pthread_mutex_lock(&pool_mutex);
    for (int i = 0; i < 2 * MAX_DEVICES && !found; ++i) {
        struct pool *pool = &pools[i / 2][i % 2];
        if (memory >= pool->begin && memory < pool->begin + pool->bytes * (size_t)pool->count) {
            pool->free[pool->free_count++] = (int)((memory - pool->begin) / pool->bytes);
            found = 1;
        }
    }
    pthread_mutex_unlock(&pool_mutex);
    return found ? 0 : cuda.release_real(memory);
}

void *gpu_new_on(int device, size_t bytes) {
    address memory = cuda.fake_allocate != NULL ? cuda.fake_allocate(device, bytes) : new_real(device, bytes);
    CHECK(memory != 0);
    return (void *)(uintptr_t)memory;
}

void *gpu_new(size_t bytes) { return gpu_new_on(mine.device, bytes); }

static int free_now(void *memory) {
    return cuda.fake_allocate != NULL ? cuda.release(of(memory)) : free_real(of(memory));
}

void gpu_free(void *memory) { CHECK_EQUAL(free_now(memory), 0); }

void gpu_free_later(void *memory) {
    CHECK(mine.freed_count < MAX_FREED);
    mine.freed[mine.freed_count++] = memory;
}

void gpu_collect(void) {
    for (int i = 0; i < STREAMS; ++i) {
        gpu_wait(mine.streams[i]);
    }
    while (mine.freed_count > 0) {
        gpu_free(mine.freed[--mine.freed_count]);
    }
}

/* On a GPU, uses a stream of its own, as cuMemcpy waits for others. */
static void move_real(address to, address from, size_t bytes) {
    static _Thread_local void *streams[MAX_DEVICES];
    void **stream = &streams[mine.device];
    void *ignored = NULL;
    CHECK_EQUAL(cuda.push(context_of(mine.device)), 0);
    if (*stream == NULL) {
        CHECK_EQUAL(cuda.stream_create(stream, 1), 0);
    }
    CHECK_EQUAL(cuda.copy(to, from, bytes, *stream), 0);
    gpu_wait(*stream);
    CHECK_EQUAL(cuda.pop(&ignored), 0);
}

void gpu_write(void *to, const void *from, size_t bytes) {
    if (cuda.write != NULL) {
        CHECK_EQUAL(cuda.write(of(to), from, bytes), 0);
    } else if (bytes > 0) {
        move_real(of(to), of(from), bytes);
    }
}

void gpu_read(void *to, const void *from, size_t bytes) {
    if (cuda.read != NULL) {
        CHECK_EQUAL(cuda.read(to, of(from), bytes), 0);
    } else if (bytes > 0) {
        move_real(of(to), of(from), bytes);
    }
}

size_t gpu_free_bytes(void) {
    size_t free = 0;
    size_t total = 0;
    CHECK_EQUAL(cuda.info(&free, &total), 0);
    return free;
}

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
    while ((result = cuda.query(stream)) == NOT_READY) {
        CHECK(now_ns() - begin < (int64_t)30000000000);
        sleep_us(50);
    }
    CHECK_EQUAL(result, 0);
}

int gpu_is_done(void *stream) {
    int result = cuda.query(stream);
    CHECK(result == 0 || result == NOT_READY);
    return result == 0;
}

int gpu_count(void) {
    int count = 0;
    CHECK_EQUAL(cuda.count(&count), 0);
    return count;
}

void *gpu_new_stream(int device, unsigned flags) {
    void *stream = NULL;
    void *ignored = NULL;
    CHECK_EQUAL(cuda.push(context_of(device)), 0);
    CHECK_EQUAL(cuda.stream_create(&stream, flags), 0);
    CHECK_EQUAL(cuda.pop(&ignored), 0);
    return stream;
}

void gpu_end_stream(void *stream) { CHECK_EQUAL(cuda.stream_destroy(stream), 0); }

/* On a GPU, held streams wait for this word to reach their number. */
static struct {
    pthread_mutex_t mutex;
    _Atomic uint32_t *word;
    address at;
    uint32_t last;
} holds = {PTHREAD_MUTEX_INITIALIZER, NULL, 0, 0};

static void hold_real(void *stream) {
    enum { PAGE = 4096, DEVICE_MAP = 2, EQUAL_OR_MORE = 0 };
    pthread_mutex_lock(&holds.mutex);
    if (holds.word == NULL) {
        holds.word = share(PAGE);
        CHECK_EQUAL(cuda.register_page((void *)holds.word, PAGE, DEVICE_MAP), 0);
        CHECK_EQUAL(cuda.address_of_page(&holds.at, (void *)holds.word, 0), 0);
    }
    CHECK_EQUAL(cuda.wait_value(stream, holds.at, ++holds.last, EQUAL_OR_MORE), 0);
    pthread_mutex_unlock(&holds.mutex);
}

void gpu_hold(void *stream) {
    if (cuda.hold != NULL) {
        CHECK_EQUAL(cuda.hold(stream), 0);
    } else {
        hold_real(stream);
    }
}

void gpu_let_go(void) {
    if (cuda.let_go != NULL) {
        cuda.let_go();
        return;
    }
    pthread_mutex_lock(&holds.mutex);
    if (holds.word != NULL) {
        atomic_store(holds.word, holds.last);
    }
    pthread_mutex_unlock(&holds.mutex);
}

void gpu_begin_capture(void *stream) {
    enum { GLOBAL = 0 };
    CHECK_EQUAL(cuda.begin_capture != NULL ? cuda.begin_capture(stream) : cuda.begin_real_capture(stream, GLOBAL), 0);
}

int gpu_end_capture(void *stream) {
    if (cuda.end_capture != NULL) {
        return cuda.end_capture(stream);
    }
    void *graph = NULL;
    int result = cuda.end_real_capture(stream, &graph);
    if (graph != NULL) {
        cuda.destroy_graph(graph);
    }
    return result;
}

void gpu_make_current(int device) {
    void *ignored = NULL;
    while (cuda.pop(&ignored) == 0) {
    }
    if (device >= 0) {
        CHECK_EQUAL(cuda.push(context_of(device)), 0);
    }
}

int gpu_is_current(int device) {
    void *context = NULL;
    void *below = NULL;
    int result = cuda.pop(&context);
    if (device < 0) {
        return result == INVALID_CONTEXT;
    }
    int alone = cuda.pop(&below) == INVALID_CONTEXT;
    CHECK_EQUAL(cuda.push(context_of(device)), 0);
    return result == 0 && context == context_of(device) && alone;
}

int gpu_capture_mode(void) {
    int mode = 0;
    CHECK_EQUAL(cuda.exchange_mode(&mode), 0);
    return mode;
}

/* ---- Only with fake_cuda ---- */

int gpu_is_real(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return library != NULL && dlsym(library, "fake_cuda_live") == NULL;
}

void needs_fake_cuda(const char *why) {
    const int real = gpu_is_real();
    if (real || dlopen("libcuda.so.1", RTLD_NOW) == NULL) {
        printf("skipped, %s: %s\n", real ? "the GPU is real" : "there is no driver", why);
        skip();
    }
}

int gpu_is_pretended(void) { return cuda.live != NULL; }

struct fake_cuda_work gpu_enqueued(void) {
    return cuda.enqueued();
}

struct fake_cuda_counts gpu_live(void) {
    return cuda.live();
}

void gpu_check_live(struct fake_cuda_counts before) {
    struct fake_cuda_counts now = cuda.live();
    CHECK_EQUAL(now.streams, before.streams);
    CHECK_EQUAL(now.events, before.events);
    CHECK_EQUAL(now.modules, before.modules);
    CHECK_EQUAL(now.handles, before.handles);
    CHECK_EQUAL(now.reservations, before.reservations);
    CHECK_EQUAL(now.mappings, before.mappings);
    CHECK_EQUAL(now.allocations, before.allocations);
    CHECK_EQUAL(now.registrations, before.registrations);
    CHECK_EQUAL(now.registered, before.registered);
    CHECK_EQUAL(now.contexts, before.contexts);
    CHECK_EQUAL(now.memory, before.memory);
}

int gpu_fault(void *stream, int result) { return cuda.fault(stream, result); }

int gpu_has_failed(void) {
    int result = cuda.query(NULL);
    return result != 0 && result != NOT_READY;
}

void gpu_fail(const char *function, unsigned nth, int result) { cuda.inject(function, nth, result); }

void gpu_fail_no_more(void) { cuda.inject_no_more(); }
