/* SPDX-License-Identifier: Apache-2.0 */
/* Node-local sums: what a host's ranks add to slices of other hosts crosses the network once a host and minibatch, whoever says when
 * that it adds nothing more; and it is the sum. Rank r is on host r % hosts, so a host's ranks are r, r + hosts, ... */
#include "crossings.h"
#include "exact_model.h"
#include "hosts.h"
#include "model.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { PART = 20000, ADDITIONS = 4, MINIBATCHES = 3, MOST_RANKS = 8, LINE = 64 };

static uint64_t sent_by_host(odc_context *context) { return sum_by_host(context, stats_of(context).sent_bytes); }

static uint64_t foreign_elements(odc_context *context) {
    return (uint64_t)(odc_size(context) - odc_size(context) / hosts()) * PART;
}

static tensor make_parts(odc_context *context, int gradient_type) {
    return make_tensor(context, "layer", (uint64_t)odc_size(context) * PART, ODC_F32, gradient_type);
}

static uint64_t salt_of(int minibatch, int rank, int addition) {
    return (uint64_t)(100 * minibatch + ADDITIONS * rank + addition);
}

/* So many additions of this rank, at once and started in turn; the last two are not waited for. */
static void add_some(odc_context *context, tensor t, int minibatch, int additions) {
    uint64_t operation = 0;
    void *full = NULL;
    for (int i = 0; i < additions; ++i) {
        const uint64_t salt = salt_of(minibatch, odc_rank(context), i);
        if (i % 2 == 0) {
            add_gradients(t, salt);
            continue;
        }
        full = new_buffer(t, t.gradient_type);
        write_gradients(t, full, salt);
        CHECK_OK(odc_scatter_add_start(t.shard, full, t.numel, NULL, &operation));
        CHECK_OK(odc_wait(context, operation));
        free_buffer(t, full);
    }
}

/* `additions(rank)` of each. */
static void check_all(odc_context *context, tensor t, int minibatch, int (*additions)(int rank)) {
    uint64_t salts[MOST_RANKS * ADDITIONS];
    size_t count = 0;
    for (int rank = 0; rank < odc_size(context); ++rank) {
        for (int i = 0; i < additions(rank); ++i) {
            salts[count++] = salt_of(minibatch, rank, i);
        }
    }
    check_sums(t, salts, count);
}

static int four(int rank) {
    (void)rank;
    return ADDITIONS;
}
static int none(int rank) {
    (void)rank;
    return 0;
}
static int unequal(int rank) { return (3 * rank + 1) % (ADDITIONS + 1); }
static int only_the_first(int rank) { return rank == 0 ? 2 : 0; }

/* ---- Crossing once ---- */

typedef struct kind {
    int gradient_type;
    uint64_t sum_bytes;
    int (*additions)(int rank);
    int finishing; /* ranks whose number has this bit say that they are done; -1: all, 0: none */
} kind;

static void crosses_once(odc_context *context, void *arg) {
    const kind *what = arg;
    const uint64_t foreign = foreign_elements(context) * what->sum_bytes;
    const int rank = odc_rank(context);
    int crosses = 0;
    tensor t = make_parts(context, what->gradient_type);
    for (int other = rank % hosts(); other < odc_size(context); other += hosts()) {
        crosses |= what->additions(other) > 0;
    }
    for (int m = 0; m < MINIBATCHES; ++m) {
        write_parameters(t, (uint64_t)m);
        CHECK_OK(odc_publish(t.shard, NULL));
        add_some(context, t, m, what->additions(rank));
        if (what->finishing < 0 || (rank & what->finishing) != 0) {
            CHECK_OK(odc_finish(t.shard, NULL));
            CHECK_OK(odc_finish(t.shard, NULL));
        }
        CHECK_OK(odc_minibatch_sync(context));
        check_all(context, t, m, what->additions);
        CHECK_EQUAL(sent_by_host(context), crosses ? (uint64_t)(m + 1) * foreign : 0);
    }
}

