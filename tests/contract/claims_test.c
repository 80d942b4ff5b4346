/* SPDX-License-Identifier: Apache-2.0 */
/* Items that ranks claim: each is handed out once, whoever asks, from however many threads, whatever dies. Ranks' speeds. */
#include "model.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { RANKS = 3, MOST = 400, MINIBATCHES = 40, MILLION = 1000000 };

/* How often each item was handed out, by minibatch parity. */
typedef struct tally {
    uint64_t seed;
    atomic_int given[2][MOST];
} tally;

/* ---- Handed out once ---- */

typedef struct claimer {
    odc_context *context;
    tally *into;
    uint64_t count;
    uint64_t random;
    uint64_t most; /* claims of this thread */
    uint64_t claimed;
} claimer;

static void *claim_some(void *arg) {
    claimer *mine = arg;
    atomic_int *given = mine->into->given[odc_minibatch(mine->context) % 2];
    for (uint64_t i = 0; i < mine->most; ++i) {
        uint64_t item = UINT64_MAX;
        odc_status status = odc_claim(mine->context, mine->count, &item);
        if (status == ODC_DONE) {
            CHECK_EQUAL(item, mine->count);
            break;
        }
        CHECK_OK(status);
        CHECK(item < mine->count);
        atomic_fetch_add_explicit(&given[item], 1, memory_order_relaxed);
        ++mine->claimed;
        if (random_below(&mine->random, 8) == 0) {
            sleep_us((int)random_below(&mine->random, 100));
        }
    }
    return NULL;
}

/* From two threads at once while a third gathers. Returns how many items this rank claimed. */
static uint64_t claim_in_threads(odc_context *context, tally *into, tensor t, uint64_t salt, uint64_t count,
                                 uint64_t *random) {
    claimer mine[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i) {
        mine[i] = (claimer){context, into, count, next_random(random), UINT64_MAX, 0};
        CHECK(pthread_create(&threads[i], NULL, claim_some, &mine[i]) == 0);
    }
    check_gather(t, salt);
    add_gradients(t, salt);
    for (int i = 0; i < 2; ++i) {
        pthread_join(threads[i], NULL);
    }
    return mine[0].claimed + mine[1].claimed;
}

/* odc_get_claims names `count` items of the minibatch, all different. */
static void check_record(odc_context *context, uint64_t minibatch, uint64_t count) {
    uint64_t items[MOST + 1] = {0};
    size_t found = 0;
    char seen[MOST] = {0};
    CHECK_OK(odc_get_claims(context, minibatch, items, MOST, &found));
    CHECK_EQUAL(found, count);
    for (size_t i = 0; i < found; ++i) {
        CHECK(items[i] < MOST && !seen[items[i]]);
        seen[items[i]] = 1;
    }
}

/* Counts of items differ from minibatch to minibatch; in some nobody claims, in some only part is claimed. */
static void claims_all(odc_context *context, void *arg) {
    tally *into = arg;
    int rank = odc_rank(context);
    uint64_t common = into->seed;
    uint64_t random = common + 1 + (uint64_t)rank;
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    uint64_t before = 0;
    for (uint64_t minibatch = 0; minibatch < MINIBATCHES; ++minibatch) {
        uint64_t kind = random_below(&common, 5);
        uint64_t count = random_below(&common, MOST + 1);
        claimer mine = {context, into, count, next_random(&random), kind == 0 ? 0 : kind == 1 ? 10 : UINT64_MAX, 0};
        uint64_t salt = minibatch;
        write_parameters(t, salt);
        if (kind == 2) {
            claim_some(&mine); /* before anything is published */
        }
        CHECK_OK(odc_publish_all(context, NULL));
        if (kind == 3) {
            mine.claimed = claim_in_threads(context, into, t, salt, count, &random);
        } else {
            claim_some(&mine);
        }
        check_record(context, minibatch, mine.claimed);
        if (minibatch > 0) {
            check_record(context, minibatch - 1, before);
        }
        before = mine.claimed;
        CHECK_OK(odc_minibatch_sync(context));
        uint64_t total = 0;
        for (uint64_t item = 0; item < MOST; ++item) {
            int times = atomic_load_explicit(&into->given[minibatch % 2][item], memory_order_relaxed);
            CHECK(times <= 1 && (times == 0 || item == total)); /* in order, so none is left out */
            total += (uint64_t)times;
        }
        CHECK(kind == 0 ? total == 0 : kind == 1 ? total == (count < 10 * RANKS ? count : 10 * RANKS) : total == count);
        double read = 1;
        CHECK_OK(odc_all_reduce(context, &read, 1, ODC_SUM)); /* all have read */
        if (rank == 0) {
            memset(into->given[minibatch % 2], 0, sizeof into->given[0]);
        }
        CHECK_OK(odc_all_reduce(context, &read, 1, ODC_SUM));
    }
}

