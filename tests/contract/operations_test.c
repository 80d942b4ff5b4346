/* SPDX-License-Identifier: Apache-2.0 */
/* Started and completed operations, reductions, and the callback that ends waits. */
#include "model.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct flags {
    atomic_int a;
    atomic_int b;
} flags;

static void start_never_waits(odc_context *context, void *arg) {
    flags *shared = arg;
    tensor t = make_tensor(context, "layer", 3001, ODC_F32, ODC_F32);
    float *full = new_full(3001, ODC_F32);
    float *source = new_full(3001, ODC_F32);
    for (int minibatch = 0; minibatch < 20; ++minibatch) {
        uint64_t salt = (uint64_t)minibatch;
        uint64_t operations[2] = {0, 0};
        write_parameters(t, salt);
        if (odc_rank(context) == 1) { /* publishes only after rank 0's starts have returned */
            await_flag(&shared->a, minibatch + 1);
        }
        CHECK_OK(odc_publish(t.shard, NULL));
        fill_gradients(t, source, salt);
        CHECK_OK(odc_gather_start(t.shard, full, 3001, NULL, &operations[0]));
        CHECK_OK(odc_scatter_add_start(t.shard, source, 3001, NULL, &operations[1]));
        CHECK(operations[0] != operations[1]);
        if (odc_rank(context) == 0) {
            raise_flag(&shared->a);
        }
        CHECK_OK(odc_wait(context, operations[minibatch % 2]));
        CHECK_OK(odc_wait(context, operations[1 - minibatch % 2]));
        check_full(t, full, salt);
        CHECK_OK(odc_minibatch_sync(context));
        check_sums(t, (uint64_t[]){salt, salt}, 2);
    }
    free(full);
    free(source);
}

static void starting_an_operation_never_waits(void **state) {
    (void)state;
    run_ranks(2, start_never_waits, share(sizeof(flags)));
}

/* ---- In the background ---- */

static void await_all(const volatile float *values, uint64_t count, float wanted) {
    int64_t begin = now_ns();
    for (uint64_t i = 0; i < count;) {
        if (values[i] == wanted) {
            ++i;
        } else {
            CHECK(now_ns() - begin < 30 * (int64_t)1000000000);
            sleep_ms(1);
        }
    }
}

enum { MANY = 600011 };

/* Bytes and sums arrive while no rank is in a call of the library. */
static void goes_on_by_itself(odc_context *context, void *arg) {
    flags *shared = arg;
    tensor t = make_tensor(context, "layer", MANY, ODC_F32, ODC_F32);
    odc_slice slice = slice_of(t);
    float *full = new_full(MANY, ODC_F32);
    float *ones = new_full(MANY, ODC_F32);
    uint64_t operations[2];
    for (uint64_t i = 0; i < MANY; ++i) {
        full[i] = 0;
        ones[i] = 1;
    }
    for (uint64_t i = 0; i < slice.numel; ++i) {
        ((float *)slice.parameters)[i] = 7;
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_gather(t.shard, full, MANY, NULL)); /* returns when all have published */
    for (uint64_t i = 0; i < MANY; ++i) {
        full[i] = 0;
    }
    CHECK_OK(odc_gather_start(t.shard, full, MANY, NULL, &operations[0]));
    CHECK_OK(odc_scatter_add_start(t.shard, ones, MANY, NULL, &operations[1]));
    await_all(full, MANY, 7);
    await_all(slice.gradients, slice.numel, (float)odc_size(context));
    raise_flag(&shared->a);
    await_flag(&shared->a, odc_size(context));
    CHECK_OK(odc_wait(context, operations[0]));
    CHECK_OK(odc_wait(context, operations[1]));
    CHECK_OK(odc_minibatch_sync(context));
    free(full);
    free(ones);
}

static void what_is_started_goes_on_while_nobody_calls(void **state) {
    (void)state;
    const char *cache = getenv("ODC_NODE_CACHE");
    char *before = cache != NULL ? strdup(cache) : NULL;
    needs_no_sanitizer("it reads sums that may still change");
    setenv("ODC_NODE_CACHE", "off", 1); /* partial sums go on when all ranks of a host have finished */
    run_ranks(3, goes_on_by_itself, share(sizeof(flags)));
    before != NULL ? setenv("ODC_NODE_CACHE", before, 1) : unsetenv("ODC_NODE_CACHE");
    free(before);
}