static void each_sum_crosses_once_a_host_and_minibatch(void **state) {
    kind kinds[] = {{ODC_F32, 4, four, 0}, {ODC_BF16, 4, four, 2}, {ODC_F64, 8, four, -1}, {ODC_F16, 4, unequal, 1}};
    (void)state;
    run_on(__func__, 2, 4, "auto", crosses_once, &kinds[0]);
    run_on(__func__, 3, 6, "auto", crosses_once, &kinds[1]);
    run_on(__func__, 2, 8, "auto", crosses_once, &kinds[2]);
    run_on(__func__, 2, 4, "auto", crosses_once, &kinds[3]);
}

static void where_nobody_adds_nothing_crosses(void **state) {
    kind kinds[] = {{ODC_F32, 4, none, 0}, {ODC_F32, 4, none, -1}, {ODC_F32, 4, only_the_first, 2}};
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; ++k) {
        run_on(__func__, 2, 4, "auto", crosses_once, &kinds[k]);
    }
}

static void crosses_always(odc_context *context, void *arg) {
    const uint64_t foreign = foreign_elements(context) * 4;
    tensor t = make_parts(context, ODC_F32);
    (void)arg;
    CHECK_OK(odc_publish(t.shard, NULL));
    add_some(context, t, 0, ADDITIONS);
    CHECK_OK(odc_finish(t.shard, NULL));
    CHECK_EQUAL(stats_of(context).sent_bytes, ADDITIONS * foreign);
    CHECK_OK(odc_minibatch_sync(context));
    check_all(context, t, 0, four);
}

static void without_partial_sums_it_crosses_for_each_addition(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "off", crosses_always, NULL);
    run_on(__func__, 2, 4, "80000", crosses_always, NULL); /* fits no entry and no sum */
    run_on(__func__, 2, 2, "auto", crosses_always, NULL);  /* a rank a host */
}

/* Each rank holds two entries and two sums, of which one sum does not fit. */
static void half_fits(odc_context *context, void *arg) {
    const uint64_t foreign = foreign_elements(context) * 4;
    const uint64_t ranks = (uint64_t)(odc_size(context) / hosts());
    tensor t = make_parts(context, ODC_F32);
    (void)arg;
    write_parameters(t, 7);
    CHECK_OK(odc_publish(t.shard, NULL));
    check_gather(t, 7);
    add_some(context, t, 0, ADDITIONS);
    CHECK_OK(odc_minibatch_sync(context));
    check_all(context, t, 0, four);
    CHECK_EQUAL(sent_by_host(context), foreign / 2 + ranks * ADDITIONS * foreign / 2);
    CHECK_EQUAL(stats_of(context).served_bytes, foreign);
}

static void entries_come_before_partial_sums(void **state) {
    enum { SLICE = PART * 4, ENTRY = LINE + SLICE, SUM = LINE + LINE + SLICE };
    char bytes[32];
    (void)state;
    CHECK(SLICE % LINE == 0);
    snprintf(bytes, sizeof bytes, "%d", 2 * ENTRY + 2 * SUM - 1);
    run_on(__func__, 3, 6, bytes, half_fits, NULL);
}

/* ---- Exact sums ---- */

