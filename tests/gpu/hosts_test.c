/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory between hosts: each rank is on its own host, and data goes through host memory, or, with ODC_GPU_DIRECT=1 and
 * adapters that support it, through staging in GPU memory. */
#include "hosts.h"
#include "gpu.h"
#include "model.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { NUMEL = 3001, LARGE = 3000017 /* of f32, in three slices: several times the staging */ };

static void own_hosts(void) {
    setenv("ODC_TEST_HOSTS", "99", 1);
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "60000", 1);
}

static void check_same(const char *gpu, const char *host) {
    CHECK(gpu != NULL && host != NULL && strcmp(gpu, host) == 0);
}

/* ---- Routes ---- */

static void where_host_memory_goes(odc_context *context, void *arg) {
    odc_route gpu = {.struct_size = sizeof gpu};
    odc_route host = {.struct_size = sizeof host};
    const int other = 1 - odc_rank(context);
    (void)arg;
    CHECK_OK(odc_get_route(context, other, ODC_GPU_MEMORY, &gpu));
    CHECK_OK(odc_get_route(context, other, ODC_HOST_MEMORY, &host));
    check_same(gpu.transport, "fabric");
    check_same(gpu.access, "staged");
    check_same(gpu.provider, host.provider);
    check_same(gpu.nic, host.nic);
    check_same(gpu.peer_nic, host.peer_nic);
    const char *no_cache = strstr(host.why, "; the node cache"); /* which is about host memory alone */
    CHECK(no_cache != NULL);
    char why[1024];
    snprintf(why, sizeof why, "%.*s", (int)(no_cache - host.why), host.why);
    CHECK_SENTENCE(gpu.why, getenv("ODC_GPU_DIRECT") != NULL ? "by GPUDirect RDMA" : "through host memory", why);
    CHECK_SENTENCE(gpu.why_not, "cuda: rank ", "is on another host");
    CHECK_OK(odc_get_route(context, odc_rank(context), ODC_GPU_MEMORY, &gpu));
    check_same(gpu.transport, "cuda");
}

static void gpu_memory_goes_where_host_memory_goes(void **state) {
    (void)state;
    run_ranks(2, where_host_memory_goes, NULL);
}

static void one_has_none(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_route route = {.struct_size = sizeof route};
    odc_shard *shard = NULL;
    odc_shard_desc desc = describe("layer", NUMEL, ODC_F32, ODC_F32);
    odc_config config = config_of(rank, size, job);
    (void)arg;
    config.device = rank == 1 ? NULL : config.device;
    CHECK_OK(odc_init(&config, &context));
    for (int other = 0; other < size; ++other) {
        CHECK_OK(odc_get_route(context, other, ODC_GPU_MEMORY, &route));
        if (rank == 1 || other == 1) {
            CHECK(route.transport == NULL);
            CHECK_SENTENCE(route.why, "rank 1 has no GPU", "config.device");
        } else {
            CHECK(route.transport != NULL);
        }
    }
    CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_UNSUPPORTED, "\"layer\"", "rank 1", "has no GPU");
    odc_destroy(context);
}

static void a_rank_without_a_gpu_is_named(void **state) {
    (void)state;
    run_processes(3, one_has_none, NULL);
}

/* ---- Staging ---- */

static void many_pieces(odc_context *context, void *arg) {
    const int types[] = {ODC_F32, ODC_BF16, ODC_F16, ODC_F64};
    tensor all[4];
    char name[24];
    (void)arg;
    for (int i = 0; i < 4; ++i) {
        snprintf(name, sizeof name, "layer%d", i);
        all[i] = make_tensor(context, name, (uint64_t)LARGE / (slowdown() > 1 ? 4 : 1), types[i], types[i]);
    }
    for (uint64_t minibatch = 1; minibatch < 3; ++minibatch) {
        use_once(context, all, 4, minibatch);
    }
}

