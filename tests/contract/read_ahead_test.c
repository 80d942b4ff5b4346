/* SPDX-License-Identifier: Apache-2.0 */
/* What the node cache reads ahead: the slices that were wanted in the minibatch before, in their order then, and what somebody waits
 * for before them. */
#include "crossings.h"
#include "hosts.h"
#include "model.h"

#include <signal.h>
#include <unistd.h>

static uint64_t await_fetched(odc_context *context, uint64_t bytes) {
    for (int i = 0; i < 60000 && stats_of(context).fetched_bytes < bytes; ++i) {
        sleep_ms(1);
    }
    return stats_of(context).fetched_bytes;
}

static void sync_with_gather(odc_context *context, tensor t, uint64_t salt) {
    write_parameters(t, salt);
    CHECK_OK(odc_publish(t.shard, NULL));
    check_gather(t, salt);
    CHECK_OK(odc_minibatch_sync(context));
}

/* Each rank holds one slice of the other host. It is read though nobody gathers, if somebody did in the minibatch before. */
static void reads_ahead(odc_context *context, void *arg) {
    enum { ELEMENTS = 1000, HELD = ELEMENTS * 4 };
    atomic_int *seen = arg;
    tensor t = make_tensor(context, "layer", (uint64_t)odc_size(context) * ELEMENTS, ODC_F32, ODC_F32);
    sync_without_gathers(context);
    CHECK_EQUAL(stats_of(context).fetched_bytes, 0);
    sync_with_gather(context, t, 1);
    const uint64_t before = stats_of(context).fetched_bytes;
    write_parameters(t, 2);
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_EQUAL(await_fetched(context, before + HELD), before + HELD);
    raise_flag(seen);
    await_flag(seen, odc_size(context)); /* until then nobody gathers */
    check_gather(t, 2);
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_EQUAL(stats_of(context).fetched_bytes, before + HELD);
    sync_without_gathers(context); /* wanted by nobody, it may have come or not */
    CHECK(stats_of(context).fetched_bytes <= before + 2 * HELD);
    const uint64_t then = stats_of(context).fetched_bytes;
    sync_without_gathers(context);
    CHECK_EQUAL(stats_of(context).fetched_bytes, then);
    sync_with_gather(context, t, 3);
}

static void what_was_wanted_is_read_ahead(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "auto", reads_ahead, share(sizeof(atomic_int)));
}

/* Rank 0 arrives before rank 1 publishes the slice that it holds, and reads nothing ahead then: rank 2 or 4 does, once. */
static void arrives_early(odc_context *context, void *arg) {
    enum { ELEMENTS = 1000, FOREIGN = 3 * ELEMENTS * 4 };
    atomic_int *steps = arg;
    const int rank = odc_rank(context);
    tensor t = make_tensor(context, "layer", (uint64_t)odc_size(context) * ELEMENTS, ODC_F32, ODC_F32);
    sync_with_gather(context, t, 1);
    const uint64_t before = fetched_by_host(context);
    write_parameters(t, 2);
    if (rank == 1) {
        await_flag(&steps[1], 2);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 0) {
        set_flag(&steps[0], 1);
    } else if (rank % 2 == 0) {
        await_flag(&steps[0], 1);
        sleep_ms(50); /* rank 0 has arrived, most likely */
        raise_flag(&steps[1]);
        check_gather(t, 2);
        check_gather(t, 2);
    }
    CHECK_OK(odc_minibatch_sync(context));
    const uint64_t after = fetched_by_host(context);
    CHECK(rank % 2 == 1 || after == before + FOREIGN);
}

static void what_a_holder_has_cancelled_is_read_once(void **state) {
    (void)state;
    run_on(__func__, 2, 6, "auto", arrives_early, share(2 * sizeof(atomic_int)));
}

typedef struct unwanted {
    atomic_int begun; /* rank 0 is in the sync of minibatch 1 */
    atomic_int waits; /* and has been asked there whether it is interrupted */
} unwanted;

static int waits_in_sync(void *arg) {
    unwanted *what = arg;
    if (read_flag(&what->begun) != 0) {
        set_flag(&what->waits, 1);
    }
    return 0;
}

/* Rank 1 publishes once rank 0, which has begun to read its slice ahead, waits in its sync: nobody wants the slice, so it does not
 * come. */
