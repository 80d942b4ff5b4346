/* SPDX-License-Identifier: Apache-2.0 */
/* Killed ranks, failing GPUs and hung streams: every rank gets an error, none hangs, and memory in use is not unmapped. */
#include "gpu.h"
#include "model.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { NUMEL = 30000, A_STREAM = 3, VICTIM = 1, RANKS = 3 };

static tensor plain(odc_context *context, const char *name) {
    return make_tensor(context, name, NUMEL, ODC_F32, ODC_F32);
}

/* The job error is permanent and keeps its text, whatever the GPU does later. */
static void check_ended(odc_context *context, tensor t, odc_status status) {
    char sentence[2048];
    odc_shard_desc desc = describe("late", 10, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    snprintf(sentence, sizeof sentence, "%s", odc_last_error());
    CHECK_KEPT(odc_minibatch_sync(context), status, sentence);
    CHECK_KEPT(odc_publish_all(context, NULL), status, sentence);
    CHECK_KEPT(odc_register_shard(context, &desc, &shard), status, sentence);
    CHECK_OK(odc_get_slice(t.shard, &(odc_slice){.struct_size = sizeof(odc_slice)}));
}

/* ---- Killed ---- */

typedef enum moment { BEFORE_PUBLISH, PUBLISHING, IN_SYNC, ANYWHERE } moment;

typedef struct scene {
    moment when;
    int delay_us;
    atomic_int ready;
    atomic_int dead;
} scene;

static odc_status run_minibatches(odc_context *context, tensor t) {
    void *full = new_buffer(t, ODC_F32);
    void *gathered = new_buffer(t, ODC_F32);
    odc_status status = ODC_OK;
    for (uint64_t i = 0; status == ODC_OK; ++i) {
        status = odc_publish_all(context, gpu_stream(i));
        for (uint64_t k = 0; k < 3 && status == ODC_OK; ++k) {
            status = odc_scatter_add(t.shard, full, NUMEL, gpu_stream(i + k));
        }
        if (status == ODC_OK) {
            status = odc_gather(t.shard, gathered, NUMEL, gpu_stream(i));
        }
        if (status == ODC_OK) {
            status = odc_minibatch_sync(context);
        }
    }
    return status;
}

static void be_killed(scene *what, odc_context *context, tensor t) {
    await_flag(&what->ready, RANKS - 1);
    if (what->when == PUBLISHING) {
        gpu_hold(gpu_stream(A_STREAM));
        CHECK_OK(odc_publish(t.shard, gpu_stream(A_STREAM)));
    } else if (what->when == IN_SYNC) {
        CHECK_OK(odc_publish(t.shard, NULL));
    } else if (what->when == ANYWHERE) {
        alarm(0);
        ualarm((useconds_t)what->delay_us, 0);
        run_minibatches(context, t);
    }
    raise(SIGKILL);
}

static void survive_or_die(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_context *context = join(rank, size, job);
    tensor t = plain(context, "layer");
    void *full = new_buffer(t, ODC_F32);
    raise_flag(&what->ready);
    if (rank == VICTIM) {
        signal(SIGALRM, SIG_DFL); /* ends the process as a kill does */
        be_killed(what, context, t);
    }
    odc_status status = ODC_OK;
    if (what->when == ANYWHERE) {
        status = run_minibatches(context, t);
    } else {
        CHECK_OK(odc_publish(t.shard, NULL));
        status = what->when == IN_SYNC ? odc_minibatch_sync(context) : odc_gather(t.shard, full, NUMEL, NULL);
    }
    CHECK_EQUAL(status, ODC_ERROR_PEER_LOST);
    CHECK_SENTENCE(odc_last_error(), "rank 1", "died|is lost", "pid");
    check_ended(context, t, status);
    odc_destroy(context);
    gpu_wait(NULL); /* nothing has faulted, and nothing will */
    gpu_collect();
}

static void kill_at(const char *name, moment when, int rounds) {
    scene *what = share(sizeof *what);
    needs_processes("it kills ranks");
    uint64_t random = test_seed();
    for (int i = 0; i < rounds; ++i) {
        memset(what, 0, sizeof *what);
        what->when = when;
        what->delay_us = 1 + (int)random_below(&random, 30000);
        run_processes_of(name, RANKS, 1 << VICTIM, survive_or_die, what);
    }
}

static void a_death_before_publish_ends_gathers(void **state) {
    (void)state;
    kill_at(__func__, BEFORE_PUBLISH, 2);
}

static void a_death_while_a_publish_is_on_its_way_ends_gathers(void **state) {
    (void)state;
    kill_at(__func__, PUBLISHING, 2);
}

static void a_death_ends_sync(void **state) {
    (void)state;
    kill_at(__func__, IN_SYNC, 2);
}

static void a_death_with_work_in_flight_faults_nobody(void **state) {
    (void)state;
    kill_at(__func__, ANYWHERE, several_hosts() || gpu_is_real() ? 4 : 15); /* CUDA begins in seconds */
}

/* ---- Ends in odc_init, during the P2P self-test ---- */

static void die(void) { raise(SIGKILL); }

typedef struct ending {
    void (*end)(void);
    const char *text;
} ending;

static int end_in_selftest(void *arg) {
    const ending *what = arg;
    if (gpu_live().handles > 0) {
        what->end();
    }
    return 0;
}

static void try_gpus(int rank, int size, const char *job, void *arg) {
    ending *what = arg;
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    config.timeout_ms = 600000; /* beyond the watchdog: the deadline must not end the wait */
    if (rank == VICTIM) {
        config.interrupted = end_in_selftest;
        config.interrupted_arg = what;
    }
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_RENDEZVOUS, "rank 1", what->text);
}