static void slices_larger_than_staging_pass_through_it(void **state) {
    (void)state;
    setenv("ODC_STAGING_BYTES", "1048576", 1);
    run_ranks(3, many_pieces, NULL);
    unsetenv("ODC_STAGING_BYTES");
}

static size_t slots_of(size_t bytes, size_t least) {
    const size_t slot = (size_t)1 << 20;
    return (bytes / slot > least ? bytes / slot : least) * slot;
}

/* Pinned bytes: ODC_STAGING_BYTES for outgoing data, and as much for incoming. Between GPUs of a host all data is outgoing;
 * what network adapters move is not staged in host memory. */
static void staging_is_bounded(odc_context *context, void *arg) {
    const uint64_t numel = 1 << 20;
    const int by_nic = several_hosts() && getenv("ODC_GPU_DIRECT") != NULL;
    const size_t out = by_nic ? 0 : slots_of(*(size_t *)arg, 1);
    const size_t in = by_nic || !several_hosts() ? 0 : slots_of(*(size_t *)arg, 3);
    const int64_t words = 3 * 4096; /* words for completion and for publishes */
    const size_t before = gpu_live().registered;
    tensor two[2];
    two[0] = make_tensor(context, "first", numel, ODC_F32, ODC_F32);
    use_once(context, two, 1, 3);
    const size_t first = gpu_live().registered - before;
    two[1] = make_tensor(context, "second", numel, ODC_F32, ODC_F32); /* pins as much, but no staging */
    use_once(context, two, 2, 5);
    const int64_t beyond = (int64_t)(2 * first - (gpu_live().registered - before) - (out + in));
    CHECK(-words <= beyond && beyond <= words);
}

/* On GPUs without peer access. */
static void with_each_staging(const char *name, const char *hosts) {
    static size_t allowed[] = {256 << 10, 5 << 20, 16 << 20};
    char text[32];
    needs_fake_cuda("it counts what is pinned");
    needs_processes("the driver counts what a process pins");
    setenv("ODC_TEST_HOSTS", hosts, 1);
    setenv("ODC_TEST_DEVICES", "2", 1);
    setenv("FAKE_CUDA_P2P", "none", 1);
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; ++i) {
        snprintf(text, sizeof text, "%zu", allowed[i]);
        setenv("ODC_STAGING_BYTES", text, 1);
        run_ranks_of(name, 2, staging_is_bounded, &allowed[i]);
    }
    unsetenv("ODC_STAGING_BYTES");
    unsetenv("FAKE_CUDA_P2P");
    setenv("ODC_TEST_DEVICES", "1", 1);
    own_hosts();
}

static void staging_between_hosts_is_bounded(void **state) {
    (void)state;
    with_each_staging(__func__, "99");
}

static void staging_between_gpus_is_bounded(void **state) {
    (void)state;
    with_each_staging(__func__, "1");
}

/* A gather that is not waited for yet must not keep the staging that another needs. */
static void start_all(odc_context *context, void *arg) {
    enum { COUNT = 4 };
    tensor all[COUNT];
    void *gathered[COUNT];
    void *streams[COUNT];
    uint64_t operations[COUNT];
    char name[24];
    tensor last = make_tensor(context, "told last", NUMEL, ODC_F32, 0);
    (void)arg;
    write_parameters(last, 7);
    for (int i = 0; i < COUNT; ++i) {
        snprintf(name, sizeof name, "layer%d", i);
        all[i] = make_tensor(context, name, (uint64_t)LARGE / (slowdown() > 1 ? 4 : 1), ODC_F32, 0);
        gathered[i] = new_buffer(all[i], ODC_F32);
        write_parameters(all[i], (uint64_t)i);
    }
    CHECK_OK(odc_publish_all(context, NULL));
    check_gather(last, 7);
    for (int i = 0; i < COUNT; ++i) {
        streams[i] = some_stream(all[i]);
        CHECK_OK(odc_gather_start(all[i].shard, gathered[i], all[i].numel, streams[i], &operations[i]));
    }
    for (int i = COUNT - 1; i >= 0; --i) {
        CHECK_OK(odc_wait(context, operations[i]));
        await_stream(all[i], streams[i]);
        check_buffer(all[i], gathered[i], (uint64_t)i);
    }
    CHECK_OK(odc_minibatch_sync(context));
    for (int i = 0; i < COUNT; ++i) {
        free_buffer(all[i], gathered[i]);
    }
    gpu_collect();
}

