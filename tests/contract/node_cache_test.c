/* SPDX-License-Identifier: Apache-2.0 */
/* The node cache: each slice of another host crosses the network once a host and minibatch, whoever is interrupted, stopped or
 * idle meanwhile; what has no entry crosses for each gather. Rank r is on host r % hosts, so a host's ranks are r, r + hosts, ... */
#include "crossings.h"
#include "hosts.h"
#include "model.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PART = 1000, GATHERS = 3, MINIBATCHES = 3, ENTRY_BYTES = 64 + (PART * 4 + 63) / 64 * 64 };

/* Bytes of a shard of PART elements of f32 a rank that are on other hosts. */
static uint64_t foreign_bytes(odc_context *context) {
    return (uint64_t)(odc_size(context) - odc_size(context) / hosts()) * PART * 4;
}

static tensor make_parts(odc_context *context, const char *name) {
    return make_tensor(context, name, (uint64_t)odc_size(context) * PART, ODC_F32, ODC_F32);
}

/* A minibatch in which every rank gathers as often, at once and started, and adds once. */
static void gather_often(odc_context *context, tensor t, uint64_t salt) {
    write_parameters(t, salt);
    CHECK_OK(odc_publish(t.shard, NULL));
    for (int i = 0; i < GATHERS; ++i) {
        if (i % 2 == 0) {
            check_gather(t, salt);
            continue;
        }
        uint64_t operation = 0;
        float *full = new_full(t.numel, ODC_F32);
        CHECK_OK(odc_gather_start(t.shard, full, t.numel, NULL, &operation));
        CHECK_OK(odc_wait(context, operation));
        check_full(t, full, salt);
        free(full);
    }
    add_gradients(t, salt);
    CHECK_OK(odc_minibatch_sync(context));
}

static void crosses_once(odc_context *context, void *arg) {
    (void)arg;
    const uint64_t foreign = foreign_bytes(context);
    tensor t = make_parts(context, "layer");
    for (int m = 0; m < MINIBATCHES; ++m) {
        gather_often(context, t, (uint64_t)m + 1);
        CHECK_EQUAL(fetched_by_host(context), (uint64_t)(m + 1) * foreign);
    }
    CHECK_EQUAL(stats_of(context).served_bytes, MINIBATCHES * GATHERS * foreign);
}

static void each_foreign_slice_crosses_once_a_host_and_minibatch(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "auto", crosses_once, NULL);
    run_on(__func__, 3, 6, "auto", crosses_once, NULL);
    run_on(__func__, 2, 8, "auto", crosses_once, NULL);
}

static void crosses_always(odc_context *context, void *arg) {
    (void)arg;
    const uint64_t foreign = foreign_bytes(context);
    tensor t = make_parts(context, "layer");
    gather_often(context, t, 1);
    CHECK_EQUAL(stats_of(context).fetched_bytes, GATHERS * foreign);
    CHECK_EQUAL(stats_of(context).served_bytes, 0);
}

static void without_a_cache_it_crosses_for_each_gather(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "off", crosses_always, NULL);
    run_on(__func__, 2, 4, "4095", crosses_always, NULL); /* fits no entry */
    run_on(__func__, 2, 2, "auto", crosses_always, NULL); /* a rank a host */
}

/* Each rank holds entries of two slices, of which one fits. */
static void half_fits(odc_context *context, void *arg) {
    (void)arg;
    const uint64_t foreign = foreign_bytes(context);
    const uint64_t ranks = (uint64_t)(odc_size(context) / hosts());
    tensor t = make_parts(context, "layer");
    gather_often(context, t, 1);
    CHECK_EQUAL(fetched_by_host(context), foreign / 2 + ranks * GATHERS * foreign / 2);
    CHECK_EQUAL(stats_of(context).served_bytes, GATHERS * foreign / 2);
}

static void what_does_not_fit_crosses_for_each_gather(void **state) {
    char bytes[32];
    (void)state;
    snprintf(bytes, sizeof bytes, "%d", 2 * ENTRY_BYTES - 1);
    run_on(__func__, 3, 6, bytes, half_fits, NULL);
}

/* Counts the lines of each level that tell of too little room. */
typedef struct told {
    const char *text;
    int lines;
    int warnings;
} told;

static void hear_of_room(void *arg, int32_t level, const char *line) {
    told *t = arg;
    if (strstr(line, "has room in the node cache for") != NULL) {
        t->lines++;
        t->warnings += level == ODC_LOG_WARN;
        CHECK_SENTENCE(line, t->text, "set ODC_NODE_CACHE to more bytes");
    }
}