/* The bits do not depend on where additions meet, and owners count what partial sums have clamped. */
static void adds_exactly(odc_context *context, void *arg) {
    const int type = *(const int *)arg;
    const int size = odc_size(context);
    odc_shard_desc desc = describe_exact("exact", (uint64_t)size * PART, ODC_F32, type);
    tensor t = make_described(context, &desc);
    exact_model *model = new_exact_model(&desc);
    uint64_t clamped = 0;
    for (int m = 0; m < MINIBATCHES; ++m) {
        uint64_t salts[MOST_RANKS * ADDITIONS];
        for (int i = 0; i < size * ADDITIONS; ++i) {
            salts[i] = salt_of(m, i / ADDITIONS, i % ADDITIONS);
        }
        CHECK_OK(odc_publish(t.shard, NULL));
        add_some(context, t, m, ADDITIONS);
        if (odc_rank(context) % 3 == m % 3) {
            CHECK_OK(odc_finish(t.shard, NULL));
        }
        CHECK_OK(odc_minibatch_sync(context));
        add_exactly(model, salts, (size_t)(size * ADDITIONS));
        check_exact_sums(t, model);
        clamped += model->clamped;
        double counted = (double)stats_of(context).clamped_addends;
        CHECK_OK(odc_all_reduce(context, &counted, 1, ODC_SUM));
        CHECK_EQUAL(counted, clamped);
        CHECK_EQUAL(sent_by_host(context), (uint64_t)(m + 1) * foreign_elements(context) * 8);
    }
    CHECK(clamped > 0);
    free_exact_model(model);
}

static void exact_sums_are_the_same_bits(void **state) {
    int types[] = {ODC_F32, ODC_BF16};
    (void)state;
    run_on(__func__, 2, 4, "auto", adds_exactly, &types[0]);
    run_on(__func__, 3, 6, "auto", adds_exactly, &types[1]);
}

/* Each host makes half of the 4,096 additions that are allowed, or one more. */
static void adds_too_often(odc_context *context, void *arg) {
    const int one_more = *(const int *)arg;
    const int mine = odc_rank(context) < 2 ? 2048 + (odc_rank(context) == 0 ? one_more : 0) : 0;
    odc_shard_desc desc = describe_exact("exact", 4, 0, ODC_F32);
    tensor t = make_described(context, &desc);
    const float ones[4] = {1, 1, 1, 1};
    CHECK_OK(odc_publish(t.shard, NULL));
    for (int i = 0; i < mine; ++i) {
        CHECK_OK(odc_scatter_add(t.shard, ones, 4, NULL));
    }
    if (one_more) {
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_ABORTED, "more than 4096 gradients");
    } else {
        CHECK_OK(odc_minibatch_sync(context));
        CHECK(((float *)slice_of(t).gradients)[0] == 4096);
    }
}

static void addends_of_exact_sums_are_counted_over_hosts(void **state) {
    int one_more[] = {0, 1};
    (void)state;
    run_on(__func__, 2, 4, "auto", adds_too_often, &one_more[0]);
    run_on(__func__, 2, 4, "auto", adds_too_often, &one_more[1]);
}

/* ---- odc_finish ---- */

/* Nobody syncs before all sums of all hosts have been sent and applied. */
static void sends_before_sync(odc_context *context, void *arg) {
    _Atomic uint64_t *sent = arg;
    const int rank = odc_rank(context);
    const uint64_t foreign = foreign_elements(context) * 4;
    tensor t = make_parts(context, ODC_F32);
    CHECK_OK(odc_publish(t.shard, NULL));
    add_some(context, t, 0, ADDITIONS);
    CHECK_OK(odc_finish(t.shard, NULL));
    for (int host = 0; host < hosts(); ++host) {
        uint64_t of_host = 0;
        for (int tries = 0; of_host != foreign; ++tries) {
            CHECK(tries < 30000 && of_host < foreign);
            atomic_store(&sent[rank], stats_of(context).sent_bytes);
            of_host = 0;
            for (int other = host; other < odc_size(context); other += hosts()) {
                of_host += atomic_load(&sent[other]);
            }
            sleep_ms(1);
        }
    }
    CHECK_OK(odc_minibatch_sync(context));
    check_all(context, t, 0, four);
    CHECK_EQUAL(sent_by_host(context), foreign);
}

static void what_all_have_finished_is_sent_before_the_sync(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "auto", sends_before_sync, share(MOST_RANKS * sizeof(uint64_t)));
}