static void started_gathers_are_waited_for_in_any_order(void **state) {
    (void)state;
    setenv("ODC_STAGING_BYTES", "4194304", 1);
    run_ranks(3, start_all, NULL);
    unsetenv("ODC_STAGING_BYTES");
}

static int stop_now(void *arg) { return read_flag(arg); }

/* Nor may one whose wait was given up. */
static void interrupt_a_wait(int rank, int size, const char *job, void *arg) {
    atomic_int *stop = (atomic_int *)arg + rank;
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    config.interrupted = stop_now;
    config.interrupted_arg = stop;
    CHECK_OK(odc_init(&config, &context));
    tensor all[2] = {make_tensor(context, "a", LARGE, ODC_F32, 0), make_tensor(context, "b", LARGE, ODC_F32, 0)};
    tensor last = make_tensor(context, "told last", NUMEL, ODC_F32, 0);
    void *gathered = new_buffer(all[0], ODC_F32);
    void *stream = gpu_stream(3);
    uint64_t operation = 0;
    odc_status status = ODC_OK;
    for (uint64_t i = 0; i < 2; ++i) {
        write_parameters(all[i], i);
    }
    write_parameters(last, 7);
    CHECK_OK(odc_publish_all(context, NULL));
    check_gather(last, 7);
    CHECK_OK(odc_gather_start(all[0].shard, gathered, LARGE, stream, &operation));
    set_flag(stop, 1);
    status = odc_wait(context, operation);
    set_flag(stop, 0);
    CHECK(status == ODC_OK || status == ODC_ERROR_INTERRUPTED);
    check_gather(all[1], 1);
    /* In one process a capture forbids the other rank's gpu_wait, too. */
    if (status != ODC_OK && !ranks_are_threads()) {
        gpu_begin_capture(stream); /* none of the library's work may be captured into a graph */
        CHECK_ERROR(odc_wait(context, operation), ODC_ERROR_ARGUMENT, "captur");
        CHECK_EQUAL(gpu_end_capture(stream), 0);
    }
    if (status != ODC_OK) {
        CHECK_OK(odc_wait(context, operation));
    }
    gpu_wait(stream);
    check_buffer(all[0], gathered, 0);
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
    gpu_collect();
}

static void an_interrupted_wait_keeps_no_staging(void **state) {
    (void)state;
    needs_fake_cuda("it captures a stream");
    setenv("ODC_STAGING_BYTES", "1048576", 1);
    run_processes(2, interrupt_a_wait, share(2 * sizeof(atomic_int)));
    unsetenv("ODC_STAGING_BYTES");
}

static void leave_at_once(int rank, int size, const char *job, void *arg) {
    enum { COUNT = 3, TIMES = 4 };
    (void)arg;
    for (int i = 0; i < TIMES; ++i) {
        char name[128];
        odc_context *context = NULL;
        void *gathered[COUNT];
        tensor all[COUNT];
        uint64_t operation = 0;
        snprintf(name, sizeof name, "%s.%d", job, i);
        context = join(rank, size, name);
        for (int k = 0; k < COUNT; ++k) {
            snprintf(name, sizeof name, "layer%d", k);
            all[k] = make_tensor(context, name, LARGE, ODC_F32, 0);
            gathered[k] = new_buffer(all[k], ODC_F32);
        }
        CHECK_OK(odc_publish_all(context, NULL));
        for (int k = 0; k < COUNT; ++k) {
            CHECK_OK(odc_gather_start(all[k].shard, gathered[k], LARGE, some_stream(all[k]), &operation));
        }
        sleep_us(i * 500);
        odc_destroy(context);
        gpu_wait(NULL);
        gpu_collect();
    }
}

