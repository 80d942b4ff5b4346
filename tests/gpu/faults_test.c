/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of the driver fails once, wherever it is made: an error is returned and nothing leaks. Nothing grows where nothing
 * fails. */
#include "gpu.h"
#include "model.h"

#include <dirent.h>
#include <stdio.h>

enum { NUMEL = 3000, MOST_FUNCTIONS = 100, MOST_NAME = 64 };

/* With ODC_ADD_BY_OWNER=1 gradients of two bytes are what it concerns. */
static int adds_by_owner(void) { return getenv("ODC_ADD_BY_OWNER") != NULL; }
static int gradient_type(void) { return adds_by_owner() ? ODC_BF16 : ODC_F32; }

/* ---- The driver's functions ---- */

typedef struct functions {
    int count;
    char names[MOST_FUNCTIONS][MOST_NAME];
} functions;

/* From the table in cuda/cuda_interface.h. */
static void read_functions(functions *all) {
    char path[1024];
    char line[512];
    const char *sources = getenv("ODC_SOURCE_DIR");
    CHECK(sources != NULL);
    snprintf(path, sizeof path, "%s/cuda/cuda_interface.h", sources);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    memset(all, 0, sizeof *all);
    while (fgets(line, sizeof line, file) != NULL) {
        CHECK(all->count < MOST_FUNCTIONS);
        all->count += sscanf(line, " X(%63[A-Za-z0-9],", all->names[all->count]) == 1;
    }
    fclose(file);
    CHECK(all->count > 40);
}

static int is_in(const char *const *names, size_t count, const char *name) {
    for (size_t i = 0; i < count; ++i) {
        if (strcmp(names[i], name) == 0) {
            return 1;
        }
    }
    return 0;
}
#define IS_IN(names, name) is_in(names, sizeof(names) / sizeof *(names), name)

/* Calls whose failure may leak: nothing else frees the resource, or earlier work may still use it. */
static int may_leave(const char *function) {
    static const char *const names[] = {
        "cuMemUnmap",         "cuMemAddressFree",   "cuMemRelease",      "cuMemHostUnregister",
        "cuEventDestroy",     "cuStreamDestroy",    "cuModuleUnload",    "cuDevicePrimaryCtxRelease",
        "cuMemsetD8Async",    "cuEventRecord",      "cuStreamWaitEvent", "cuStreamWriteValue64",
        "cuMemcpyAsync",      "cuMemcpyBatchAsync", "cuLaunchKernel",    "cuFlushGPUDirectRDMAWrites",
        "cuStreamWaitValue64"};
    return IS_IN(names, function);
}

/* ---- One after the other ---- */

typedef enum phase { INIT, REGISTER, PUBLISH, GATHER, ADD, SYNC, RELEASE, PHASES } phase;

typedef struct fault {
    const char *function;
    unsigned nth;
    int result;
} fault;

typedef struct world {
    functions all;
    phase at;
    atomic_int arrived;
    atomic_int failures;    /* of all rounds */
    atomic_int statuses[2]; /* of this round, by rank */
} world;

typedef struct user {
    world *w;
    int rank;
    int size;
    int round;
    const fault *fault; /* NULL: no call of this rank fails */
    odc_context *context;
    tensor t;
    void *buffer;
} user;

static void meet(user *me) {
    raise_flag(&me->w->arrived);
    await_flag(&me->w->arrived, me->size * ++me->round);
}

static odc_status do_phase(user *me, phase now, const char *job) {
    odc_shard_desc desc = describe("layer", NUMEL, ODC_F32, gradient_type());
    odc_config config = config_of(me->rank, me->size, job);
    switch (now) {
        case INIT: return odc_init(&config, &me->context);
        case REGISTER: return odc_register_shard(me->context, &desc, &me->t.shard);
        case PUBLISH: return odc_publish(me->t.shard, gpu_stream(2));
        case GATHER: return odc_gather(me->t.shard, me->buffer, NUMEL, gpu_stream(2));
        case ADD: return odc_scatter_add(me->t.shard, me->buffer, NUMEL, gpu_stream(2));
        case SYNC: return odc_minibatch_sync(me->context);
        case RELEASE: return odc_release_shard(me->t.shard);
        default: return ODC_OK;
    }
}