enum { STARTED = 40 };

static void started(odc_context *context, void *arg) {
    int complete_by_sync = *(int *)arg;
    tensor t = make_tensor(context, "layer", 777, ODC_BF16, ODC_BF16);
    uint64_t random = 5;
    for (uint64_t minibatch = 0; minibatch < 5; ++minibatch) {
        void *fulls[STARTED];
        uint64_t operations[STARTED];
        uint64_t salts[2 * STARTED];
        size_t added = 0;
        write_parameters(t, minibatch);
        CHECK_OK(odc_publish_all(context, NULL));
        for (uint64_t i = 0; i < STARTED; ++i) { /* every third one adds */
            fulls[i] = new_full(777, ODC_BF16);
            if (i % 3 == 0) {
                fill_gradients(t, fulls[i], i);
                salts[added++] = i;
                salts[added++] = i;
                CHECK_OK(odc_scatter_add_start(t.shard, fulls[i], 777, NULL, &operations[i]));
            } else {
                CHECK_OK(odc_gather_start(t.shard, fulls[i], 777, NULL, &operations[i]));
            }
        }
        uint64_t first = random_below(&random, STARTED);
        for (uint64_t i = 0; !complete_by_sync && i < STARTED; ++i) { /* in another order than they were started */
            uint64_t which = (first + i * 7) % STARTED;
            CHECK_OK(odc_wait(context, operations[which]));
        }
        CHECK_OK(odc_minibatch_sync(context));
        for (uint64_t i = 0; i < STARTED; ++i) {
            if (i % 3 != 0) {
                check_full(t, fulls[i], minibatch);
            }
            if (complete_by_sync) { /* has no effect */
                CHECK_OK(odc_wait(context, operations[i]));
            }
            free(fulls[i]);
        }
        check_sums(t, salts, added);
    }
}

static void started_operations_are_completed_in_any_order(void **state) {
    (void)state;
    run_ranks(2, started, &(int){0});
}

static void sync_completes_started_operations(void **state) {
    (void)state;
    run_ranks(2, started, &(int){1});
}

static void waits_once(odc_context *context, void *arg) {
    (void)arg;
    tensor t = make_tensor(context, "layer", 10, ODC_F32, ODC_F32);
    float full[10] = {0};
    uint64_t operation = 0;
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_gather_start(t.shard, full, 10, NULL, &operation));
    CHECK_OK(odc_wait(context, operation));
    CHECK_ERROR(odc_wait(context, operation), ODC_ERROR_ARGUMENT, "operation");
    CHECK_ERROR(odc_wait(context, operation + 12345), ODC_ERROR_ARGUMENT, "operation");
    CHECK_OK(odc_scatter_add_start(t.shard, full, 10, NULL, &operation));
    CHECK_OK(odc_wait(context, operation));
    CHECK_ERROR(odc_wait(context, operation), ODC_ERROR_ARGUMENT, "operation");
    CHECK_OK(odc_minibatch_sync(context));
}

static void each_operation_is_waited_for_once(void **state) {
    (void)state;
    run_ranks(2, waits_once, NULL);
}

typedef struct waiter {
    odc_context *context;
    uint64_t operation;
} waiter;

static void *wait_in_thread(void *arg) {
    waiter *what = arg;
    CHECK_OK(odc_wait(what->context, what->operation));
    return NULL;
}

static void waits_in_threads(odc_context *context, void *arg) {
    enum { THREADS = 4 };
    (void)arg;
    tensor t = make_tensor(context, "layer", 4001, ODC_F32, ODC_F32);
    for (uint64_t minibatch = 0; minibatch < 5; ++minibatch) {
        pthread_t threads[THREADS];
        waiter waiters[THREADS];
        void *fulls[THREADS];
        write_parameters(t, minibatch);
        if (odc_rank(context) == 1) {
            sleep_ms(2);
        }
        CHECK_OK(odc_publish_all(context, NULL));
        for (int i = 0; i < THREADS; ++i) {
            fulls[i] = new_full(4001, ODC_F32);
            waiters[i].context = context;
            CHECK_OK(odc_gather_start(t.shard, fulls[i], 4001, NULL, &waiters[i].operation));
        }
        for (int i = 0; i < THREADS; ++i) {
            CHECK(pthread_create(&threads[i], NULL, wait_in_thread, &waiters[i]) == 0);
        }
        for (int i = 0; i < THREADS; ++i) {
            pthread_join(threads[i], NULL);
            check_full(t, fulls[i], minibatch);
            free(fulls[i]);
        }
        CHECK_OK(odc_minibatch_sync(context));
    }
}