static void a_context_may_end_while_slices_are_on_their_way(void **state) {
    (void)state;
    run_processes(3, leave_at_once, NULL);
}

/* ---- Publishes ---- */

typedef struct hearing {
    atomic_int published;
    atomic_int heard;
} hearing;

/* A host shard's publish is received at once, a GPU shard's when the GPU has done it. */
static void publish_both(odc_context *context, hearing *shared, int at_once) {
    odc_shard_desc desc = describe("host", NUMEL, ODC_F32, 0);
    desc.memory = ODC_HOST_MEMORY;
    tensor host = make_described(context, &desc);
    tensor gpu = make_tensor(context, "gpu", NUMEL, ODC_F32, 0);
    void *stream = gpu_stream(3);
    void *full = new_full(NUMEL, ODC_F32);
    int slow = odc_rank(context) == 0;
    write_parameters(host, 4);
    if (slow) {
        gpu_hold(stream);
    }
    enqueue_parameters(gpu, 5, stream);
    if (!at_once) {
        CHECK_OK(odc_publish(gpu.shard, stream));
    }
    CHECK_OK(odc_publish_all(context, at_once ? stream : NULL));
    CHECK_OK(odc_gather(host.shard, full, NUMEL, NULL));
    check_full(host, full, 4);
    raise_flag(&shared->heard);
    if (slow) {
        await_flag(&shared->heard, odc_size(context));
        gpu_let_go();
    }
    check_gather(gpu, 5);
    CHECK_OK(odc_minibatch_sync(context));
    free(full);
    gpu_collect();
}

static void by_one_call(odc_context *context, void *arg) { publish_both(context, arg, 1); }

static void by_two_calls(odc_context *context, void *arg) { publish_both(context, arg, 0); }

static void both_kinds_of_memory_are_published_each_in_its_time(void **state) {
    (void)state;
    run_ranks(2, by_one_call, share(sizeof(hearing)));
    run_ranks(2, by_two_calls, share(sizeof(hearing)));
}

/* ---- Silence ---- */

typedef struct silence {
    int waiting; /* the rank that waits */
    atomic_int ready;
    atomic_int noticed;
} silence;

/* A rank waits for rank 1, which is stopped, and gets the error although its local peer computes. */
static void fall_silent(int rank, int size, const char *job, void *arg) {
    silence *shared = arg;
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, 0);
    use_once(context, &t, 1, 1);
    raise_flag(&shared->ready);
    await_flag(&shared->ready, size);
    if (rank == 1) {
        raise(SIGSTOP);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == shared->waiting) {
        void *full = new_buffer(t, ODC_F32);
        CHECK_ERROR(odc_gather(t.shard, full, NUMEL, NULL), ODC_ERROR_PEER_LOST, "rank 1", "is lost");
        free_buffer(t, full);
        set_flag(&shared->noticed, 1);
    }
    await_flag(&shared->noticed, 1);
    odc_destroy(context);
    gpu_collect();
}

static void who_is_waited_for_is_asked_whether_it_lives(void **state) {
    (void)state;
    needs_processes("it stops a rank");
    setenv("ODC_TEST_HOSTS", "2", 1);
    setenv("ODC_SILENCE_MS", "3000", 1);
    for (int waiting = 0; waiting < 3; waiting += 2) { /* one of them sends heartbeats in any case */
        silence *shared = share(sizeof *shared);
        shared->waiting = waiting;
        run_mortals(3, 2, fall_silent, shared);
    }
    own_hosts();
}

/* ---- Streams wait for slices, threads do not ---- */

typedef enum fate { GOES_ON, GOES_ON_LATER, IS_KILLED, STAYS_STOPPED } fate;

typedef struct absence {
    fate of_owner;
    atomic_int ready;
    atomic_int owner; /* its process */
} absence;