/* Each rank is to hold two entries and two partial sums. */
static void is_told_of_room(int rank, int size, const char *job, void *arg) {
    const int enough = arg != NULL;
    told t = {.text = "1 of 2 slices of other hosts and 0 of 2 partial sums ("};
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.log = hear_of_room;
    config.log_arg = &t;
    config.log_level = ODC_LOG_INFO;
    CHECK_OK(odc_init(&config, &context));
    make_parts(context, "first");
    CHECK_EQUAL(t.lines, enough ? 0 : 1);
    CHECK_EQUAL(t.warnings, t.lines);
    t.text = "0 of 2 slices of other hosts and 0 of 0 partial sums (0 of 8192 bytes)";
    make_tensor(context, "second", (uint64_t)size * PART, ODC_F32, 0);
    CHECK_EQUAL(t.lines, enough ? 0 : 2);
    CHECK_EQUAL(t.warnings, enough ? 0 : 1); /* later ones are for information */
    odc_destroy(context);
}

static void what_does_not_fit_is_told(void **state) {
    char bytes[32];
    (void)state;
    snprintf(bytes, sizeof bytes, "%d", 2 * ENTRY_BYTES - 1);
    divide_hosts(3, bytes);
    run_processes(6, is_told_of_room, NULL);
    setenv("ODC_NODE_CACHE", "1000000", 1);
    run_processes(6, is_told_of_room, bytes);
}

/* The 16 MiB of addresses for slices that RLIMIT_FSIZE leaves have room for a slice, and not for another one's entry. */
static void has_no_memory(int rank, int size, const char *job, void *arg) {
    enum { SLICE = 9 << 18 };
    (void)arg;
    CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){32 << 20, 32 << 20}) == 0);
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", (uint64_t)size * SLICE, ODC_F32, 0);
    write_parameters(t, 1);
    CHECK_OK(odc_publish(t.shard, NULL));
    check_gather(t, 1);
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_EQUAL(stats_of(context).fetched_bytes, 2 * SLICE * sizeof(float));
    CHECK_EQUAL(stats_of(context).served_bytes, 0);
    odc_destroy(context);
}

static void without_memory_for_entries_a_shard_is_registered_all_the_same(void **state) {
    (void)state;
    needs_processes("it limits a process");
    divide_hosts(2, "auto");
    run_processes(4, has_no_memory, NULL);
}

static void hear(void *warnings, int32_t level, const char *line) {
    *(int *)warnings += level == ODC_LOG_WARN && strstr(line, "holds nothing of 1 shards for the node cache") != NULL;
}

/* So many more bytes of addresses for this process. */
static void limit_addresses(rlim_t more) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    more += pages * (rlim_t)sysconf(_SC_PAGESIZE);
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){more, more}) == 0);
}

/* The addresses that RLIMIT_AS leaves the ranks of host 0 have room for their slices, and not for an entry of the other host's. */
static void has_no_addresses(int rank, int size, const char *job, void *arg) {
    enum { SMALL = 1000, LARGE = 16 << 20, LEFT = 56 << 20 };
    int warnings = 0;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    odc_shard_desc desc = describe("layer", 2 * (SMALL + LARGE), ODC_F32, 0);
    (void)arg;
    desc.slices = (uint64_t[]){SMALL, LARGE, SMALL, LARGE};
    config.log = hear;
    config.log_arg = &warnings;
    CHECK_OK(odc_init(&config, &context));
    if (rank % 2 == 0) {
        limit_addresses(LEFT);
    }
    tensor t = make_described(context, &desc);
    CHECK_EQUAL(warnings, rank % 2 == 0);
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
}

static void without_addresses_for_entries_a_shard_is_registered_all_the_same(void **state) {
    (void)state;
    needs_processes("it limits a process");
    needs_no_sanitizer("it takes addresses of its own");
    divide_hosts(2, "268435456");
    run_processes(4, has_no_addresses, NULL);
}

/* A released shard's entries are there for the next one, whose slices differ. */
static void registers_again(odc_context *context, void *arg) {
    (void)arg;
    const uint64_t foreign = foreign_bytes(context);
    uint64_t wanted = 0;
    for (int round = 0; round < 4; ++round) {
        tensor t = make_parts(context, "layer");
        for (int m = 0; m < 2; ++m) {
            gather_often(context, t, (uint64_t)(10 * round + m));
            wanted += foreign;
            CHECK_EQUAL(fetched_by_host(context), wanted);
        }
        CHECK_OK(odc_release_shard(t.shard));
        CHECK_OK(odc_minibatch_sync(context));
    }
}