static void waits_may_run_concurrently(void **state) {
    (void)state;
    run_ranks(2, waits_in_threads, NULL);
}

/* ---- Reductions ---- */

/* Their sum depends on the order. */
static double awkward(int rank, int i, int round) {
    static const double values[4] = {1e16, 1, -1e16, 0.1};
    return values[(rank + i) % 4] * (1 + round) + i;
}

static void combine(double *expected, int count, int size, int round, odc_reduction op) {
    for (int i = 0; i < count; ++i) {
        expected[i] = awkward(0, i, round);
        for (int rank = 1; rank < size; ++rank) {
            double value = awkward(rank, i, round);
            expected[i] = op == ODC_SUM ? expected[i] + value : expected[i] > value ? expected[i] : value;
        }
    }
}

static void reduce(odc_context *context, void *arg) {
    static const int counts[4] = {64, 1, 7, 33};
    (void)arg;
    tensor t = make_tensor(context, "layer", 10, ODC_F32, ODC_F32);
    for (int round = 0; round < 60; ++round) {
        double values[64];
        double expected[64];
        int count = counts[round % 4];
        odc_reduction op = round % 3 == 2 ? ODC_MAX : ODC_SUM;
        for (int i = 0; i < count; ++i) {
            values[i] = awkward(odc_rank(context), i, round);
        }
        combine(expected, count, odc_size(context), round, op);
        int rides = round % 5 == 4;
        if (rides) {
            CHECK_OK(odc_publish_all(context, NULL));
            CHECK_OK(odc_minibatch_sync_reduce(context, values, (size_t)count, op));
        } else { /* several between a sync and the next publish */
            CHECK_OK(odc_all_reduce(context, values, (size_t)count, op));
        }
        CHECK(memcmp(values, expected, (size_t)count * sizeof *values) == 0);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_minibatch_sync(context));
}

static void reductions_are_in_rank_order_and_have_the_same_bits_everywhere(void **state) {
    (void)state;
    for (int size = 1; size <= 4; ++size) {
        run_ranks(size, reduce, NULL);
    }
}

static void rides_every_time(odc_context *context, void *arg) {
    (void)arg;
    tensor t = make_tensor(context, "layer", 100, ODC_F32, ODC_F32);
    for (uint64_t minibatch = 0; minibatch < 200; ++minibatch) {
        double values[2] = {(double)minibatch + odc_rank(context), odc_rank(context)};
        CHECK_OK(odc_publish_all(context, NULL));
        add_gradients(t, minibatch);
        if (minibatch % 7 == 3) { /* any mix, the same on all ranks */
            CHECK_OK(odc_minibatch_sync(context));
        } else {
            CHECK_OK(odc_minibatch_sync_reduce(context, values, 2, ODC_MAX));
            CHECK(values[0] == (double)minibatch + 2 && values[1] == 2);
        }
        check_sums(t, (uint64_t[]){minibatch, minibatch, minibatch}, 3);
    }
}

static void scalars_may_ride_on_sync(void **state) {
    (void)state;
    run_ranks(3, rides_every_time, NULL);
}

/* ---- interrupted ---- */

typedef struct interruption {
    flags *shared;
    atomic_int wanted; /* while 1, the callback returns 1 */
    int caller;        /* its thread */
} interruption;

static int interrupted(void *arg) { return read_flag(&((interruption *)arg)->wanted); }

static void *interrupt_soon(void *arg) {
    await_asleep(((interruption *)arg)->caller);
    set_flag(&((interruption *)arg)->wanted, 1);
    return NULL;
}

/* Runs `call` and has a thread request an interruption once it waits; the library must ask about every 100 ms. The error says
 * what the call waited for. */
