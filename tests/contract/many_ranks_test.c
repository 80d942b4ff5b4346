/* SPDX-License-Identifier: Apache-2.0 */
/* Syncs and reductions of more ranks than a node of the sync tree has, compared with a model of the order in which values are
 * combined: random delays, registrations and interruptions; ranks that stop inside a sync, or die. */
#include "model.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST_RANKS = 48, BLOCK = 16, MOST_VALUES = 5 };

/* ---- The model ---- */

/* A rank's values: doubles whose sum depends on the order of additions. */
static double value_of(uint64_t seed, uint64_t number, int rank, int index) {
    uint64_t state = seed ^ (number << 32) ^ ((uint64_t)rank << 8) ^ (uint64_t)index;
    double mantissa = (double)(next_random(&state) >> 11) * 0x1p-53 - 0.5;
    return mantissa * (double)(1u << random_below(&state, 30));
}

static double combine(double left, double right, odc_reduction op) {
    return op == ODC_SUM ? left + right : right > left ? right : left;
}

/* First 16 consecutive ranks each, then 16 such results each. */
static double model_of(uint64_t seed, uint64_t number, int size, int index, odc_reduction op) {
    double parts[MOST_RANKS];
    for (int rank = 0; rank < size; ++rank) {
        parts[rank] = value_of(seed, number, rank, index);
    }
    for (int count = size; count > 1; count = (count + BLOCK - 1) / BLOCK) {
        for (int i = 0; i < count; ++i) {
            parts[i / BLOCK] = i % BLOCK == 0 ? parts[i] : combine(parts[i / BLOCK], parts[i], op);
        }
    }
    return parts[0];
}

static void fill_values(double *values, uint64_t seed, uint64_t number, int rank, int count) {
    for (int i = 0; i < count; ++i) {
        values[i] = value_of(seed, number, rank, i);
    }
}

static void check_values(const double *values, uint64_t seed, uint64_t number, int size, int count, odc_reduction op) {
    for (int i = 0; i < count; ++i) {
        double wanted = model_of(seed, number, size, i, op);
        CHECK(memcmp(&values[i], &wanted, sizeof wanted) == 0);
    }
}

static int many(uint64_t *state) { /* between hosts each rank has a progress thread and connections */
    return several_hosts() ? BLOCK + 2 : BLOCK + 1 + (int)random_below(state, MOST_RANKS - BLOCK);
}

/* ---- Random jobs ---- */

typedef struct life {
    uint64_t seed;
    uint64_t local; /* this rank's own random numbers */
    int interrupts;
} life;

static int sometimes(void *arg) {
    life *mine = arg;
    return mine->interrupts && random_below(&mine->local, 3) == 0;
}

/* Repeats the sync or reduction until it is not interrupted. `count` 0: a sync without values. */
static void reduce(odc_context *context, int rides, double *values, int count, odc_reduction op) {
    odc_status status = ODC_OK;
    do {
        status = rides ? odc_minibatch_sync_reduce(context, count > 0 ? values : NULL, (size_t)count, op)
                       : odc_all_reduce(context, values, (size_t)count, op);
    } while (status == ODC_ERROR_INTERRUPTED);
    CHECK_OK(status);
}

static void delay(life *mine) {
    if (random_below(&mine->local, 8) == 0) {
        sleep_us((int)random_below(&mine->local, 5000));
    }
}

/* One of the shards that all ranks release and register again in this minibatch. */
static void replace(odc_context *context, tensor *t, uint64_t minibatch) {
    char name[32];
    snprintf(name, sizeof name, "shard.%llu", (unsigned long long)minibatch);
    if (t->shard != NULL) {
        CHECK_OK(odc_release_shard(t->shard));
    }
    *t = make_tensor(context, name, 100, ODC_F32, ODC_F32);
}

static void random_life(int rank, int size, const char *job, void *arg) {
    life mine = {*(uint64_t *)arg, 0, 0};
    uint64_t plan = mine.seed;
    uint64_t number = 0;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    tensor t = {0};
    mine.local = mine.seed + 1 + (uint64_t)rank;
    config.interrupted = sometimes;
    config.interrupted_arg = &mine;
    CHECK_OK(odc_init(&config, &context));
    mine.interrupts = 1;
    for (uint64_t minibatch = 0; minibatch < 200 / (slowdown() > 1 ? 4 : 1); ++minibatch) {
        double values[MOST_VALUES];
        int reductions = (int)random_below(&plan, 3);
        int riding = (int)random_below(&plan, MOST_VALUES + 1);
        for (int i = 0; i < reductions; ++i) {
            int count = 1 + (int)random_below(&plan, MOST_VALUES);
            odc_reduction op = random_below(&plan, 2) == 0 ? ODC_SUM : ODC_MAX;
            fill_values(values, mine.seed, ++number, rank, count);
            delay(&mine);
            reduce(context, 0, values, count, op);
            check_values(values, mine.seed, number, size, count, op);
        }
        if (minibatch == 0 || random_below(&plan, 10) == 0) {
            replace(context, &t, minibatch);
        }
        mine.interrupts = 0;
        write_parameters(t, minibatch);
        CHECK_OK(odc_publish_all(context, NULL));
        if (random_below(&mine.local, 4) == 0) {
            check_gather(t, minibatch);
        }
        mine.interrupts = 1;
        delay(&mine);
        fill_values(values, mine.seed, ++number, rank, riding);
        reduce(context, 1, values, riding, ODC_SUM);
        check_values(values, mine.seed, number, size, riding, ODC_SUM);
        check_sums(t, NULL, 0);
        CHECK_EQUAL(odc_minibatch(context), minibatch + 1);
    }
    odc_destroy(context);
}