static void refuses(odc_context *context, void *arg) {
    tensor t = make_parts(context, ODC_F32);
    tensor without = make_tensor(context, "parameters", 8, ODC_F32, 0);
    float *full = new_full(t.numel, ODC_F32);
    uint64_t operation = 0;
    (void)arg;
    CHECK_ERROR(odc_finish(t.shard, NULL), ODC_ERROR_PHASE, "publish this rank's slice", "odc_finish");
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_ERROR(odc_finish(without.shard, NULL), ODC_ERROR_ARGUMENT, "\"parameters\" has no gradients");
    CHECK_ERROR(odc_finish(NULL, NULL), ODC_ERROR_ARGUMENT, "NULL");
    CHECK_ERROR(odc_finish(t.shard, full), ODC_ERROR_UNSUPPORTED, "stream");
    fill_gradients(t, full, salt_of(0, odc_rank(context), 0));
    CHECK_OK(odc_scatter_add_start(t.shard, full, t.numel, NULL, &operation));
    CHECK_OK(odc_finish(t.shard, NULL));
    CHECK_OK(odc_wait(context, operation));
    fill_gradients(t, full, 77);
    CHECK_ERROR(odc_scatter_add(t.shard, full, t.numel, NULL), ODC_ERROR_PHASE, "\"layer\"", "odc_finish",
                "minibatch 0");
    CHECK_ERROR(odc_scatter_add_start(t.shard, full, t.numel, NULL, &(uint64_t){0}), ODC_ERROR_PHASE, "odc_finish");
    CHECK_OK(odc_minibatch_sync(context));
    uint64_t salts[MOST_RANKS];
    for (int rank = 0; rank < odc_size(context); ++rank) {
        salts[rank] = salt_of(0, rank, 0);
    }
    check_sums(t, salts, (size_t)odc_size(context));
    CHECK_OK(odc_publish_all(context, NULL));
    add_some(context, t, 1, ADDITIONS);
    CHECK_OK(odc_minibatch_sync(context));
    check_all(context, t, 1, four);
    free(full);
}

static void additions_after_finish_are_refused(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "auto", refuses, NULL);
    run_on(__func__, 2, 4, "off", refuses, NULL);
    run_on(__func__, 1, 2, "auto", refuses, NULL);
}

typedef struct starts {
    atomic_int started[2];  /* by minibatch: rank 0 has */
    atomic_int finished[2]; /* rank 2 has, who adds nothing */
} starts;

/* Rank 0 starts an addition before rank 1 has published, and finishes last of its host, by odc_finish or by the sync. */
static void finishes_what_is_started(odc_context *context, void *arg) {
    starts *what = arg;
    const int rank = odc_rank(context);
    tensor t = make_parts(context, ODC_F32);
    float *full = new_full(t.numel, ODC_F32);
    uint64_t operation = 0;
    for (int m = 0; m < 2; ++m) {
        const uint64_t salt = salt_of(m, 0, 0);
        if (rank == 1) {
            await_flag(&what->started[m], 1);
        }
        CHECK_OK(odc_publish(t.shard, NULL));
        if (rank == 2) {
            CHECK_OK(odc_finish(t.shard, NULL));
            set_flag(&what->finished[m], 1);
        } else if (rank == 0) {
            await_flag(&what->finished[m], 1);
            fill_gradients(t, full, salt);
            CHECK_OK(odc_scatter_add_start(t.shard, full, t.numel, NULL, &operation));
            set_flag(&what->started[m], 1);
            if (m == 0) {
                CHECK_OK(odc_finish(t.shard, NULL));
                CHECK_OK(odc_wait(context, operation));
            }
        }
        CHECK_OK(odc_minibatch_sync(context));
        check_sums(t, &salt, 1);
    }
    free(full);
}

static void what_is_started_ends_before_its_rank_counts(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "auto", finishes_what_is_started, share(sizeof(starts)));
}

/* ---- Who does not take part ---- */