static void each_item_is_handed_out_once(void **state) {
    (void)state;
    tally *into = share(sizeof(tally));
    into->seed = test_seed();
    run_ranks(RANKS, claims_all, into);
}

static void claims_many(odc_context *context, void *arg) {
    (void)arg;
    const uint64_t count = MILLION / (several_hosts() ? 100 : 1) / (uint64_t)slowdown();
    double sums[2] = {0, 0}; /* exact: far below 2^53 */
    uint64_t item = 0;
    uint64_t last = 0;
    odc_status status = ODC_OK;
    while ((status = odc_claim(context, count, &item)) == ODC_OK) {
        CHECK(sums[0] == 0 || item > last); /* in order on each rank */
        last = item;
        sums[0] += 1;
        sums[1] += (double)item;
    }
    CHECK_EQUAL(status, ODC_DONE);
    size_t recorded = 0;
    CHECK_OK(odc_get_claims(context, 0, NULL, 0, &recorded));
    CHECK_EQUAL(recorded, sums[0]);
    CHECK_OK(odc_minibatch_sync_reduce(context, sums, 2, ODC_SUM));
    CHECK(sums[0] == (double)count && sums[1] == (double)count * (double)(count - 1) / 2);
}

static void a_million_items(void **state) {
    (void)state;
    run_ranks(RANKS, claims_many, NULL);
}

/* ---- Two contexts ---- */

static void claims_in_two(int rank, int size, const char *job, void *arg) {
    odc_config config = config_of(rank, size, job);
    odc_context *first = NULL;
    odc_context *second = NULL;
    uint64_t item = 0;
    (void)arg;
    CHECK_OK(odc_init(&config, &first));
    config.group = "critic";
    CHECK_OK(odc_init(&config, &second));
    double counts[2] = {0, 0};
    for (odc_status a = ODC_OK, b = ODC_OK; a != ODC_DONE || b != ODC_DONE;) {
        a = odc_claim(first, 100, &item);
        counts[0] += a == ODC_OK;
        b = odc_claim(second, 70, &item);
        counts[1] += b == ODC_OK;
        CHECK(a >= ODC_OK && b >= ODC_OK);
    }
    CHECK_OK(odc_minibatch_sync_reduce(first, counts, 2, ODC_SUM));
    CHECK(counts[0] == 100 && counts[1] == 70);
    CHECK_EQUAL(odc_claim(second, 70, &item), ODC_DONE); /* its minibatch has not ended with the first's */
    CHECK_OK(odc_minibatch_sync(second));
    odc_destroy(second);
    odc_destroy(first);
}

static void contexts_hand_out_their_own_items(void **state) {
    (void)state;
    run_processes(2, claims_in_two, NULL);
}

/* ---- Wrong calls ---- */

static void claims_wrongly(odc_context *context, void *arg) {
    (void)arg;
    uint64_t item = 7;
    uint64_t items[4] = {0};
    size_t count = 0;
    double speeds[3] = {0};
    CHECK_ERROR(odc_claim(NULL, 1, &item), ODC_ERROR_ARGUMENT, "context is NULL");
    CHECK_ERROR(odc_claim(context, 1, NULL), ODC_ERROR_ARGUMENT, "index is NULL");
    CHECK_ERROR(odc_claim(context, (uint64_t)1 << 32, &item), ODC_ERROR_ARGUMENT, "4294967296", "4294967295");
    CHECK_EQUAL(item, 7);
    CHECK_EQUAL(odc_claim(context, 0, &item), ODC_DONE);
    CHECK_EQUAL(item, 0);
    CHECK_ERROR(odc_get_claims(context, 1, items, 4, &count), ODC_ERROR_ARGUMENT, "minibatch 1", "running one, 0");
    CHECK_ERROR(odc_get_claims(context, 0, NULL, 4, &count), ODC_ERROR_ARGUMENT, "indices is NULL");
    CHECK_ERROR(odc_get_claims(context, 0, items, 4, NULL), ODC_ERROR_ARGUMENT, "count is NULL");
    CHECK_ERROR(odc_report_cost(context, -1), ODC_ERROR_ARGUMENT, "cost is -1");
    CHECK_ERROR(odc_report_cost(context, NAN), ODC_ERROR_ARGUMENT, "nan");
    CHECK_ERROR(odc_report_cost(context, INFINITY), ODC_ERROR_ARGUMENT, "inf");
    CHECK_ERROR(odc_get_speeds(context, NULL, 2), ODC_ERROR_ARGUMENT, "speeds is NULL");
    CHECK_ERROR(odc_get_speeds(context, speeds, 3), ODC_ERROR_ARGUMENT, "count is 3", "2 ranks");
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_ERROR(odc_get_claims(context, 0, items, 4, &count), ODC_ERROR_ARGUMENT, "minibatch 0", "running one, 2");
    /* More than there is room for. */
    if (odc_rank(context) == 0) {
        for (int i = 0; i < 6; ++i) {
            CHECK_OK(odc_claim(context, 6, &item));
        }
        items[3] = 99;
        CHECK_OK(odc_get_claims(context, 2, items, 3, &count));
        CHECK(count == 6 && items[0] == 0 && items[1] == 1 && items[2] == 2 && items[3] == 99);
    }
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_OK(odc_shutdown(context));
    CHECK_ERROR(odc_claim(context, 1, &item), ODC_ERROR_PHASE, "odc_claim", "left the job");
    CHECK_ERROR(odc_report_cost(context, 1), ODC_ERROR_PHASE, "odc_report_cost", "left the job");
}