static void all_ranks_get_the_bits_of_the_documented_order(void **state) {
    (void)state;
    uint64_t *seed = share(sizeof *seed);
    *seed = test_seed();
    uint64_t random = *seed;
    run_processes(many(&random), random_life, seed);
}

/* ---- A rank that is stopped, or interrupted, between arriving and returning ---- */

typedef struct stop {
    int rank;
    int stays;          /* stays in its callback; otherwise its call returns ODC_ERROR_INTERRUPTED */
    int reduces;        /* calls odc_all_reduce; otherwise syncs */
    atomic_int waiting; /* ranks inside the call, the stopped one not counted */
    atomic_int stopped;
    atomic_int returned;
} stop;

typedef struct stopping {
    stop *what;
    int rank;
    int size;
    int seen;
} stopping;

static int stop_inside(void *arg) {
    stopping *mine = arg;
    stop *what = mine->what;
    if (mine->seen || mine->rank == mine->size - 1) {
        return 0;
    }
    mine->seen = 1;
    if (mine->rank != what->rank) {
        raise_flag(&what->waiting);
        return 0;
    }
    if (!what->stays) {
        return 1;
    }
    raise_flag(&what->stopped);
    await_flag(&what->returned, mine->size - 1);
    return 0;
}

/* All but the last rank wait inside, and the stopped one arrived last of them: it has completed its node, or its block's part
 * of the next. Then the last rank arrives, and all but the stopped one return. */
static void one_stops(int rank, int size, const char *job, void *arg) {
    stop *what = arg;
    stopping mine = {what, rank, size, 1};
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    double values[2];
    odc_status status = ODC_OK;
    config.interrupted = stop_inside;
    config.interrupted_arg = &mine;
    CHECK_OK(odc_init(&config, &context));
    mine.seen = 0;
    fill_values(values, 7, 0, rank, 2);
    if (rank == what->rank) {
        await_flag(&what->waiting, size - 2);
    } else if (rank == size - 1) {
        await_flag(&what->stopped, 1);
    }
    status = what->reduces ? odc_all_reduce(context, values, 2, ODC_SUM)
                           : odc_minibatch_sync_reduce(context, values, 2, ODC_SUM);
    if (rank == what->rank && !what->stays) {
        CHECK_EQUAL(status, ODC_ERROR_INTERRUPTED);
        raise_flag(&what->stopped);
        await_flag(&what->returned, size - 1);
        status = what->reduces ? odc_all_reduce(context, values, 2, ODC_SUM)
                               : odc_minibatch_sync_reduce(context, values, 2, ODC_SUM);
    }
    CHECK_OK(status);
    raise_flag(&what->returned);
    check_values(values, 7, 0, size, 2, ODC_SUM);
    mine.seen = 1;
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
}

static void a_rank_that_stops_inside_after_it_came_keeps_nobody(void **state) {
    (void)state;
    needs_one_host("ranks of other hosts are waited for one by one");
    for (int kind = 0; kind < 4; ++kind) {
        for (int rank = 0; rank <= BLOCK; rank += BLOCK / 2) {
            stop *what = share(sizeof *what);
            what->rank = rank;
            what->stays = kind % 2;
            what->reduces = kind / 2;
            run_processes(BLOCK + 2, one_stops, what);
        }
    }
}

/* ---- Deaths ---- */

typedef struct fate {
    uint64_t seed;
    int victim;
} fate;

static void *kill_later(void *arg) {
    sleep_us(*(int *)arg);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void die_among_syncs(int rank, int size, const char *job, void *arg) {
    const fate *what = arg;
    uint64_t random = what->seed + (uint64_t)rank;
    char name[32];
    odc_status status = ODC_OK;
    odc_context *context = join(rank, size, job);
    CHECK_OK(odc_minibatch_sync(context));
    if (rank == what->victim) {
        static int lifetime_us;
        pthread_t killer;
        lifetime_us = (int)random_below(&random, 20000);
        CHECK(pthread_create(&killer, NULL, kill_later, &lifetime_us) == 0);
    }
    for (uint64_t number = 0; status == ODC_OK; ++number) {
        double values[2];
        fill_values(values, what->seed, number, rank, 2);
        if (random_below(&random, 20) == 0) {
            sleep_us((int)random_below(&random, 2000));
        }
        status = number % 2 == 0 ? odc_minibatch_sync_reduce(context, values, 2, ODC_SUM)
                                 : odc_all_reduce(context, values, 2, ODC_SUM);
        if (status == ODC_OK) {
            check_values(values, what->seed, number, size, 2, ODC_SUM);
        }
    }
    snprintf(name, sizeof name, "rank %d (", what->victim);
    CHECK_EQUAL(status, ODC_ERROR_PEER_LOST);
    CHECK_SENTENCE(odc_last_error(), name, "died");
    odc_destroy(context);
}

static void a_death_among_syncs_reaches_all_ranks(void **state) {
    (void)state;
    needs_one_host("fabric_death_test has deaths between hosts");
    fate *what = share(sizeof *what);
    uint64_t random = what->seed = test_seed();
    for (int round = 0; round < (slowdown() > 1 ? 3 : 10); ++round) {
        int size = many(&random);
        what->seed = next_random(&random);
        what->victim = (int)random_below(&random, (uint64_t)size);
        run_mortals(size, UINT64_C(1) << what->victim, die_among_syncs, what);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_get_the_bits_of_the_documented_order),
        cmocka_unit_test(a_rank_that_stops_inside_after_it_came_keeps_nobody),
        cmocka_unit_test(a_death_among_syncs_reaches_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