static void entries_are_given_back(void **state) {
    char bytes[32];
    (void)state;
    snprintf(bytes, sizeof bytes, "%d", ENTRY_BYTES);
    run_on(__func__, 2, 4, bytes, registers_again, NULL);
}

/* Rank 0 has an empty slice, which it does not publish, so that rank 2 holds both foreign slices. */
static void has_nothing(odc_context *context, void *arg) {
    (void)arg;
    odc_shard_desc desc = describe("layer", 3 * PART, ODC_F32, ODC_F32);
    desc.slices = (uint64_t[]){0, PART, PART, PART};
    tensor t = make_described(context, &desc);
    for (int m = 0; m < MINIBATCHES; ++m) {
        if (odc_rank(context) != 0) {
            write_parameters(t, (uint64_t)m);
            CHECK_OK(odc_publish(t.shard, NULL));
        }
        check_gather(t, (uint64_t)m);
        CHECK_OK(odc_minibatch_sync(context));
    }
    const uint64_t foreign = odc_rank(context) % 2 == 0 ? 2 * PART * 4 : PART * 4;
    CHECK_EQUAL(fetched_by_host(context), MINIBATCHES * foreign);
    CHECK_EQUAL(stats_of(context).served_bytes, MINIBATCHES * foreign);
}

static void a_rank_with_an_empty_slice_gathers_from_the_cache(void **state) {
    (void)state;
    run_on(__func__, 2, 4, "auto", has_nothing, NULL);
}

/* ---- The rank that reads is elsewhere ---- */

typedef struct steps {
    atomic_int synced;    /* ranks that have ended minibatch 1 */
    atomic_int published; /* by the other rank of rank 0's host */
    atomic_int begun;     /* rank 0 has begun to read */
    atomic_int pid;       /* of rank 0 */
    atomic_int over;      /* that rank has gathered */
    atomic_int wanted;    /* interruptions of rank 0 */
    int stops;
} steps;

static int is_wanted(void *arg) { return read_flag(&((steps *)arg)->wanted); }

typedef struct own_reads {
    int lines;
    int64_t first_ns;
    int64_t last_ns;
} own_reads;

static void hear_of_own_reads(void *arg, int32_t level, const char *line) {
    own_reads *reads = arg;
    if (level == ODC_LOG_DEBUG &&
        strstr(line, "of shard \"layer\" for itself, as it does not come to the node cache") != NULL) {
        reads->last_ns = now_ns();
        if (reads->lines++ == 0) {
            reads->first_ns = reads->last_ns;
        }
    }
}

/* In minibatch 2, before which nothing was gathered, rank 0 begins to read what other hosts have not published, and is interrupted.
 * Then the other rank of its host gathers, for which rank 0 makes no call, and may be stopped. */
static void is_interrupted(int rank, int size, const char *job, void *arg) {
    steps *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.interrupted = rank == 0 ? is_wanted : NULL;
    config.interrupted_arg = what;
    config.timeout_ms = 60000;
    own_reads reads = {0};
    config.log = hear_of_own_reads;
    config.log_arg = &reads;
    config.log_level = ODC_LOG_DEBUG;
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_parts(context, "layer");
    const uint64_t foreign = foreign_bytes(context);
    gather_often(context, t, 1);
    sync_without_gathers(context);
    raise_flag(&what->synced);
    const uint64_t before = stats_of(context).fetched_bytes;
    write_parameters(t, 2);
    if (rank % hosts() != 0) {
        await_flag(&what->begun, 1);
        CHECK_OK(odc_publish(t.shard, NULL));
        check_gather(t, 2);
    } else if (rank == 0) {
        float *full = new_full(t.numel, ODC_F32);
        CHECK_OK(odc_publish(t.shard, NULL));
        await_flag(&what->published, 1);
        set_flag(&what->wanted, 1);
        CHECK_EQUAL(odc_gather(t.shard, full, t.numel, NULL), ODC_ERROR_INTERRUPTED);
        set_flag(&what->wanted, 0);
        set_flag(&what->pid, getpid());
        if (!what->stops) {
            set_flag(&what->begun, 1);
        }
        await_flag(&what->over, 1);
        check_gather(t, 2);
        free(full);
    } else {
        CHECK_OK(odc_publish(t.shard, NULL));
        set_flag(&what->published, 1);
        await_flag(&what->pid, 1);
        if (what->stops) {
            await_flag(&what->synced, size); /* rank 0 may still have to tell the other host of the sync's end */
            stop_process(read_flag(&what->pid));
            set_flag(&what->begun, 1);
        }
        check_gather(t, 2);
        if (what->stops) {
            kill(read_flag(&what->pid), SIGCONT);
        }
        set_flag(&what->over, 1);
        CHECK_EQUAL(stats_of(context).fetched_bytes - before, what->stops ? foreign : 0);
        /* It takes 5 s to find that rank 0 is stopped, once and not for each slice. */
        CHECK_EQUAL(reads.lines, what->stops ? size - size / hosts() : 0);
        CHECK(reads.last_ns - reads.first_ns < INT64_C(5000000000) * (reads.lines - 2) || reads.lines == 0);
    }
    CHECK_OK(odc_minibatch_sync(context));
    if (rank == 0) { /* its reads went on, and are over */
        CHECK_EQUAL(stats_of(context).fetched_bytes - before, foreign);
    }
    odc_destroy(context);
}