static void await_stopped(int process) {
    char state = 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    while (state != 'T') {
        FILE *file = fopen(path, "r");
        CHECK(file != NULL);
        CHECK_EQUAL(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
        fclose(file);
        sleep_us(1000);
    }
}

static void *continue_later(void *owner) {
    sleep_us(2500000); /* longer than a context that ends waits for its streams */
    CHECK_EQUAL(kill(*(int *)owner, SIGCONT), 0);
    return NULL;
}

static void shut_down_meanwhile(odc_context *context, int owner) {
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, continue_later, &owner), 0);
    CHECK_OK(odc_shutdown(context));
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

/* The owner's progress thread stands still, too, so nothing of its slice arrives. Without a call of libodc, the stream goes on. */
static void gather_of_a_stopped_owner(odc_context *context, tensor t, absence *shared) {
    int owner = read_flag(&shared->owner);
    void *stream = gpu_stream(3);
    void *full = new_buffer(t, ODC_F32);
    await_stopped(owner);
    CHECK_OK(odc_gather(t.shard, full, NUMEL, stream));
    CHECK(!gpu_is_done(stream));
    switch (shared->of_owner) {
        case GOES_ON: CHECK_EQUAL(kill(owner, SIGCONT), 0); break;
        case GOES_ON_LATER: shut_down_meanwhile(context, owner); break;
        case IS_KILLED: CHECK_EQUAL(kill(owner, SIGKILL), 0); break;
        case STAYS_STOPPED: break;
    }
    gpu_wait(stream);
    if (shared->of_owner <= GOES_ON_LATER) {
        check_buffer(t, full, 3);
    }
    if (shared->of_owner == GOES_ON) {
        CHECK_OK(odc_minibatch_sync(context));
    } else if (shared->of_owner !=
               GOES_ON_LATER) { /* what the stream has copied is not the slice, so no call returns ODC_OK any more */
        CHECK_ERROR(odc_gather(t.shard, full, NUMEL, stream), ODC_ERROR_PEER_LOST, "rank 1", "is lost");
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1", "is lost");
    }
    free_buffer(t, full);
}

static void be_absent(int rank, int size, const char *job, void *arg) {
    absence *shared = arg;
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, 0);
    write_parameters(t, 3);
    CHECK_OK(odc_publish(t.shard, NULL));
    check_gather(t, 3); /* both know now that both have published */
    if (rank == 1) {
        set_flag(&shared->owner, getpid());
    }
    raise_flag(&shared->ready);
    await_flag(&shared->ready, size);
    if (rank == 1) {
        raise(SIGSTOP);
        if (shared->of_owner == GOES_ON_LATER) {
            CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 0", "left");
        } else {
            CHECK_OK(odc_minibatch_sync(context));
        }
    } else {
        gather_of_a_stopped_owner(context, t, shared);
    }
    odc_destroy(context);
    gpu_collect();
}

static void with_an_owner_that(const char *name, fate of_owner) {
    absence *shared = share(sizeof *shared);
    needs_processes("it stops a rank");
    if (getenv("ODC_GPU_DIRECT") != NULL) {
        print_message("with GPUDirect RDMA a thread waits for slices\n");
        skip();
    }
    shared->of_owner = of_owner;
    setenv("ODC_SILENCE_MS", of_owner == STAYS_STOPPED ? "3000" : "60000", 1);
    run_processes_of(name, 2, of_owner <= GOES_ON_LATER ? 0 : 2, be_absent, shared);
    own_hosts();
}

static void a_gather_returns_before_its_slices_arrive(void **state) {
    (void)state;
    with_an_owner_that(__func__, GOES_ON);
}

static void odc_shutdown_waits_for_gathers(void **state) {
    (void)state;
    with_an_owner_that(__func__, GOES_ON_LATER);
}

static void a_stream_goes_on_when_the_owner_that_it_waits_for_dies(void **state) {
    (void)state;
    with_an_owner_that(__func__, IS_KILLED);
}

static void a_stream_goes_on_when_the_owner_stays_silent(void **state) {
    (void)state;
    with_an_owner_that(__func__, STAYS_STOPPED);
}

