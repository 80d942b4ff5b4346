/* SPDX-License-Identifier: Apache-2.0 */
/* Random jobs against a model that each rank computes for itself: shards, halves, types, slices, subsets, counts, delays,
 * releases, started operations and illegal calls by chance, under the faults that the options name. A job's seed draws all
 * of it; when a call waits and is interrupted, signalled or killed is up to the machine.
 *
 * Before a release, and after a change of how ranks wait: 10^6 calls once, in the release build, some minutes on two cores:
 *
 *     tests/contract/random_long.sh build/release/tests/contract/random_test */
#include "random_job.h"

#include "gpu.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>

enum { CALLS = 20000, CALLS_BETWEEN_HOSTS = 8000, CALLS_ON_GPUS = 5000, SLOWER_BY = 5, MANY_ASKS = 50, MANY_JOBS = 20 };

typedef struct sums {
    uint64_t calls, elements, asks, interruptions, claims, exact, item_additions, refusals, signals, ahead, survivors;
} sums;

static scene *stage;
static uint64_t jobs;
static faults chosen;
static uint64_t wanted_calls; /* 0: as many as the build makes in a few seconds; with a seed, one job */

static const char usage[] =
    "usage: random_test [OPTION...]\n"
    "  --calls N        jobs until all ranks together have made N calls\n"
    "  --seed S         of the first job; without --calls the only one\n"
    "  --ranks N        of each job, at most 8; else by its seed\n"
    "  --processes      ranks are processes (the default), or\n"
    "  --threads        threads of one\n"
    "  --hosts N        rank r is on host r % N, between which is loopback\n"
    "  --one-cpu        all ranks share one CPU\n"
    "  --signals        each rank is sent a signal every 100 us\n"
    "  --interruptions  30 of 100 times that a wait asks, it is interrupted, and the call made again\n"
    "  --kills          a rank of each job is killed\n";

static int size_of_job(uint64_t seed) {
    const char *given = getenv("ODC_TEST_SIZE");
    int least = chosen.kills ? 2 : 1;
    int size = given != NULL ? atoi(given) : least + (int)(seed % (uint64_t)(MAX_SIZE + 1 - least));
    if (size < least || size > MAX_SIZE) {
        fail_msg("%d ranks: the test takes %d to %d", size, least, MAX_SIZE);
    }
    return size;
}

static void add_up(sums *all) {
    memset(all, 0, sizeof *all);
    for (int rank = 0; rank < MAX_SIZE; ++rank) {
        const tally *one = &stage->ranks[rank];
        all->calls += atomic_load(&one->calls);
        all->elements += atomic_load(&one->elements);
        all->asks += atomic_load(&one->asks);
        all->interruptions += atomic_load(&one->interruptions);
        all->claims += atomic_load(&one->claims);
        all->exact += atomic_load(&one->exact);
        all->item_additions += atomic_load(&one->item_additions);
        all->refusals += atomic_load(&one->refusals);
        all->signals += atomic_load(&one->signals);
        all->ahead += atomic_load(&one->ahead);
        all->survivors += atomic_load(&one->survivors);
    }
}

static void run_job(uint64_t seed, int size) {
    sums before;
    sums after;
    add_up(&before);
    draw_scene(stage, &chosen, seed, size);
    run_mortals(size, stage->victim >= 0 ? (uint64_t)1 << stage->victim : 0, live_randomly, stage);
    add_up(&after);
    if (chosen.kills) { /* all others have read of the death */
        CHECK_EQUAL(after.survivors - before.survivors, size - 1);
    }
}

static uint64_t calls_to_make(void) {
    if (wanted_calls > 0) {
        return wanted_calls;
    }
    if (getenv("ODC_TEST_SEED") != NULL) {
        return 1;
    }
    uint64_t calls = tests_gpu() ? CALLS_ON_GPUS : several_hosts() ? CALLS_BETWEEN_HOSTS : CALLS;
    return slowdown() > 1 ? calls / SLOWER_BY : calls;
}

/* Nearly every job adds to exact sums, and nine of ten for items that ranks claim. */
static int lacks_exact_sums(const sums *all) {
    return !chosen.kills && !tests_gpu() && (all->exact == 0 || all->item_additions == 0);
}

static void random_jobs_equal_the_model(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    uint64_t drawn = seed;
    uint64_t calls = calls_to_make();
    sums all = {0};
    if (chosen.kills) {
        needs_processes("it kills ranks");
    }
    for (; all.calls < calls || (jobs < MANY_JOBS && lacks_exact_sums(&all)); seed = next_random(&drawn) >> 16) {
        int size = size_of_job(seed);
        printf("job %" PRIu64 ": --seed %" PRIu64 ", %d ranks\n", jobs, seed, size);
        ++jobs;
        run_job(seed, size);
        add_up(&all);
    }
    CHECK(!lacks_exact_sums(&all));
    CHECK(all.refusals > 0 && all.elements > 0 && all.claims > 0);
    CHECK(all.interruptions > 0 || all.asks < MANY_ASKS);
    CHECK(!chosen.signals || all.signals > 0);
}

static int begin(void **state) {
    (void)state;
    stage = share(sizeof *stage);
    return 0;
}

/* After a failure, too. */
static int print_sums(void **state) {
    (void)state;
    sums all;
    add_up(&all);
    printf("jobs %" PRIu64 ", calls %" PRIu64 ", elements compared %" PRIu64 ", added to exact sums %" PRIu64
           ", claims %" PRIu64 ", of them added to exact sums %" PRIu64 ", illegal calls %" PRIu64
           ", operations ahead of a rank %" PRIu64 ", interruptions %" PRIu64 ", signals %" PRIu64
           ", survivors of kills %" PRIu64 "\n",
           jobs, all.calls, all.elements, all.exact, all.claims, all.item_additions, all.refusals, all.ahead,
           all.interruptions, all.signals, all.survivors);
    return 0;
}

static void set(const char *name, const char *value) { setenv(name, value, 1); }

static void read_options(int argc, char **argv) {
    static const struct option options[] = {{"calls", required_argument, NULL, 'c'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"ranks", required_argument, NULL, 'r'},
                                            {"processes", no_argument, NULL, 'p'},
                                            {"threads", no_argument, NULL, 't'},
                                            {"hosts", required_argument, NULL, 'h'},
                                            {"one-cpu", no_argument, &chosen.one_cpu, 1},
                                            {"signals", no_argument, &chosen.signals, 1},
                                            {"interruptions", no_argument, &chosen.interruptions, 1},
                                            {"kills", no_argument, &chosen.kills, 1},
                                            {0}};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
            case 0: break; /* a fault */
            case 'c': wanted_calls = strtoull(optarg, NULL, 10); break;
            case 's': set("ODC_TEST_SEED", optarg); break;
            case 'r': set("ODC_TEST_SIZE", optarg); break;
            case 'p': unsetenv("ODC_TEST_RANKS"); break;
            case 't': set("ODC_TEST_RANKS", "threads"); break;
            case 'h':
                set("ODC_TEST_HOSTS", optarg);
                setenv("ODC_INTERFACE", "lo", 0);
                setenv("ODC_SILENCE_MS", "60000", 0); /* a busy machine must not count as silent */
                break;
            default: fputs(usage, stderr); exit(2);
        }
    }
    if (optind < argc) {
        fputs(usage, stderr);
        exit(2);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(random_jobs_equal_the_model, begin, print_sums),
    };
    read_options(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