static void run_interrupted(const char *test, int host_count, steps how) {
    steps *what = share(sizeof *what);
    *what = how;
    divide_hosts(host_count, "auto");
    run_processes_of(test, 2 * host_count, 0, is_interrupted, what);
}

/* Nobody gathers what rank 0 reads in minibatch 2, when it is interrupted; it is long. */
static void leaves_reads_behind(int rank, int size, const char *job, void *arg) {
    enum { LARGE = 12000000 };
    steps *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.interrupted = rank == 0 ? is_wanted : NULL;
    config.interrupted_arg = what;
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_tensor(context, "layer", LARGE, ODC_F32, 0);
    float *full = new_full(LARGE, ODC_F32);
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_gather(t.shard, full, LARGE, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    sync_without_gathers(context);
    const uint64_t before = stats_of(context).fetched_bytes;
    if (rank % 2 == 1) {
        await_flag(&what->begun, 1);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 2) {
        set_flag(&what->published, 1);
    } else if (rank == 0) {
        await_flag(&what->published, 1);
        set_flag(&what->wanted, 1);
        CHECK_EQUAL(odc_gather(t.shard, full, LARGE, NULL), ODC_ERROR_INTERRUPTED);
        set_flag(&what->wanted, 0);
        set_flag(&what->begun, 1);
    }
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_EQUAL(stats_of(context).fetched_bytes - before, rank == 0 ? LARGE / 2 * sizeof(float) : 0);
    free(full);
    odc_destroy(context);
}

static void sync_ends_the_reads_of_an_interrupted_gather(void **state) {
    (void)state;
    divide_hosts(2, "auto");
    run_processes(4, leaves_reads_behind, share(sizeof(steps)));
}

static void what_an_interrupted_gather_reads_is_there_for_others(void **state) {
    (void)state;
    run_interrupted(__func__, 2, (steps){0});
}

static void who_waits_for_a_stopped_rank_reads_for_itself_and_waits_once(void **state) {
    (void)state;
    needs_processes("it stops a rank");
    run_interrupted(__func__, 4, (steps){.stops = 1});
}

/* Rank 0 gathers what ranks 0, 2 and 4 hold. While it waits for rank 4, it begins to read what rank 2 holds, which has published
 * since. */
static void reads_what_it_can(int rank, int size, const char *job, void *arg) {
    steps *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.interrupted = rank == 0 ? is_wanted : NULL;
    config.interrupted_arg = what;
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_parts(context, "layer");
    write_parameters(t, 1);
    if (rank == 2) {
        await_flag(&what->begun, 1);
    } else if (rank == 4) {
        await_flag(&what->over, 1);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 0) {
        uint64_t operation = 0;
        float *full = new_full(t.numel, ODC_F32);
        CHECK_OK(odc_gather_start(t.shard, full, t.numel, NULL, &operation));
        set_flag(&what->begun, 1);
        set_flag(&what->wanted, 1);
        for (int i = 0; i < 3000 && stats_of(context).fetched_bytes < 2 * PART * 4; ++i) {
            CHECK_EQUAL(odc_wait(context, operation), ODC_ERROR_INTERRUPTED);
            sleep_ms(10);
        }
        CHECK_EQUAL(stats_of(context).fetched_bytes, 2 * PART * 4);
        set_flag(&what->wanted, 0);
        set_flag(&what->over, 1);
        CHECK_OK(odc_wait(context, operation));
        check_full(t, full, 1);
        free(full);
    }
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
}

static void a_gather_reads_what_it_can_while_it_waits(void **state) {
    (void)state;
    divide_hosts(2, "auto");
    run_processes(6, reads_what_it_can, share(sizeof(steps)));
}

/* ---- The setting ---- */

static void differs(int rank, int size, const char *job, void *arg) {
    (void)arg;
    odc_route route = {.struct_size = sizeof route};
    setenv("ODC_NODE_CACHE", rank == 2 ? "off" : "1000000", 1);
    odc_context *context = join(rank, size, job);
    CHECK_OK(odc_get_route(context, (rank + 1) % size, ODC_HOST_MEMORY, &route));
    CHECK_SENTENCE(
        route.why,
        rank % 2 == 0
            ? "each rank of this host reads it and adds to it for itself, as rank 2 has ODC_NODE_CACHE=off"
            : "this host reads it once a minibatch, and sends its sums once, for shards of which it has a slice, while "
              "1000000 bytes a rank");
    CHECK_OK(odc_get_route(context, (rank + 2) % size, ODC_HOST_MEMORY, &route));
    CHECK(strstr(route.why, "ODC_NODE_CACHE") == NULL);
    tensor t = make_parts(context, "layer");
    gather_often(context, t, 1);
    const uint64_t foreign = foreign_bytes(context);
    CHECK_EQUAL(fetched_by_host(context), rank % 2 == 0 ? 2 * GATHERS * foreign : foreign);
    odc_destroy(context);
}

static void a_host_has_a_cache_if_all_its_ranks_have(void **state) {
    (void)state;
    needs_processes("ranks have environments of their own");
    setenv("ODC_TEST_HOSTS", "2", 1);
    run_processes(4, differs, NULL);
}

static void is_alone(odc_context *context, void *arg) {
    odc_route route = {.struct_size = sizeof route};
    (void)arg;
    CHECK_OK(odc_get_route(context, 1 - odc_rank(context), ODC_HOST_MEMORY, &route));
    CHECK_SENTENCE(route.why, "the node cache is off, as this rank shares its host with no other");
}

static void a_host_of_one_rank_says_that_it_has_no_cache(void **state) {
    (void)state;
    run_on(__func__, 2, 2, "auto", is_alone, NULL);
}

static void is_refused(int rank, int size, const char *job, void *arg) {
    (void)arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_ARGUMENT, "ODC_NODE_CACHE=\"", "it must be", " off ");
}