static void arrives_with_an_unwanted_read(int rank, int size, const char *job, void *arg) {
    enum { ELEMENTS = 1000 };
    unwanted *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.interrupted = rank == 0 ? waits_in_sync : NULL;
    config.interrupted_arg = what;
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_tensor(context, "layer", (uint64_t)size * ELEMENTS, ODC_F32, 0);
    sync_with_gather(context, t, 1);
    const uint64_t before = stats_of(context).fetched_bytes;
    if (rank == 1) {
        await_flag(&what->waits, 1);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 0) {
        set_flag(&what->begun, 1);
    }
    CHECK_OK(odc_minibatch_sync(context));
    if (rank == 0) {
        CHECK_EQUAL(stats_of(context).fetched_bytes, before);
    }
    odc_destroy(context);
}

static void what_nobody_wants_is_cancelled_when_its_holder_arrives(void **state) {
    (void)state;
    divide_hosts(2, "auto");
    run_processes(4, arrives_with_an_unwanted_read, share(sizeof(unwanted)));
}

typedef struct stop {
    atomic_int synced;  /* ranks that have ended minibatch 0 */
    atomic_int pid;     /* of rank 0, which has published and begun to read ahead */
    atomic_int stopped; /* rank 0 is */
    atomic_int over;    /* it goes on */
} stop;

/* Rank 0 stops right after its publish, before the owner of what it reads ahead publishes. Rank 2 of its host gathers meanwhile. */
static void stops_after_its_publish(int rank, int size, const char *job, void *arg) {
    enum { ELEMENTS = 1000, HELD = ELEMENTS * 4 };
    stop *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.timeout_ms = 60000;
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_tensor(context, "layer", (uint64_t)size * ELEMENTS, ODC_F32, ODC_F32);
    sync_with_gather(context, t, 1);
    raise_flag(&what->synced);
    const uint64_t before = stats_of(context).fetched_bytes;
    write_parameters(t, 2);
    if (rank % 2 == 1) {
        await_flag(&what->stopped, 1);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 0) {
        set_flag(&what->pid, getpid());
        await_flag(&what->over, 1);
    } else if (rank == 2) {
        await_flag(&what->pid, 1);
        await_flag(&what->synced, size); /* rank 0 may still have to tell the other host of the sync's end */
        stop_process(read_flag(&what->pid));
        set_flag(&what->stopped, 1);
        check_gather(t, 2);
        CHECK_EQUAL(stats_of(context).fetched_bytes, before + 2 * HELD); /* its own part and, for itself, rank 0's */
        kill(read_flag(&what->pid), SIGCONT);
        set_flag(&what->over, 1);
    }
    if (rank != 2) {
        check_gather(t, 2);
    }
    CHECK_OK(odc_minibatch_sync(context));
    if (rank == 0) { /* its read went on */
        CHECK_EQUAL(stats_of(context).fetched_bytes, before + HELD);
    }
    odc_destroy(context);
}

static void who_wants_what_a_stopped_holder_reads_ahead_reads_for_itself(void **state) {
    (void)state;
    needs_processes("it stops a rank");
    divide_hosts(2, "auto");
    run_processes(4, stops_after_its_publish, share(sizeof(stop)));
}

enum {
    LONG = 32 << 20,     /* bytes of a slice of the long shard */
    SHORT = 1 << 20,     /* and of the short one */
    IN_FLIGHT = 8 << 19, /* bytes of a rank's reads, at most */
    TRIES = 100,
    OFTEN = 5, /* by chance it happens in one or two of the tries */
};

typedef struct two_shards {
    odc_context *context;
    tensor long_one;
    tensor short_one;
} two_shards;

static int is_interrupted(void *arg) { return *(atomic_int *)arg; }

/* The short shard is there though a part of the long one is not. Returns 1 if so, 0 if the long one is there, too. */
typedef int (*comes_first_fn)(two_shards *shards, uint64_t before, atomic_int *interrupted);