static void leave_before_a_gather(int rank, int size, const char *job, void *arg) {
    atomic_int *left = arg;
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, 0);
    void *full = new_buffer(t, ODC_F32);
    write_parameters(t, 3);
    CHECK_OK(odc_publish(t.shard, NULL));
    check_gather(t, 3);
    raise_flag(left);
    await_flag(left, size);
    if (rank == 0) {
        await_flag(left, size + 1);
        CHECK_ERROR(odc_gather(t.shard, full, NUMEL, NULL), ODC_ERROR_PEER_LOST, "rank 1", "left|is lost");
    } else {
        CHECK_OK(odc_shutdown(context));
    }
    odc_destroy(context);
    raise_flag(left);
    gpu_wait(NULL);
    gpu_collect();
}

static void a_gather_of_an_owner_that_has_left_fails(void **state) {
    (void)state;
    run_processes(2, leave_before_a_gather, share(sizeof(atomic_int)));
}

/* ---- Allowed calls ---- */

static void use_layers(odc_context *context, void *arg) {
    odc_route route = {.struct_size = sizeof route};
    tensor t = make_tensor(context, "layer", NUMEL, ODC_BF16, ODC_BF16);
    (void)arg;
    CHECK_OK(odc_get_route(context, odc_rank(context), ODC_GPU_MEMORY, &route));
    check_same(route.transport, "cuda");
    use_once(context, &t, 1, 1);
}

static void fabric_alone_is_enough_where_each_rank_has_a_host(void **state) {
    (void)state;
    setenv("ODC_TRANSPORTS", "fabric", 1);
    run_ranks(2, use_layers, NULL);
    unsetenv("ODC_TRANSPORTS");
}

/* ---- Differences ---- */

static void differ(odc_context *context, void *arg) {
    odc_shard_desc desc = describe("layer", NUMEL, ODC_F32, 0);
    odc_shard *shard = NULL;
    void *full = NULL;
    (void)arg;
    desc.memory = odc_rank(context) == 0 ? ODC_GPU_MEMORY : ODC_HOST_MEMORY;
    CHECK_OK(odc_register_shard(context, &desc, &shard));
    CHECK_OK(odc_publish(shard, NULL));
    full = odc_rank(context) == 0 ? gpu_new(NUMEL * sizeof(float)) : new_full(NUMEL, ODC_F32);
    CHECK_ERROR(odc_gather(shard, full, NUMEL, NULL), ODC_ERROR_MISMATCH, "\"layer\"", "memory", "GPU", "host");
    if (odc_rank(context) == 1) {
        free(full);
    }
}

static void ranks_that_mean_different_memory_are_both_named(void **state) {
    (void)state;
    run_ranks(2, differ, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpu_memory_goes_where_host_memory_goes),
        cmocka_unit_test(a_rank_without_a_gpu_is_named),
        cmocka_unit_test(slices_larger_than_staging_pass_through_it),
        cmocka_unit_test(staging_between_hosts_is_bounded),
        cmocka_unit_test(staging_between_gpus_is_bounded),
        cmocka_unit_test(started_gathers_are_waited_for_in_any_order),
        cmocka_unit_test(an_interrupted_wait_keeps_no_staging),
        cmocka_unit_test(who_is_waited_for_is_asked_whether_it_lives),
        cmocka_unit_test(a_gather_returns_before_its_slices_arrive),
        cmocka_unit_test(odc_shutdown_waits_for_gathers),
        cmocka_unit_test(a_stream_goes_on_when_the_owner_that_it_waits_for_dies),
        cmocka_unit_test(a_stream_goes_on_when_the_owner_stays_silent),
        cmocka_unit_test(a_gather_of_an_owner_that_has_left_fails),
        cmocka_unit_test(fabric_alone_is_enough_where_each_rank_has_a_host),
        cmocka_unit_test(a_context_may_end_while_slices_are_on_their_way),
        cmocka_unit_test(both_kinds_of_memory_are_published_each_in_its_time),
        cmocka_unit_test(ranks_that_mean_different_memory_are_both_named),
    };
    own_hosts();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