/* From init to release; the first error ends it. */
static odc_status use_all(user *me, const char *job) {
    odc_status status = ODC_OK;
    for (phase now = INIT; now < PHASES && status == ODC_OK; ++now) {
        if (me->fault != NULL && me->w->at == now) {
            gpu_fail(me->fault->function, me->fault->nth, me->fault->result);
        }
        status = do_phase(me, now, job);
        gpu_fail_no_more();
    }
    if (status != ODC_OK) {
        CHECK_SENTENCE(odc_last_error(), "cuda|rank 0");
        CHECK(status != ODC_ERROR_INTERNAL && status != ODC_ERROR_TIMEOUT);
    }
    set_flag(&me->w->statuses[me->rank], status);
    return status;
}

/* By rank 0. Returns whether there was an error: there is none where the function is not called, or not needed. */
static int try_fault(user *me, const fault *one, const char *job) {
    char name[192];
    struct fake_cuda_counts before = gpu_live();
    int failures = read_flag(&me->w->failures);
    snprintf(name, sizeof name, "%s.%d", job, me->round);
    me->fault = me->rank == 0 ? one : NULL;
    me->context = NULL;
    meet(me);
    if (use_all(me, name) != ODC_OK) {
        raise_flag(&me->w->failures);
        if (getenv("ODC_TEST_VERBOSE") != NULL) {
            printf("%s:%u:%d: rank %d: %s\n", one->function, one->nth, one->result, me->rank, odc_last_error());
        }
        odc_destroy(me->context);
        me->context = NULL;
    }
    meet(me);
    if (me->w->at < SYNC && read_flag(&me->w->statuses[0]) == ODC_ERROR_DEVICE && me->size == 2) {
        CHECK_EQUAL(read_flag(&me->w->statuses[1]), ODC_ERROR_DEVICE); /* it is a job error */
    }
    odc_destroy(me->context);
    for (uint64_t i = 0; i < 4; ++i) {
        gpu_wait(gpu_stream(i)); /* nothing has faulted */
    }
    if (me->fault == NULL || !may_leave(one->function)) {
        gpu_check_live(before);
    }
    return read_flag(&me->w->failures) > failures;
}

static void try_all(int rank, int size, const char *job, void *arg) {
    static const fault faults[] = {{NULL, 1, 2}, {NULL, 1, 1}, {NULL, 1, 999}, {NULL, 2, 999}};
    const size_t kinds = several_hosts() ? 2 : sizeof faults / sizeof *faults; /* odc_init takes long there */
    int fired = 0;
    user me = {.w = arg, .rank = rank, .size = size, .buffer = gpu_new(NUMEL * 4)};
    const fault none = {"none", 1, 1};
    CHECK(!try_fault(&me, &none, job)); /* loads the driver */
    for (int i = 0; i < me.w->all.count; ++i) {
        if (strcmp(me.w->all.names[i], "cuMemHostUnregister") == 0) {
            continue; /* pages that stay registered cannot be registered again, whoever gets them next */
        }
        for (size_t k = 0; k < kinds; ++k) {
            fault one = faults[k];
            one.function = me.w->all.names[i];
            if (!try_fault(&me, &one, job)) {
                break;
            }
            ++fired;
        }
    }
    CHECK(!try_fault(&me, &none, job));      /* and everything works again in the same process */
    CHECK(fired > 0 || me.w->at == RELEASE); /* releasing reports no error */
    gpu_free(me.buffer);
}