static void the_end_of_a_rank_in_the_p2p_selftest_is_noticed(void **state) {
    (void)state;
    needs_fake_cuda("it makes GPUs slow");
    needs_processes("it ends ranks");
    needs_one_host("ranks of other hosts try nothing");
    ending how[] = {{die, "died"}, {replace_program, "replaced its program (exec)"}};
    setenv("FAKE_CUDA_DELAY_US", "300000", 1); /* so that the victim waits for its own GPU and is asked */
    for (size_t i = 0; i < sizeof how / sizeof *how; ++i) {
        run_mortals(RANKS, 1 << VICTIM, try_gpus, &how[i]);
    }
    unsetenv("FAKE_CUDA_DELAY_US");
}

typedef struct after {
    atomic_int published;
    atomic_int pid;
    int mapped_before;
} after;

static void outlive(int rank, int size, const char *job, void *arg) {
    after *shared = arg;
    odc_context *context = join(rank, size, job);
    tensor t = plain(context, "layer");
    write_parameters(t, 6);
    CHECK_OK(odc_publish(t.shard, NULL));
    gpu_wait(NULL);
    if (shared->mapped_before && rank == 0) {
        check_gather(t, 6);
    }
    raise_flag(&shared->published);
    if (rank == 1) {
        await_flag(&shared->published, 2);
        set_flag(&shared->pid, getpid());
        raise(SIGKILL);
    }
    await_flag(&shared->pid, 1);
    for (int i = 0; i < 20000 && kill(read_flag(&shared->pid), 0) == 0; ++i) { /* until its parent has reaped it */
        sleep_ms(1);
    }
    for (int i = 0; i < 3; ++i) {
        check_gather(t, 6);
        add_gradients(t, 7);
    }
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1", "died");
    check_ended(context, t, ODC_ERROR_PEER_LOST);
    odc_destroy(context);
    gpu_collect();
}

static void what_a_dead_owner_had_published_can_be_used(void **state) {
    after *shared = share(sizeof *shared);
    (void)state;
    needs_processes("it kills a rank");
    needs_one_host("another host cannot read the memory of the dead");
    run_mortals(2, 2, outlive, shared);
    memset(shared, 0, sizeof *shared);
    shared->mapped_before = 1;
    run_mortals(2, 2, outlive, shared);
}

/* ---- A GPU fails ---- */

typedef enum fault_at {
    AT_REGISTER,
    AT_PUBLISH,
    AT_GATHER,
    AT_ADD,
    AT_SYNC,
    WAITING_FOR_A_PUBLISH, /* this rank waits for another one's publish */
    WAITING_FOR_OWN_WORK,  /* in sync */
    WAITING_FOR_ARRIVALS,
    WAITING_ON_THE_HOST, /* for a slice in host memory */
    FAULTS
} fault_at;

typedef struct failing {
    fault_at when;
} failing;

/* Errors that leave nothing of the context, also the one of another GPU's memory. */
static int result_of(fault_at when) { return when == AT_REGISTER ? 226 : 700; }