static void wrong_claims_change_nothing(void **state) {
    (void)state;
    run_ranks(2, claims_wrongly, NULL);
}

static void disagrees(odc_context *context, void *arg) {
    atomic_int *first = arg;
    uint64_t item = 0;
    if (odc_rank(context) == 0) {
        CHECK_OK(odc_claim(context, 10, &item));
        raise_flag(first);
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_MISMATCH, "rank 1 (", "12 items in minibatch 0", "from 10");
    } else {
        await_flag(first, 1);
        CHECK_ERROR(odc_claim(context, 12, &item), ODC_ERROR_MISMATCH, "rank 1 (", "12 items in minibatch 0",
                    "from 10");
        CHECK_ERROR(odc_claim(context, 10, &item), ODC_ERROR_MISMATCH, "12 items");
    }
}

static void ranks_that_name_different_counts_are_told(void **state) {
    (void)state;
    run_ranks(2, disagrees, share(sizeof(atomic_int)));
}

/* ---- Faults ---- */

typedef struct scene {
    atomic_int pid; /* of rank 0 */
    atomic_int stopped;
    atomic_int wanted; /* rank 1 is to be interrupted */
    atomic_int given[MOST];
    int victim;
    int at; /* so many claims before it dies, if it gets as many */
} scene;

static int interrupted(void *arg) { return read_flag(&((scene *)arg)->wanted); }

/* Rank 0's process is stopped, so its answer to rank 1's claim does not come until later. */
static void interrupts_a_claim(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    uint64_t item = 0;
    config.interrupted = rank == 1 ? interrupted : NULL;
    config.interrupted_arg = what;
    CHECK_OK(odc_init(&config, &context));
    set_flag(&what->pid, rank == 0 ? (int)getpid() : read_flag(&what->pid));
    if (rank == 0) {
        CHECK_OK(odc_claim(context, 5, &item));
        CHECK_EQUAL(item, 0);
        raise_flag(&what->stopped);
        await_flag(&what->stopped, 2);
    } else {
        await_flag(&what->stopped, 1);
        stop_process(read_flag(&what->pid));
        set_flag(&what->wanted, 1);
        CHECK_ERROR(odc_claim(context, 5, &item), ODC_ERROR_INTERRUPTED, "odc_claim", "rank 0", "has not answered");
        set_flag(&what->wanted, 0);
        CHECK_ERROR(odc_claim(context, 6, &item), ODC_ERROR_ARGUMENT, "count is 6", "with 5 was interrupted");
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PHASE, "odc_claim was interrupted", "call it again");
        CHECK_EQUAL(kill(read_flag(&what->pid), SIGCONT), 0);
        for (uint64_t i = 1; i < 5; ++i) {
            CHECK_OK(odc_claim(context, 5, &item));
            CHECK_EQUAL(item, i);
        }
        CHECK_EQUAL(odc_claim(context, 5, &item), ODC_DONE);
        raise_flag(&what->stopped);
    }
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
}

static void an_item_is_not_lost_with_an_interrupted_claim(void **state) {
    (void)state;
    if (!several_hosts()) {
        print_message("inside a host a claim waits for nobody\n");
        return;
    }
    needs_processes("it stops one");
    run_mortals(2, 1, interrupts_a_claim, share(sizeof(scene)));
}

static void claims_until_death(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_context *context = join(rank, size, job);
    uint64_t item = 0;
    odc_status status = ODC_OK;
    for (int claims = 0; status == ODC_OK && (rank != what->victim || claims < what->at); ++claims) {
        status = odc_claim(context, MOST, &item);
        if (status == ODC_OK) {
            CHECK_EQUAL(atomic_fetch_add_explicit(&what->given[item], 1, memory_order_relaxed), 0);
        }
    }
    if (rank == what->victim) {
        kill(getpid(), SIGKILL);
    }
    if (status == ODC_DONE) {
        status = odc_minibatch_sync(context);
    }
    CHECK_ERROR(status, ODC_ERROR_PEER_LOST, "rank ");
    odc_destroy(context);
}