static void fail_each_call(const char *name, phase at) {
    world *w = share(sizeof *w);
    needs_fake_cuda("a driver's calls cannot be made to fail at will");
    needs_processes("the driver's calls fail for a process");
    if (at == INIT || at == PUBLISH || at == RELEASE) {
        needs_one_host("it calls the same between hosts");
    }
    read_functions(&w->all);
    w->at = at;
    run_processes_of(name, at == INIT ? 1 : 2, 0, try_all, w);
}

static void each_call_may_fail_in_init(void **state) {
    (void)state;
    fail_each_call(__func__, INIT);
}

static void each_call_may_fail_in_register(void **state) {
    (void)state;
    fail_each_call(__func__, REGISTER);
}

static void each_call_may_fail_in_publish(void **state) {
    (void)state;
    fail_each_call(__func__, PUBLISH);
}

static void each_call_may_fail_in_gather(void **state) {
    (void)state;
    fail_each_call(__func__, GATHER);
}

static void each_call_may_fail_in_scatter_add(void **state) {
    (void)state;
    fail_each_call(__func__, ADD);
}

static void each_call_may_fail_in_sync(void **state) {
    (void)state;
    fail_each_call(__func__, SYNC);
}

static void each_call_may_fail_in_release(void **state) {
    (void)state;
    fail_each_call(__func__, RELEASE);
}

/* What is queried once, when the driver is loaded, is not queried again. */
static void cannot_load(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    gpu_fail(arg, 1, 999);
    for (int i = 0; i < 2; ++i) {
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_UNSUPPORTED, "cuda:0 cannot be used",
                    "driver|libcuda|cuInit");
    }
    config.device = NULL;
    CHECK_OK(odc_init(&config, &context));
    odc_destroy(context);
}

static void each_call_may_fail_when_the_driver_is_loaded(void **state) {
    static const char *const names[] = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount"};
    (void)state;
    needs_fake_cuda("a driver's calls cannot be made to fail at will");
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        run_processes(1, cannot_load, (void *)names[i]);
    }
}

/* ---- Nothing grows ---- */

static void leaves_nothing(int rank, int size, const char *job, void *arg) {
    struct fake_cuda_counts before = {0};
    (void)arg;
    for (int i = 0; i < 3; ++i) {
        char name[128];
        snprintf(name, sizeof name, "%s.%d", job, i);
        before = gpu_live();
        odc_context *context = join(rank, size, name);
        tensor tensors[2] = {make_tensor(context, "a", NUMEL, ODC_F32, ODC_F32),
                             make_tensor(context, "b", NUMEL, ODC_BF16, ODC_F16)};
        use_once(context, tensors, 2, 3);
        CHECK_OK(odc_release_shard(tensors[0].shard));
        odc_destroy(context);
        gpu_collect();
        gpu_check_live(before);
    }
}

static void a_context_leaves_nothing_behind(void **state) {
    (void)state;
    needs_fake_cuda("it counts what there is");
    needs_processes("it counts the resources of a process");
    run_processes(3, leaves_nothing, NULL);
}

/* Descriptors and mappings of this process. */
static int lines_of(const char *command) {
    char line[512];
    int count = 0;
    FILE *file = fopen(command, "re");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        ++count;
    }
    fclose(file);
    return count;
}

/* Pinned or locked memory by /proc/self/status, in KiB; 0: there is no such line. */
static long status_kib(const char *name) {
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            kib = atol(line + strlen(name));
        }
    }
    fclose(file);
    return kib;
}

static int descriptors(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != NULL);
    while (readdir(directory) != NULL) {
        ++count;
    }
    closedir(directory);
    return count;
}

/* A process's resources. */
typedef struct holding {
    struct fake_cuda_counts fake;
    size_t gpu_free;
    int mappings;
    int descriptors;
    long pinned;
    long locked;
} holding;

static holding weigh(void) {
    holding now = {.gpu_free = gpu_free_bytes(),
                   .mappings = lines_of("/proc/self/maps"),
                   .descriptors = descriptors(),
                   .pinned = status_kib("VmPin:"),
                   .locked = status_kib("VmLck:")};
    if (gpu_is_pretended()) {
        now.fake = gpu_live();
    }
    return now;
}

