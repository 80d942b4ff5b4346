/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda in the place of a GPU's driver: without the functions by which tests recognize it, and with those of the driver
 * that tests use instead. So the tests' code for GPUs runs without one, except their own kernels. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };

typedef unsigned long long address;

static struct {
    int (*get_address)(const char *name, void **function, int version, uint64_t flags, int *found);
    int (*count)(int *count);
    int (*retain)(void **context, int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    address (*allocate)(int device, size_t bytes);
    int (*release)(address memory);
    int (*hang)(void *stream);
    void (*unhang)(void);
    int (*begin_capture)(void *stream);
    int (*end_capture)(void *stream);
} fake;

static void look_up(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s lacks %s\n", FAKE_CUDA, name);
        exit(1);
    }
    memcpy(function, &found, sizeof found);
}

static void get(const char *name, int version, void *function) {
    void *found = NULL;
    fake.get_address(name, &found, version, 1, NULL);
    memcpy(function, &found, sizeof found);
}

__attribute__((constructor)) static void load(void) {
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    look_up(library, "cuGetProcAddress_v2", &fake.get_address);
    look_up(library, "fake_cuda_alloc", &fake.allocate);
    look_up(library, "fake_cuda_free", &fake.release);
    look_up(library, "fake_cuda_hang", &fake.hang);
    look_up(library, "fake_cuda_unhang", &fake.unhang);
    look_up(library, "fake_cuda_begin_capture", &fake.begin_capture);
    look_up(library, "fake_cuda_end_capture", &fake.end_capture);
    get("cuDeviceGetCount", 2000, &fake.count);
    get("cuDevicePrimaryCtxRetain", 7000, &fake.retain);
    get("cuCtxPushCurrent", 4000, &fake.push);
    get("cuCtxPopCurrent", 4000, &fake.pop);
}

/* The current context's device; -1: there is none. */
static int current_device(void) {
    void *current = NULL;
    void *context = NULL;
    int count = 0;
    if (fake.pop(&current) != 0 || fake.push(current) != 0 || fake.count(&count) != 0) {
        return -1;
    }
    for (int device = 0; device < count; ++device) {
        if (fake.retain(&context, device) == 0 && context == current) {
            return device;
        }
    }
    return -1;
}

static atomic_int holds;

/* A driver may wait for all streams here, hence forever. */
static void refuse_while_held(const char *call) {
    if (atomic_load(&holds) > 0) {
        fprintf(stderr, "%s while a stream is held\n", call);
        abort();
    }
}

static int mem_alloc(address *memory, size_t bytes) {
    int device = current_device();
    refuse_while_held("cuMemAlloc");
    *memory = device >= 0 ? fake.allocate(device, bytes) : 0;
    return *memory != 0 ? 0 : OUT_OF_MEMORY;
}

static int mem_free(address memory) {
    refuse_while_held("cuMemFree");
    return fake.release(memory);
}

typedef struct held {
    const _Atomic uint32_t *word;
    uint32_t value;
} held;

static void *watch(void *arg) {
    held *one = arg;
    while (atomic_load(one->word) < one->value) {
        usleep(100);
    }
    atomic_fetch_sub(&holds, 1);
    fake.unhang(); /* all of them: programs release all at once */
    free(one);
    return NULL;
}

/* Of 32 bits, as tests hold streams by it: libodc waits for words of 64. */
static int wait_value(void *stream, address word, uint32_t value, unsigned flags) {
    held *one = malloc(sizeof *one);
    pthread_t thread;
    if (one == NULL || flags != 0) {
        free(one);
        return INVALID_VALUE;
    }
    atomic_fetch_add(&holds, 1);
    *one = (held){(const _Atomic uint32_t *)(uintptr_t)word, value};
    int result = fake.hang(stream);
    if (pthread_create(&thread, NULL, watch, one) != 0) {
        free(one);
        return OUT_OF_MEMORY;
    }
    pthread_detach(thread);
    return result;
}

static int begin_capture(void *stream, int mode) { return mode == 0 ? fake.begin_capture(stream) : INVALID_VALUE; }

static int end_capture(void *stream, void **graph) {
    *graph = NULL;
    return fake.end_capture(stream);
}

static int destroy_graph(void *graph) { return graph == NULL ? INVALID_VALUE : 0; }

typedef void (*any_function)(void);

static const struct {
    const char *name;
    int version;
    any_function function;
} ours[] = {{"cuMemAlloc", 3020, (any_function)mem_alloc},
            {"cuMemFree", 3020, (any_function)mem_free},
            {"cuStreamWaitValue32", 11070, (any_function)wait_value},
            {"cuStreamBeginCapture", 10010, (any_function)begin_capture},
            {"cuStreamEndCapture", 10000, (any_function)end_capture},
            {"cuGraphDestroy", 10000, (any_function)destroy_graph}};

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char *name, void **function, int version,
                                                               uint64_t flags, int *found) {
    for (size_t i = 0; i < sizeof ours / sizeof *ours; ++i) {
        if (strcmp(name, ours[i].name) == 0 && version == ours[i].version) {
            memcpy(function, &ours[i].function, sizeof *function);
            return 0;
        }
    }
    return fake.get_address(name, function, version, flags, found);
}
