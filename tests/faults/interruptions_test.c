/* SPDX-License-Identifier: Apache-2.0 */
/* A large share of the calls of `interrupted` return non-zero; an interrupted call has changed nothing and is repeated; an
 * addition that has begun is finished, so sums are exact and the job goes on. Where it cannot be finished, an interruption ends
 * the job. */
#include "model.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { RANKS = 4, NUMEL = 40000, MINIBATCHES = 6, MOST_ADDITIONS = 60, IN_FLIGHT = 4 };

typedef struct whim {
    uint64_t seed;
    int joined; /* odc_init is done; interrupted, it would have to be repeated by all ranks */
} whim;

/* Every second time, at random. */
static int interrupted(void *arg) {
    whim *mine = arg;
    return mine->joined && random_below(&mine->seed, 2) == 0;
}

#define UNTIL_DONE(call)                                      \
    do {                                                      \
        odc_status status_;                                   \
        while ((status_ = (call)) == ODC_ERROR_INTERRUPTED) { \
        }                                                     \
        if (status_ != ODC_OK) {                              \
            printf("%s\n", odc_last_error());                 \
        }                                                     \
        CHECK_EQUAL(status_, ODC_OK);                         \
    } while (0)

static uint64_t additions_of(uint64_t seed, int rank, int minibatch) {
    uint64_t draw = seed + (uint64_t)(rank * MINIBATCHES + minibatch) * 7919;
    return random_below(&draw, MOST_ADDITIONS / (uint64_t)slowdown() + 2);
}

static void add_many(odc_context *context, tensor t, void **buffers, uint64_t salt, uint64_t additions,
                     uint64_t *seed) {
    uint64_t started[IN_FLIGHT] = {0};
    for (uint64_t i = 0; i < additions; ++i) {
        const uint64_t turn = i % IN_FLIGHT;
        if (started[turn] != 0) {
            UNTIL_DONE(odc_wait(context, started[turn]));
            started[turn] = 0;
        }
        fill_gradients(t, buffers[turn], salt + i);
        if (random_below(seed, 3) == 0) {
            UNTIL_DONE(odc_scatter_add_start(t.shard, buffers[turn], NUMEL, NULL, &started[turn]));
        } else {
            UNTIL_DONE(odc_scatter_add(t.shard, buffers[turn], NUMEL, NULL));
        }
    } /* the sync completes the others */
}

static uint64_t salt_of(int rank, int minibatch) { return 1000000 + (uint64_t)(minibatch * RANKS + rank) * 1000; }

static void is_interrupted(int rank, int size, const char *job, void *arg) {
    const uint64_t seed = *(uint64_t *)arg;
    uint64_t draws = seed ^ ((uint64_t)(rank + 1) << 32);
    whim whims = {.seed = ~draws};
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    void *buffers[IN_FLIGHT];
    config.interrupted = interrupted;
    config.interrupted_arg = &whims;
    CHECK_OK(odc_init(&config, &context));
    whims.joined = 1;
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    float *full = new_full(NUMEL, ODC_F32);
    for (int i = 0; i < IN_FLIGHT; ++i) {
        buffers[i] = new_full(NUMEL, ODC_F32);
    }
    write_parameters(t, 3);
    for (int minibatch = 0; minibatch < MINIBATCHES; ++minibatch) {
        uint64_t salts[RANKS * (MOST_ADDITIONS + 2)];
        size_t count = 0;
        double ranks = 1;
        sleep_us((int)random_below(&draws, 3000));
        CHECK_OK(odc_publish_all(context, NULL));
        UNTIL_DONE(odc_gather(t.shard, full, NUMEL, NULL));
        check_full(t, full, 3);
        add_many(context, t, buffers, salt_of(rank, minibatch), additions_of(seed, rank, minibatch), &draws);
        UNTIL_DONE(odc_minibatch_sync(context));
        for (int other = 0; other < size; ++other) {
            for (uint64_t i = 0; i < additions_of(seed, other, minibatch); ++i) {
                salts[count++] = salt_of(other, minibatch) + i;
            }
        }
        check_sums(t, salts, count);
        UNTIL_DONE(odc_all_reduce(context, &ranks, 1, ODC_SUM));
        CHECK(ranks == size);
    }
    for (int i = 0; i < IN_FLIGHT; ++i) {
        free(buffers[i]);
    }
    free(full);
    odc_destroy(context);
}

static void additions_are_finished_and_exact_whatever_is_interrupted(void **state) {
    (void)state;
    uint64_t *seed = share(sizeof *seed);
    *seed = test_seed();
    run_processes(RANKS, is_interrupted, seed);
}

/* ---- Additions that cannot be finished ---- */

enum { LARGE = 8 << 20 };