static void check_not_grown(const holding *before) {
    holding now = weigh();
    if (gpu_is_pretended()) {
        gpu_check_live(before->fake);
    }
    printf("GPU memory free %zu then %zu bytes; mappings %d, %d; descriptors %d, %d; pinned %ld, %ld KiB\n",
           before->gpu_free, now.gpu_free, before->mappings, now.mappings, before->descriptors, now.descriptors,
           before->pinned, now.pinned);
    /* Drivers of two processes grow their pools by 2 MiB each time. */
    CHECK(now.gpu_free + (32 << 20) >= before->gpu_free);
    CHECK(now.mappings < before->mappings + 100); /* threads and allocators have their own */
    if (!several_hosts()) {                       /* otherwise the provider opens and closes some */
        CHECK_EQUAL(now.descriptors, before->descriptors);
    }
    CHECK_EQUAL(now.pinned, before->pinned);
    CHECK_EQUAL(now.locked, before->locked);
}

static void many_minibatches(odc_context *context, void *arg) {
    const int minibatches = 1000 / slowdown();
    holding before = {0};
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, gradient_type());
    void *full = new_buffer(t, ODC_F32);
    (void)arg;
    for (int i = 0; i < minibatches; ++i) {
        void *stream = gpu_stream((uint64_t)i);
        CHECK_OK(odc_publish(t.shard, stream));
        CHECK_OK(odc_gather(t.shard, full, NUMEL, stream));
        CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, stream));
        CHECK_OK(odc_minibatch_sync(context));
        if (i == 10) {
            before = weigh();
        }
    }
    check_not_grown(&before);
    gpu_free(full);
}

static void nothing_grows_over_many_minibatches(void **state) {
    (void)state;
    needs_processes("it counts the resources of a process");
    setenv("FAKE_CUDA_DELAY_US", "10", 1);
    run_ranks(2, many_minibatches, NULL);
    unsetenv("FAKE_CUDA_DELAY_US");
}

static void register_and_release(odc_context *context, void *arg) {
    struct fake_cuda_counts before = gpu_live();
    const int times = slowdown() > 1 ? 40 : 200;
    (void)arg;
    CHECK_OK(odc_minibatch_sync(context)); /* the other rank's registration comes after this rank's count */
    for (int i = 0; i < times; ++i) {
        odc_shard_desc descs[2] = {describe("a", NUMEL, ODC_F32, gradient_type()), describe("b", 10, ODC_BF16, 0)};
        odc_shard *shards[2];
        CHECK_OK(odc_register_shards(context, descs, 2, shards));
        CHECK_OK(odc_publish_all(context, gpu_stream((uint64_t)i)));
        CHECK_OK(odc_minibatch_sync(context));
        CHECK_OK(odc_release_shard(shards[i % 2]));
        CHECK_OK(odc_release_shard(shards[1 - i % 2]));
        if (i == 0 && (getenv("ODC_TEST_HOSTS") != NULL || adds_by_owner())) {
            before = gpu_live(); /* includes the staging for other hosts, and slots */
        }
        gpu_check_live(before);
        CHECK_OK(odc_minibatch_sync(context)); /* the names may be used again */
    }
}

static void a_released_shard_leaves_nothing_behind(void **state) {
    (void)state;
    needs_fake_cuda("it counts what there is");
    needs_processes("it counts the resources of a process");
    run_ranks(2, register_and_release, NULL);
}

/* ---- Interruptions of short waits ---- */

enum { REGISTRATIONS = 64, ASK_NS = 20000000, SLOW_TRIES = 100 };

static int count_and_interrupt(void *arg) {
    ++*(int *)arg;
    return 1;
}

/* The memory that is being cleared when its registration is interrupted stays in use until the GPU is done, so a wait shorter
 * than ASK_NS does not ask. */