static void *fault_soon(void *arg) {
    void *stream = arg;
    await_asleep(getpid()); /* the rank waits */
    CHECK_EQUAL(gpu_fault(stream, 700), 0);
    gpu_let_go();
    return NULL;
}

/* Rank 2 does not publish what the others gather, nor they what rank 2 gathers. */
static odc_status wait_on_the_host(odc_context *context) {
    static float full[NUMEL];
    odc_shard_desc descs[2] = {describe("of all but 2", NUMEL, ODC_F32, 0), describe("of 2", NUMEL, ODC_F32, 0)};
    odc_shard *shards[2];
    odc_status status = ODC_OK;
    for (int i = 0; i < 2 && status == ODC_OK; ++i) {
        descs[i].memory = ODC_HOST_MEMORY;
        status = odc_register_shard(context, &descs[i], &shards[i]);
    }
    odc_shard *mine = shards[odc_rank(context) == 2];
    status = status == ODC_OK ? odc_publish(mine, NULL) : status;
    return status == ODC_OK ? odc_gather(mine, full, NUMEL, NULL) : status;
}

/* Runs minibatches until an error. Rank 0's GPU fails; rank 2 is late where another one is to wait. */
static odc_status use_until_error(const failing *what, odc_context *context, tensor t, void *full, int fails) {
    odc_shard_desc desc = describe("another", 10, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    void *stream = gpu_stream(A_STREAM);
    const int late = odc_rank(context) == 2;
    pthread_t thread;
#define FAULT_AT(moment)                                      \
    if (fails && what->when == (moment)) {                    \
        CHECK_EQUAL(gpu_fault(stream, result_of(moment)), 0); \
        while (!gpu_has_failed()) {                           \
            sleep_us(100);                                    \
        }                                                     \
    }
#define UNLESS_OK(call)              \
    do {                             \
        odc_status status_ = (call); \
        if (status_ != ODC_OK) {     \
            return status_;          \
        }                            \
    } while (0)
    for (;;) {
        FAULT_AT(AT_REGISTER)
        if (what->when == AT_REGISTER) {
            UNLESS_OK(odc_register_shard(context, &desc, &shard));
        }
        if (late && what->when == WAITING_FOR_A_PUBLISH) {
            gpu_hold(stream);
        }
        FAULT_AT(AT_PUBLISH)
        UNLESS_OK(odc_publish_all(context, stream));
        if (fails && what->when == WAITING_FOR_A_PUBLISH) {
            CHECK(pthread_create(&thread, NULL, fault_soon, stream) == 0);
            pthread_detach(thread);
        }
        if (fails && what->when == WAITING_ON_THE_HOST) {
            CHECK(pthread_create(&thread, NULL, fault_soon, stream) == 0);
            pthread_detach(thread);
        }
        if (what->when == WAITING_ON_THE_HOST) {
            return wait_on_the_host(context);
        }
        FAULT_AT(AT_GATHER)
        UNLESS_OK(odc_gather(t.shard, full, NUMEL, stream));
        FAULT_AT(AT_ADD)
        UNLESS_OK(odc_scatter_add(t.shard, full, NUMEL, stream));
        if (fails && what->when == WAITING_FOR_OWN_WORK) {
            gpu_hold(stream);
            UNLESS_OK(odc_gather(t.shard, full, NUMEL, stream));
        }
        if (fails && (what->when == WAITING_FOR_OWN_WORK || what->when == WAITING_FOR_ARRIVALS)) {
            CHECK(pthread_create(&thread, NULL, fault_soon, gpu_stream(2)) == 0);
            pthread_detach(thread);
        }
        if (late && what->when == WAITING_FOR_ARRIVALS) {
            gpu_hold(stream);
            UNLESS_OK(odc_gather(t.shard, full, NUMEL, stream));
        }
        FAULT_AT(AT_SYNC)
        UNLESS_OK(odc_minibatch_sync(context));
    }
#undef FAULT_AT
#undef UNLESS_OK
}

static void has_a_failing_gpu(int rank, int size, const char *job, void *arg) {
    const failing *what = arg;
    odc_context *context = join_within(rank, size, job, 60000); /* errors come long before */
    tensor t = plain(context, "layer");
    void *full = new_buffer(t, ODC_F32);
    int64_t begin = now_ns();
    odc_status status = use_until_error(what, context, t, full, rank == 0);
    CHECK_EQUAL(status, ODC_ERROR_DEVICE);
    CHECK(now_ns() - begin < (int64_t)30000000000);
    CHECK_SENTENCE(odc_last_error(), "rank 0", "pid", "cuda:0 has failed",
                   what->when == AT_REGISTER ? "CUDA_ERROR_CONTAINED" : "CUDA_ERROR_ILLEGAL_ADDRESS",
                   "enqueued there earlier", "kernel of the program");
    check_ended(context, t, status);
    gpu_let_go();
    begin = now_ns();
    odc_destroy(context);
    CHECK(now_ns() - begin < (int64_t)20000000000);
}

static void a_failed_gpu_ends_the_job_at_once_wherever_it_is_seen(void **state) {
    failing *what = share(sizeof *what);
    (void)state;
    needs_fake_cuda("a GPU cannot be made to fail at will");
    needs_processes("a GPU fails for a process");
    for (what->when = AT_REGISTER; what->when < FAULTS; ++what->when) {
        run_processes(3, has_a_failing_gpu, what);
    }
}

static void fails_before_init(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    (void)arg;
    CHECK_EQUAL(gpu_fault(NULL, 719), 0);
    while (!gpu_has_failed()) {
        sleep_us(100);
    }
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_DEVICE, "cuda:0 has failed", "CUDA_ERROR_LAUNCH_FAILED",
                "kernel of the program");
}