static void nothing_is_handed_out_twice_when_a_rank_dies(void **state) {
    (void)state;
    needs_processes("one is killed");
    uint64_t random = test_seed();
    for (int round = 0; round < 6; ++round) {
        scene *what = share(sizeof(scene));
        what->victim = (int)random_below(&random, RANKS);
        what->at = (int)random_below(&random, MOST / RANKS);
        run_mortals(RANKS, (uint64_t)1 << what->victim, claims_until_death, what);
    }
}

/* ---- Speeds ---- */

static void read_speeds(odc_context *context, double *speeds) {
    double bounds[2] = {0, 0};
    double sum = 0;
    CHECK_OK(odc_get_speeds(context, speeds, 2));
    for (int i = 0; i < 2; ++i) {
        sum += speeds[i];
        bounds[0] = speeds[i];
        bounds[1] = -speeds[i];
        CHECK_OK(odc_all_reduce(context, bounds, 2, ODC_MAX));
        CHECK(bounds[0] == speeds[i] && bounds[1] == -speeds[i]); /* the same bits everywhere */
    }
    CHECK(sum > 2 - 1e-12 && sum < 2 + 1e-12);
}

/* Ranks sleep equally long, and say how much they computed. */
static void computes(odc_context *context, tensor t, double cost, double *speeds) {
    CHECK_OK(odc_publish(t.shard, NULL));
    sleep_ms(5);
    CHECK_OK(odc_report_cost(context, 1e50));
    CHECK_OK(odc_report_cost(context, cost));
    CHECK_OK(odc_minibatch_sync(context));
    read_speeds(context, speeds);
}

static void has_speeds(odc_context *context, void *arg) {
    (void)arg;
    int rank = odc_rank(context);
    double speeds[2] = {0, 0};
    tensor t = make_tensor(context, "layer", 100, ODC_F32, ODC_F32);
    read_speeds(context, speeds);
    CHECK(speeds[0] == 1 && speeds[1] == 1);
    computes(context, t, 0, speeds); /* 0: not measured */
    CHECK(speeds[0] == 1 && speeds[1] == 1);
    computes(context, t, rank == 1 ? 1e6 : 0, speeds);
    CHECK(speeds[0] == 1 && speeds[1] == 1); /* relative to those measured */
    computes(context, t, 1, speeds);
    CHECK(speeds[1] > 1.99); /* 0.7 of what was */
    for (int i = 0; i < 3; ++i) {
        computes(context, t, 0, speeds); /* keeps what was measured */
        CHECK(speeds[1] > 1.99);
    }
    for (int i = 0; i < 100; ++i) { /* 0.7^100 = 3e-16 of it is left */
        computes(context, t, rank == 0 ? 100 : 1, speeds);
    }
    CHECK(speeds[0] > 1);
}

static void speeds_are_costs_reported_and_averaged(void **state) {
    (void)state;
    run_ranks(2, has_speeds, NULL);
}

/* Rank 0 publishes late; rank 1, which waits for it, is not slower for that. */
static void waits_for_a_publish(odc_context *context, void *arg) {
    (void)arg;
    double speeds[2] = {0, 0};
    float full[100] = {0};
    tensor t = make_tensor(context, "layer", 100, ODC_F32, ODC_F32);
    for (int round = 0; round < 20 && speeds[1] < 0.5; ++round) { /* a busy machine may delay rank 1 as well */
        if (odc_rank(context) == 0) {
            sleep_ms(300);
        }
        CHECK_OK(odc_publish(t.shard, NULL));
        CHECK_OK(odc_gather(t.shard, full, 100, NULL));
        sleep_ms(20);
        CHECK_OK(odc_report_cost(context, 1));
        CHECK_OK(odc_minibatch_sync(context));
        read_speeds(context, speeds);
    }
    CHECK(speeds[1] >= 0.5); /* else at most 2 * 20 / (20 + 320) */
}

static void what_is_waited_for_publishes_does_not_count(void **state) {
    (void)state;
    run_ranks(2, waits_for_a_publish, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_item_is_handed_out_once),
        cmocka_unit_test(a_million_items),
        cmocka_unit_test(contexts_hand_out_their_own_items),
        cmocka_unit_test(wrong_claims_change_nothing),
        cmocka_unit_test(ranks_that_name_different_counts_are_told),
        cmocka_unit_test(an_item_is_not_lost_with_an_interrupted_claim),
        cmocka_unit_test(nothing_is_handed_out_twice_when_a_rank_dies),
        cmocka_unit_test(speeds_are_costs_reported_and_averaged),
        cmocka_unit_test(what_is_waited_for_publishes_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