/* Nobody waits, and the short one was wanted first in the minibatch before. */
static int is_there_first(two_shards *shards, uint64_t before, atomic_int *interrupted) {
    const tensor t = shards->short_one;
    float *full = new_full(t.numel, ODC_F32);
    uint64_t operation = 0;
    await_fetched(shards->context, before + SHORT + IN_FLIGHT);
    CHECK_OK(odc_gather_start(t.shard, full, t.numel, NULL, &operation));
    atomic_store(interrupted, 1);
    const odc_status status = odc_wait(shards->context, operation); /* what is there is not waited for */
    atomic_store(interrupted, 0);
    const int first = status == ODC_OK && stats_of(shards->context).fetched_bytes < before + SHORT + LONG;
    if (status == ODC_ERROR_INTERRUPTED) {
        CHECK_OK(odc_wait(shards->context, operation));
    }
    check_full(t, full, 0);
    free(full);
    return first;
}

/* The long one was wanted first, but now the short one is waited for. */
static int overtakes(two_shards *shards, uint64_t before, atomic_int *interrupted) {
    const tensor t = shards->short_one;
    float *full = new_full(t.numel, ODC_F32);
    (void)interrupted;
    await_fetched(shards->context, before + 1);
    CHECK_OK(odc_gather(t.shard, full, t.numel, NULL));
    const int first = stats_of(shards->context).fetched_bytes < before + SHORT + LONG;
    check_full(t, full, 0);
    free(full);
    return first;
}

/* A shard of which only ranks 0 and 1 have a slice, so that rank 0 holds the one that is foreign to its host. */
static tensor make_pair(odc_context *context, const char *name, uint64_t bytes) {
    odc_shard_desc desc = describe(name, 2 * bytes / 4, ODC_F32, 0);
    desc.slices = (uint64_t[]){bytes / 4, bytes / 4, 0, 0};
    return make_described(context, &desc);
}

/* Rank 0 holds a slice of each shard. On a busy machine it may see too late what came first, so there are several tries. */
static void sees_what_comes_first(int rank, int size, const char *job, void *arg) {
    const comes_first_fn comes_first = *(comes_first_fn *)arg;
    atomic_int interrupted = 0;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    double seen = 0; /* in so many tries */
    config.interrupted = is_interrupted;
    config.interrupted_arg = &interrupted;
    CHECK_OK(odc_init(&config, &context));
    two_shards shards = {.context = context};
    shards.long_one = make_pair(context, "long", LONG);
    shards.short_one = make_pair(context, "short", SHORT);
    write_parameters(shards.long_one, 0);
    write_parameters(shards.short_one, 0);
    for (int i = 0; i < TRIES && seen < OFTEN; ++i) {
        CHECK_OK(odc_publish_all(context, NULL));
        if (rank == 0) {
            check_gather(comes_first == overtakes ? shards.long_one : shards.short_one, 0);
            check_gather(comes_first == overtakes ? shards.short_one : shards.long_one, 0);
        }
        CHECK_OK(odc_minibatch_sync(context));
        const uint64_t before = stats_of(context).fetched_bytes;
        CHECK_OK(odc_publish_all(context, NULL));
        double now = rank == 0 ? comes_first(&shards, before, &interrupted) : 0;
        CHECK_OK(odc_minibatch_sync(context));
        CHECK_OK(odc_all_reduce(context, &now, 1, ODC_SUM));
        seen += now;
    }
    CHECK(seen >= OFTEN);
    odc_destroy(context);
}

static void run_of_two_shards(const char *test, comes_first_fn comes_first) {
    comes_first_fn *what = share(sizeof *what);
    *what = comes_first;
    divide_hosts(2, "auto");
    run_processes_of(test, 4, 0, sees_what_comes_first, what);
}

static void it_comes_in_the_order_of_the_minibatch_before(void **state) {
    (void)state;
    run_of_two_shards(__func__, is_there_first);
}

static void what_is_waited_for_comes_first(void **state) {
    (void)state;
    run_of_two_shards(__func__, overtakes);
}

int main(void) {
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "60000", 0); /* a stopped rank is not lost */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_wanted_is_read_ahead),
        cmocka_unit_test(what_a_holder_has_cancelled_is_read_once),
        cmocka_unit_test(what_nobody_wants_is_cancelled_when_its_holder_arrives),
        cmocka_unit_test(who_wants_what_a_stopped_holder_reads_ahead_reads_for_itself),
        cmocka_unit_test(it_comes_in_the_order_of_the_minibatch_before),
        cmocka_unit_test(what_is_waited_for_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