/* Rank 0 has an empty slice: it publishes nothing, adds, and releases the shard in minibatch 1; the others go on without it. */
static void has_nothing(odc_context *context, void *arg) {
    odc_shard_desc desc = describe("layer", 3 * PART, ODC_F32, ODC_F32);
    const int rank = odc_rank(context);
    (void)arg;
    desc.slices = (uint64_t[]){0, PART, PART, PART};
    tensor t = make_described(context, &desc);
    for (int m = 0; m < MINIBATCHES; ++m) {
        const int first = m < 2 ? 0 : 1;
        uint64_t salts[4];
        for (int i = first; i < 4; ++i) {
            salts[i] = salt_of(m, i, 0);
        }
        if (rank != 0) {
            CHECK_OK(odc_publish(t.shard, NULL));
        }
        if (rank >= first) {
            add_gradients(t, salts[rank]);
        }
        if (rank == 0 && m == 1) {
            CHECK_OK(odc_release_shard(t.shard));
        }
        CHECK_OK(odc_minibatch_sync(context));
        if (rank != 0) {
            check_sums(t, &salts[first], (size_t)(4 - first));
        }
    }
}

static void a_rank_without_a_slice_adds_directly(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "auto", has_nothing, NULL);
}

/* Ranks release the shard in different minibatches, before others that do not use it any more. */
static void releases_early(odc_context *context, void *arg) {
    const int rank = odc_rank(context);
    tensor t = make_parts(context, ODC_F32);
    (void)arg;
    use_once(context, &t, 1, 5);
    for (int m = 1; m < 6; ++m) {
        if (m == 1 + rank) {
            CHECK_OK(odc_release_shard(t.shard));
        } else if (m < 1 + rank) {
            CHECK_OK(odc_publish(t.shard, NULL));
        }
        CHECK_OK(odc_minibatch_sync(context));
    }
}

static void a_holder_that_has_released_the_shard_is_not_waited_for(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "auto", releases_early, NULL);
}

/* ---- Interruptions ---- */

typedef struct steps {
    atomic_int wanted;   /* interruptions of rank 0 */
    atomic_int over;     /* rank 0 has been interrupted */
    atomic_int pid;      /* of the owner that is stopped */
    atomic_int added[4]; /* by rank */
} steps;

static int is_wanted(void *arg) { return read_flag(&((steps *)arg)->wanted); }

static odc_context *join_interruptible(int rank, int size, const char *job, steps *what) {
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.interrupted = rank == 0 ? is_wanted : NULL;
    config.interrupted_arg = what;
    config.timeout_ms = 60000;
    CHECK_OK(odc_init(&config, &context));
    return context;
}

static void sync_interrupted(odc_context *context, tensor t, steps *what) {
    float *full = new_full(t.numel, ODC_F32);
    fill_gradients(t, full, 99);
    set_flag(&what->wanted, 1);
    CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_INTERRUPTED);
    CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_INTERRUPTED);
    CHECK_ERROR(odc_scatter_add(t.shard, full, t.numel, NULL), ODC_ERROR_PHASE, "interrupted");
    set_flag(&what->wanted, 0);
    free(full);
}

/* Rank 0 is idle and syncs when the holder of its host has not published; then it has, all add, and all sync. */
static void awaits_the_holder(int rank, int size, const char *job, void *arg) {
    steps *what = arg;
    odc_context *context = join_interruptible(rank, size, job, what);
    tensor t = make_parts(context, ODC_F32);
    use_once(context, &t, 1, 3);
    if (rank == 2) {
        await_flag(&what->over, 1);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 0) {
        sync_interrupted(context, t, what);
        set_flag(&what->over, 1);
    } else {
        add_some(context, t, 1, only_the_first(0));
    }
    CHECK_OK(odc_minibatch_sync(context));
    uint64_t salts[6];
    for (int i = 0; i < 6; ++i) {
        salts[i] = salt_of(1, 1 + i / 2, i % 2);
    }
    check_sums(t, salts, 6);
    use_once(context, &t, 1, 4);
    odc_destroy(context);
}