static void a_gpu_that_has_failed_before_init_is_refused(void **state) {
    (void)state;
    needs_fake_cuda("a GPU cannot be made to fail at will");
    needs_processes("a GPU fails for a process");
    run_processes(1, fails_before_init, NULL);
}

/* ---- A stream hangs ---- */

typedef enum hung { HUNG_GATHER, HUNG_ADDITION, HUNG_PUBLISH, HANGS } hung;

/* `deadline_ms`: of the hung rank, which is rank 0, and of the other. */
typedef struct hang {
    hung what;
    int64_t deadline_ms[2];
} hang;

static void has_a_hung_stream(int rank, int size, const char *job, void *arg) {
    static const char *const names[HANGS] = {"odc_gather of shard \"layer\"", "odc_scatter_add of shard \"layer\"",
                                             "odc_publish of shard \"other\""};
    const hang *h = arg;
    hung what = h->what;
    int first = h->deadline_ms[0] < h->deadline_ms[1];
    odc_context *context = join_within(rank, size, job, h->deadline_ms[rank] * time_scale());
    tensor t = plain(context, "layer");
    tensor other = plain(context, "other");
    void *full = new_buffer(t, ODC_F32);
    void *stream = gpu_stream(A_STREAM);
    int hangs = rank == 0;
    /* Only the last report of a rank of another host is known. */
    const char *waits = several_hosts() ? "where it waited for its GPU's work of shard \""
                                        : "where it waits for its GPU's work of shard \"";
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_gather(t.shard, full, NUMEL, NULL)); /* so that first-use set-up is done */
    gpu_wait(NULL);
    if (hangs) {
        gpu_hold(stream);
    }
    if (what == HUNG_GATHER) {
        CHECK_OK(odc_gather(t.shard, full, NUMEL, stream));
    } else if (what == HUNG_ADDITION) {
        CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, stream));
    }
    CHECK_OK(odc_publish(other.shard, what == HUNG_PUBLISH ? stream : NULL));
    if (first) {
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_TIMEOUT, "rank 0", "cuda:0", names[what],
                    "odc_minibatch_sync");
    } else if (!hangs && what == HUNG_PUBLISH) {
        CHECK_ERROR(odc_gather(other.shard, full, NUMEL, NULL), ODC_ERROR_TIMEOUT, "rank 0",
                    "has not published shard \"other\" in minibatch 0, or the stream that does it has not come", waits,
                    "of shard \"other\"");
    } else {
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_TIMEOUT, "rank 0", "odc_minibatch_sync", waits,
                    what == HUNG_PUBLISH ? "other" : "layer");
    }
    check_ended(context, t, ODC_ERROR_TIMEOUT);
    int64_t begin = now_ns();
    odc_destroy(context);
    CHECK(now_ns() - begin < (int64_t)20000000000);
    if (hangs) { /* what the stream does now, it does in memory that still exists */
        gpu_let_go();
    }
    gpu_wait(stream);
    gpu_collect();
    gpu_free(full);
}