#define CHECK_INTERRUPTED(what, call, text)                                                \
    do {                                                                                   \
        pthread_t thread;                                                                  \
        int64_t begin = now_ns();                                                          \
        (what)->caller = (int)syscall(SYS_gettid);                                         \
        CHECK(pthread_create(&thread, NULL, interrupt_soon, what) == 0);                   \
        CHECK_ERROR(call, ODC_ERROR_INTERRUPTED, "interrupt", text);                       \
        CHECK(now_ns() - begin < (int64_t)5000000000); /* generous: the machine is busy */ \
        pthread_join(thread, NULL);                                                        \
        set_flag(&(what)->wanted, 0);                                                      \
    } while (0)

/* Only rank 0 is interrupted. */
static odc_config config_of_interrupted(int rank, int size, const char *job, interruption *what) {
    odc_config config = config_of(rank, size, job);
    config.interrupted = rank == 0 ? interrupted : NULL;
    config.interrupted_arg = what;
    return config;
}

static void interrupt_reduction(odc_context *context, tensor t, interruption *what) {
    double value = 1;
    CHECK_INTERRUPTED(what, odc_all_reduce(context, &value, 1, ODC_SUM), "rank 1");
    /* The peers already have its value: it must be completed before any other, with the same value. */
    CHECK_ERROR(odc_publish(t.shard, NULL), ODC_ERROR_PHASE, "odc_all_reduce", "interrupted");
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PHASE, "odc_all_reduce", "interrupted");
    value = 7;
    CHECK_ERROR(odc_all_reduce(context, &value, 1, ODC_SUM), ODC_ERROR_ARGUMENT, "the same");
    value = 1;
    raise_flag(&what->shared->a);
    CHECK_OK(odc_all_reduce(context, &value, 1, ODC_SUM));
    CHECK(value == 2);
}

static void interrupt_operations(odc_context *context, tensor t, interruption *what) {
    float *full = new_full(100, ODC_F32);
    float *gradient = new_full(100, ODC_F32);
    uint64_t operation = 0;
    uint64_t addition = 0;
    CHECK_INTERRUPTED(what, odc_gather(t.shard, full, 100, NULL), "rank 1");
    fill_gradients(t, full, 8);
    CHECK_INTERRUPTED(what, odc_scatter_add(t.shard, full, 100, NULL), "rank 1");
    CHECK_OK(odc_gather_start(t.shard, full, 100, NULL, &operation));
    CHECK_INTERRUPTED(what, odc_wait(context, operation), "rank 1");
    fill_gradients(t, gradient, 8);
    CHECK_OK(odc_scatter_add_start(t.shard, gradient, 100, NULL, &addition));
    CHECK_INTERRUPTED(what, odc_wait(context, addition), "rank 1");
    raise_flag(&what->shared->a);
    CHECK_OK(odc_wait(context, operation)); /* it must still be waited for */
    check_full(t, full, 3);
    CHECK_OK(odc_wait(context, addition));
    check_gather(t, 3);
    free(full);
    free(gradient);
}

static void interrupt_sync(odc_context *context, interruption *what) {
    double value = 2;
    CHECK_INTERRUPTED(what, odc_minibatch_sync(context), "has not arrived in minibatch 0; it ");
    CHECK_ERROR(odc_minibatch_sync_reduce(context, &value, 1, ODC_SUM), ODC_ERROR_ARGUMENT, "the same");
    CHECK_INTERRUPTED(what, odc_minibatch_sync(context), "has not arrived in minibatch 0; it ");
    raise_flag(&what->shared->a);
    CHECK_OK(odc_minibatch_sync(context));
}

static void let_waits_end(odc_context *context, tensor t, atomic_int *step) {
    double value = 1;
    await_flag(step, 2);
    CHECK_OK(odc_all_reduce(context, &value, 1, ODC_SUM));
    CHECK(value == 2);
    await_flag(step, 3);
    CHECK_OK(odc_publish(t.shard, NULL));
    await_flag(step, 4);
    CHECK_OK(odc_minibatch_sync(context));
}