static void a_wrong_setting_is_refused(void **state) {
    (void)state;
    const char *const wrong[] = {"on", "1G", "-1", "0", "99999999999999999999"};
    setenv("ODC_TEST_HOSTS", "1", 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        setenv("ODC_NODE_CACHE", wrong[i], 1);
        run_processes(1, is_refused, NULL);
    }
}

int main(void) {
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "60000", 0); /* a stopped rank is not lost */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_foreign_slice_crosses_once_a_host_and_minibatch),
        cmocka_unit_test(without_a_cache_it_crosses_for_each_gather),
        cmocka_unit_test(what_does_not_fit_crosses_for_each_gather),
        cmocka_unit_test(what_does_not_fit_is_told),
        cmocka_unit_test(without_memory_for_entries_a_shard_is_registered_all_the_same),
        cmocka_unit_test(without_addresses_for_entries_a_shard_is_registered_all_the_same),
        cmocka_unit_test(entries_are_given_back),
        cmocka_unit_test(a_rank_with_an_empty_slice_gathers_from_the_cache),
        cmocka_unit_test(what_an_interrupted_gather_reads_is_there_for_others),
        cmocka_unit_test(sync_ends_the_reads_of_an_interrupted_gather),
        cmocka_unit_test(who_waits_for_a_stopped_rank_reads_for_itself_and_waits_once),
        cmocka_unit_test(a_gather_reads_what_it_can_while_it_waits),
        cmocka_unit_test(a_host_has_a_cache_if_all_its_ranks_have),
        cmocka_unit_test(a_host_of_one_rank_says_that_it_has_no_cache),
        cmocka_unit_test(a_wrong_setting_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