static void what_hangs_is_named_at_the_deadline_and_not_unmapped(void **state) {
    (void)state;
    for (hung what = HUNG_GATHER; what < HANGS; ++what) {
        run_processes(2, has_a_hung_stream, (&(hang){what, {5000, 60000}}));
    }
    /* The others give up first. */
    run_processes(2, has_a_hung_stream, (&(hang){HUNG_GATHER, {60000, 3000}}));
    run_processes(2, has_a_hung_stream, (&(hang){HUNG_PUBLISH, {60000, 3000}}));
}

/* One of the driver's calls that a call of the library makes fails, while earlier work is still enqueued. */
static void fails_halfway(int rank, int size, const char *job, void *arg) {
    static const char *const functions[HANGS] = {"cuStreamWriteValue64", "cuStreamWriteValue64", "cuEventRecord"};
    hung what = *(hung *)arg;
    odc_context *context = join(rank, size, job);
    tensor t = plain(context, "layer");
    tensor other = plain(context, "other");
    void *full = new_buffer(t, ODC_F32);
    void *stream = gpu_stream(A_STREAM);
    CHECK_OK(odc_publish(t.shard, NULL));
    gpu_wait(NULL);
    gpu_hold(stream);
    gpu_fail(functions[what], 1, 999);
    odc_status status = what == HUNG_GATHER     ? odc_gather(t.shard, full, NUMEL, stream)
                        : what == HUNG_ADDITION ? odc_scatter_add(t.shard, full, NUMEL, stream)
                                                : odc_publish(other.shard, stream);
    CHECK_EQUAL(status, ODC_ERROR_DEVICE);
    CHECK_SENTENCE(odc_last_error(), "cuda:0", functions[what], "CUDA_ERROR_UNKNOWN");
    check_ended(context, t, status);
    odc_destroy(context);
    gpu_let_go();
    gpu_wait(stream);
    gpu_free(full);
}

static void what_was_enqueued_before_a_call_failed_is_not_unmapped(void **state) {
    (void)state;
    needs_fake_cuda("a driver's calls cannot be made to fail at will");
    for (hung what = HUNG_GATHER; what < HANGS; ++what) {
        run_processes(1, fails_halfway, &what);
    }
}

/* A rank may leave once it has published: the others find outstanding work when it leaves. On another host its slices are gone
 * then, so there it waits until they have been read. */
static void leaves_early(int rank, int size, const char *job, void *arg) {
    odc_context *context = join(rank, size, job);
    tensor t = plain(context, "layer");
    void *full = new_buffer(t, ODC_F32);
    void *gathered = new_buffer(t, ODC_F32);
    for (uint64_t i = 0; i < 4; ++i) {
        CHECK_OK(odc_publish(t.shard, gpu_stream(i)));
        CHECK_OK(odc_gather(t.shard, gathered, NUMEL, gpu_stream(i + 1)));
        CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, gpu_stream(i + 2)));
        if (i < 3) {
            CHECK_OK(odc_minibatch_sync(context));
        }
    }
    raise_flag(arg);
    if (several_hosts()) {
        await_flag(arg, size);
    }
    odc_destroy(context); /* with work in flight */
    for (uint64_t i = 0; i < 4; ++i) {
        gpu_wait(gpu_stream(i));
    }
    gpu_free(full);
    gpu_free(gathered);
}

static void a_context_may_end_with_work_in_flight(void **state) {
    (void)state;
    for (int i = 0; i < 5; ++i) {
        run_processes(2, leaves_early, share(sizeof(atomic_int)));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_before_publish_ends_gathers),
        cmocka_unit_test(a_death_while_a_publish_is_on_its_way_ends_gathers),
        cmocka_unit_test(a_death_ends_sync),
        cmocka_unit_test(a_death_with_work_in_flight_faults_nobody),
        cmocka_unit_test(the_end_of_a_rank_in_the_p2p_selftest_is_noticed),
        cmocka_unit_test(what_a_dead_owner_had_published_can_be_used),
        cmocka_unit_test(a_failed_gpu_ends_the_job_at_once_wherever_it_is_seen),
        cmocka_unit_test(a_gpu_that_has_failed_before_init_is_refused),
        cmocka_unit_test(what_hangs_is_named_at_the_deadline_and_not_unmapped),
        cmocka_unit_test(what_was_enqueued_before_a_call_failed_is_not_unmapped),
        cmocka_unit_test(a_context_may_end_with_work_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