/* Each kind of rank 0's waits is interrupted, one after the other; rank 1 then lets the wait end. */
static void interrupts(int rank, int size, const char *job, void *arg) {
    interruption what = {arg, 0, 0};
    atomic_int *step = &what.shared->a;
    odc_config config = config_of_interrupted(rank, size, job, &what);
    odc_context *context = NULL;
    if (rank == 0) {
        if (!several_hosts()) {
            CHECK_INTERRUPTED(&what, odc_init(&config, &context), "odc_init");
            CHECK(context == NULL);
        }
        raise_flag(step);
    } else {
        await_flag(step, 1);
    }
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_tensor(context, "layer", 100, ODC_F32, ODC_F32);
    write_parameters(t, 3);
    if (rank == 0) {
        interrupt_reduction(context, t, &what);
        CHECK_OK(odc_publish(t.shard, NULL));
        interrupt_operations(context, t, &what);
        interrupt_sync(context, &what);
    } else {
        let_waits_end(context, t, step);
    }
    check_sums(t, (uint64_t[]){8}, 1); /* interrupted calls added nothing, repeated ones once */
    CHECK_EQUAL(odc_minibatch(context), 1);
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
}

static void an_interrupted_call_returns_soon_and_may_be_made_again(void **state) {
    (void)state;
    run_processes(2, interrupts, share(sizeof(flags)));
}

/* Rank 0 waits for its gather while its reduction is interrupted: only then may it use the buffer. It waits for another while
 * its sync is interrupted, which has completed it. */
static void waits_between(int rank, int size, const char *job, void *arg) {
    interruption what = {arg, 0, 0};
    atomic_int *step = &what.shared->a;
    odc_config config = config_of_interrupted(rank, size, job, &what);
    odc_context *context = NULL;
    double value = 1;
    float *full = new_full(100, ODC_F32);
    uint64_t operation = 0;
    uint64_t synced = 0;
    odc_shard_desc desc = describe("of rank 1", 100, ODC_F32, ODC_F32);
    desc.slices = (uint64_t[]){0, 100};
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_described(context, &desc);
    write_parameters(t, 3);
    if (rank == 0) {
        CHECK_OK(odc_gather_start(t.shard, full, 100, NULL, &operation));
        CHECK_INTERRUPTED(&what, odc_all_reduce(context, &value, 1, ODC_SUM), "rank 1");
        CHECK_INTERRUPTED(&what, odc_wait(context, operation), "rank 1");
        raise_flag(step);
        CHECK_OK(odc_wait(context, operation));
        check_full(t, full, 3);
        CHECK_OK(odc_all_reduce(context, &value, 1, ODC_SUM));
        CHECK_OK(odc_gather_start(t.shard, full, 100, NULL, &synced));
        CHECK_INTERRUPTED(&what, odc_minibatch_sync(context), "has not arrived in minibatch 0; it ");
        CHECK_OK(odc_wait(context, synced));
        CHECK_ERROR(odc_wait(context, operation + 12345), ODC_ERROR_ARGUMENT, "operation");
        raise_flag(step);
    } else {
        await_flag(step, 1);
        CHECK_OK(odc_all_reduce(context, &value, 1, ODC_SUM));
        CHECK_OK(odc_publish(t.shard, NULL));
        await_flag(step, 2);
    }
    CHECK_OK(odc_minibatch_sync(context));
    free(full);
    odc_destroy(context);
}

static void an_operation_is_waited_for_also_between_the_calls_of_an_interrupted_one(void **state) {
    (void)state;
    run_processes(2, waits_between, share(sizeof(flags)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starting_an_operation_never_waits),
        cmocka_unit_test(what_is_started_goes_on_while_nobody_calls),
        cmocka_unit_test(started_operations_are_completed_in_any_order),
        cmocka_unit_test(sync_completes_started_operations),
        cmocka_unit_test(each_operation_is_waited_for_once),
        cmocka_unit_test(waits_may_run_concurrently),
        cmocka_unit_test(reductions_are_in_rank_order_and_have_the_same_bits_everywhere),
        cmocka_unit_test(scalars_may_ride_on_sync),
        cmocka_unit_test(an_interrupted_call_returns_soon_and_may_be_made_again),
        cmocka_unit_test(an_operation_is_waited_for_also_between_the_calls_of_an_interrupted_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