typedef struct stuck {
    atomic_int wanted; /* while 1, rank 0 is interrupted */
    atomic_int pid;    /* of rank 1 */
} stuck;

static int is_wanted(void *arg) { return read_flag(&((stuck *)arg)->wanted); }

/* Rank 1 has published and is stopped, so it receives nothing of what rank 0 adds. */
static odc_context *with_a_stopped_owner(int rank, int size, const char *job, stuck *what, tensor *t) {
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.interrupted = is_wanted;
    config.interrupted_arg = what;
    CHECK_OK(odc_init(&config, &context));
    *t = make_tensor(context, "layer", LARGE, ODC_F32, ODC_F32);
    write_parameters(*t, 3);
    CHECK_OK(odc_publish_all(context, NULL));
    if (rank == 1) {
        set_flag(&what->pid, getpid());
        CHECK_OK(odc_minibatch_sync(context)); /* does not return: it is killed when rank 0 has ended */
    }
    await_flag(&what->pid, 1);
    check_gather(*t, 3); /* it has published */
    stop_process(read_flag(&what->pid));
    return context;
}

static void gives_up_an_addition(int rank, int size, const char *job, void *arg) {
    stuck *what = arg;
    tensor t;
    odc_context *context = with_a_stopped_owner(rank, size, job, what, &t);
    void *full = new_full(LARGE, ODC_F32);
    set_flag(&what->wanted, 1);
    CHECK_ERROR(odc_scatter_add(t.shard, full, LARGE, NULL), ODC_ERROR_ABORTED, "rank 0", "stopped halfway",
                "sums are incomplete", "rank 1");
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_ABORTED, "stopped halfway");
    free(full);
    odc_destroy(context);
}

static void leaves_an_addition(int rank, int size, const char *job, void *arg) {
    stuck *what = arg;
    tensor t;
    uint64_t addition = 0;
    odc_context *context = with_a_stopped_owner(rank, size, job, what, &t);
    void *full = new_full(LARGE, ODC_F32);
    CHECK_OK(odc_scatter_add_start(t.shard, full, LARGE, NULL, &addition));
    CHECK_OK(odc_shutdown(context));
    set_flag(&what->wanted, 1);
    CHECK_ERROR(odc_wait(context, addition), ODC_ERROR_INTERRUPTED, "odc_wait", "interrupted");
    CHECK_ERROR(odc_wait(context, addition), ODC_ERROR_INTERRUPTED, "odc_wait",
                "interrupted"); /* it is still waited for */
    odc_destroy(context);
    free(full);
}

static void run_stuck(rank_fn fn) {
    if (!several_hosts()) {
        printf("skipped: on one host a rank adds by itself\n");
        skip();
    }
    needs_processes("it stops a rank");
    run_mortals(2, 2, fn, share(sizeof(stuck)));
}

static void an_interruption_ends_the_job_where_an_addition_cannot_be_finished(void **state) {
    (void)state;
    run_stuck(gives_up_an_addition);
}

static void a_wait_after_shutdown_can_be_interrupted(void **state) {
    (void)state;
    run_stuck(leaves_an_addition);
}

/* ---- A rank that never waits ---- */

/* Rank 0 ends the job; rank 1, which only adds to its own slice, notices. */
static void hears(int rank, int size, const char *job, void *arg) {
    atomic_int *adds = arg;
    odc_shard_desc desc = describe("of rank 1", 1000, ODC_F32, ODC_F32);
    desc.slices = (uint64_t[]){0, 1000};
    odc_context *context = join(rank, size, job);
    tensor t = make_described(context, &desc);
    if (rank == 0) {
        await_flag(adds, 1);
        CHECK_OK(odc_abort(context, "enough"));
        odc_destroy(context);
        return;
    }
    CHECK_OK(odc_publish_all(context, NULL));
    float *full = new_full(1000, ODC_F32);
    odc_status status = ODC_OK;
    for (int64_t end = now_ns() + 30 * (int64_t)1000000000; status == ODC_OK && now_ns() < end;) {
        status = odc_scatter_add(t.shard, full, 1000, NULL);
        set_flag(adds, 1);
    }
    CHECK_ERROR(status, ODC_ERROR_ABORTED, "rank 0", "enough");
    free(full);
    odc_destroy(context);
}

static void a_rank_that_never_waits_notices_the_end(void **state) {
    (void)state;
    run_processes(2, hears, share(sizeof(atomic_int)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(additions_are_finished_and_exact_whatever_is_interrupted),
        cmocka_unit_test(an_interruption_ends_the_job_where_an_addition_cannot_be_finished),
        cmocka_unit_test(a_wait_after_shutdown_can_be_interrupted),
        cmocka_unit_test(a_rank_that_never_waits_notices_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