static void register_while_interrupted(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    int asks = 0;
    (void)arg;
    config.interrupted = count_and_interrupt;
    config.interrupted_arg = &asks;
    CHECK_OK(odc_init(&config, &context));
    asks = 0;
    int64_t begin = now_ns();
    for (int i = 0; i < REGISTRATIONS; ++i) {
        char name[32];
        odc_shard *shard = NULL;
        snprintf(name, sizeof name, "layer.%d", i);
        odc_shard_desc desc = describe(name, NUMEL, ODC_F32, ODC_F32);
        odc_status status = odc_register_shard(context, &desc, &shard);
        CHECK(status == ODC_OK || status == ODC_ERROR_INTERRUPTED);
    }
    CHECK(asks <= (now_ns() - begin) / ASK_NS);
    odc_destroy(context);
}

static void a_registration_is_not_interrupted_at_once(void **state) {
    (void)state;
    run_processes(1, register_while_interrupted, NULL);
}

static int is_set(void *arg) { return *(int *)arg; }

static odc_status register_numbered(odc_context *context, int number) {
    char name[32];
    odc_shard *shard = NULL;
    snprintf(name, sizeof name, "layer.%d", number);
    odc_shard_desc desc = describe(name, NUMEL, ODC_F32, ODC_F32);
    return odc_register_shard(context, &desc, &shard);
}

/* Nothing of an interrupted registration is left once the GPU has completed its work. */
static void be_interrupted_while_clearing(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    int stop = 0;
    int number = 0;
    (void)arg;
    struct fake_cuda_counts none = gpu_live();
    config.interrupted = is_set;
    config.interrupted_arg = &stop;
    CHECK_OK(odc_init(&config, &context));
    CHECK_OK(register_numbered(context, number));
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    struct fake_cuda_counts before = gpu_live();
    stop = 1;
    int interrupted = 0;
    int registered = 0;
    while (interrupted < 3) {
        odc_status status = register_numbered(context, ++number);
        CHECK(number < SLOW_TRIES && (status == ODC_OK || status == ODC_ERROR_INTERRUPTED));
        interrupted += status == ODC_ERROR_INTERRUPTED;
        registered += status == ODC_OK;
    }
    stop = 0;
    CHECK_OK(register_numbered(context, ++number)); /* completes after all earlier work */
    ++registered;
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_EQUAL(gpu_live().handles, before.handles + (size_t)registered);
    CHECK_EQUAL(gpu_live().mappings, before.mappings + (size_t)registered);
    stop = 1;
    for (odc_status status = ODC_OK; status == ODC_OK; CHECK(number < SLOW_TRIES)) {
        status = register_numbered(context, ++number);
    }
    odc_destroy(context); /* waits for it */
    gpu_check_live(none);
}

static void an_interrupted_registration_leaves_nothing_behind(void **state) {
    (void)state;
    needs_fake_cuda("it makes GPUs slow, and counts what there is");
    needs_processes("it counts the resources of a process");
    setenv("FAKE_CUDA_DELAY_US", "100000", 1); /* so that clearing takes longer than ASK_NS */
    run_processes(1, be_interrupted_while_clearing, NULL);
    unsetenv("FAKE_CUDA_DELAY_US");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_may_fail_when_the_driver_is_loaded),
        cmocka_unit_test(each_call_may_fail_in_init),
        cmocka_unit_test(each_call_may_fail_in_register),
        cmocka_unit_test(each_call_may_fail_in_publish),
        cmocka_unit_test(each_call_may_fail_in_gather),
        cmocka_unit_test(each_call_may_fail_in_scatter_add),
        cmocka_unit_test(each_call_may_fail_in_sync),
        cmocka_unit_test(each_call_may_fail_in_release),
        cmocka_unit_test(a_context_leaves_nothing_behind),
        cmocka_unit_test(nothing_grows_over_many_minibatches),
        cmocka_unit_test(a_released_shard_leaves_nothing_behind),
        cmocka_unit_test(a_registration_is_not_interrupted_at_once),
        cmocka_unit_test(an_interrupted_registration_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