/* Rank 0 sends the sums to an owner that is stopped. */
static void awaits_the_owner(int rank, int size, const char *job, void *arg) {
    steps *what = arg;
    odc_context *context = join_interruptible(rank, size, job, what);
    tensor t = make_parts(context, ODC_F32);
    use_once(context, &t, 1, 3);
    CHECK_OK(odc_publish(t.shard, NULL));
    add_some(context, t, 1, ADDITIONS);
    if (rank != 0) {
        CHECK_OK(odc_finish(t.shard, NULL));
    }
    set_flag(&what->added[rank], 1);
    if (rank == 1) {
        set_flag(&what->pid, getpid());
    } else if (rank == 0) {
        for (int other = 0; other < size; ++other) {
            await_flag(&what->added[other], 1);
        }
        await_flag(&what->pid, 1);
        stop_process(read_flag(&what->pid));
        sync_interrupted(context, t, what);
        CHECK(kill(read_flag(&what->pid), SIGCONT) == 0);
    }
    CHECK_OK(odc_minibatch_sync(context));
    check_all(context, t, 1, four);
    use_once(context, &t, 1, 4);
    odc_destroy(context);
}

static void an_interrupted_sync_goes_on(void **state) {
    (void)state;
    divide_hosts(2, "auto");
    run_processes(4, awaits_the_holder, share(sizeof(steps)));
    if (!ranks_are_threads()) {
        run_processes(4, awaits_the_owner, share(sizeof(steps)));
    }
}

/* ---- Order ---- */

/* Large sums, of ranks that arrive at once: nobody may arrive before the owner has applied them, nor they be sent before all ranks
 * have added. */
static void races(odc_context *context, void *arg) {
    enum { LARGE = 300000 };
    tensor t = make_tensor(context, "large", (uint64_t)odc_size(context) * LARGE, 0, ODC_F32);
    (void)arg;
    for (int m = 0; m < 4; ++m) {
        CHECK_OK(odc_publish(t.shard, NULL));
        add_some(context, t, m, odc_rank(context) == m % odc_size(context) ? ADDITIONS : 1);
        if (odc_rank(context) % 2 == m % 2) {
            CHECK_OK(odc_finish(t.shard, NULL));
        }
        CHECK_OK(odc_minibatch_sync(context));
        uint64_t salts[MOST_RANKS + ADDITIONS];
        size_t count = 0;
        for (int rank = 0; rank < odc_size(context); ++rank) {
            for (int i = 0; i < (rank == m % odc_size(context) ? ADDITIONS : 1); ++i) {
                salts[count++] = salt_of(m, rank, i);
            }
        }
        check_sums(t, salts, count);
    }
}

static void sums_are_complete_when_all_have_arrived(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "auto", races, NULL);
}

int main(void) {
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "60000", 0); /* a stopped rank is not lost */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sum_crosses_once_a_host_and_minibatch),
        cmocka_unit_test(where_nobody_adds_nothing_crosses),
        cmocka_unit_test(without_partial_sums_it_crosses_for_each_addition),
        cmocka_unit_test(entries_come_before_partial_sums),
        cmocka_unit_test(exact_sums_are_the_same_bits),
        cmocka_unit_test(addends_of_exact_sums_are_counted_over_hosts),
        cmocka_unit_test(what_all_have_finished_is_sent_before_the_sync),
        cmocka_unit_test(additions_after_finish_are_refused),
        cmocka_unit_test(what_is_started_ends_before_its_rank_counts),
        cmocka_unit_test(a_rank_without_a_slice_adds_directly),
        cmocka_unit_test(a_holder_that_has_released_the_shard_is_not_waited_for),
        cmocka_unit_test(an_interrupted_sync_goes_on),
        cmocka_unit_test(sums_are_complete_when_all_have_arrived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
