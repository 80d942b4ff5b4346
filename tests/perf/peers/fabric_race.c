/* SPDX-License-Identifier: Apache-2.0 */
/* Compares libodc between hosts with the bare libfabric loop in the same processes: each is a rank of a job and also has an
 * endpoint of the bare loop. They take turns in an order drawn anew for every round; while one runs, the other sleeps. A round
 * begins with all ranks ready, and lasts from the first rank's start to the last one's end (ranks share the machine's clock).
 * Rank 0 prints a JSON object with each round's measurements.
 *
 * usage: fabric_race WHAT [ROUNDS [BYTES]], as a rank (tests/harness/hosts.sh ranks N)
 *   move    all ranks at once: the bare loop; it with the rest of a gather's work, by as many threads as libodc has (twice):
 *           while one moves, another copies the own slice; odc_gather; the loop with a scatter-add's work (twice): one adds
 *           what it moves, another the own slice; odc_scatter_add of f32 and of as many bf16
 *   incast  f32 gradients to rank 0, which owns the whole shard: from all other ranks at once, and from one (twice); the bare
 *           loop that adds them, from all (twice) and from one
 *   sync    odc_minibatch_sync and odc_all_reduce, with their packets; and the processor time of one in a row of them */
#include "fabric_peers.h"

#include <math.h>
#include <odc/odc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONTESTANTS = 8, DEFAULT_ROUNDS = 31 };

struct race {
    struct peers bare;
    odc_context *context;
    odc_shard *parameters;
    odc_shard *f32;
    odc_shard *bf16;
    uint64_t numel;
    float *full;     /* the bare loop's tensor, gathered into */
    float *gradient; /* what it hands to peers: this rank's number everywhere */
    uint16_t *narrow;
    int alone;      /* incast: the rank that adds in this round when only one does */
    float bare_sum; /* of each element in the bare loop's sums, and in odc_scatter_add's of f32 */
    float f32_sum;
    int rounds;
    uint64_t seed;
};

/* `prepare` and `finish`, which may be NULL, are not timed. `run` returns whether this rank took part. */
struct contestant {
    const char *name;
    void (*prepare)(struct race *race);
    int (*run)(struct race *race);
    void (*finish)(struct race *race);
    double seconds[MAX_ROUNDS];
};

static void check_odc(odc_status status) {
    if (status != ODC_OK) {
        fprintf(stderr, "fabric_race: %s\n", odc_last_error());
        exit(1);
    }
}

static void expect(int right, const struct race *race, const char *what) {
    if (!right) {
        fprintf(stderr, "fabric_race: rank %d has wrong %s\n", race->bare.bootstrap.rank, what);
        exit(1);
    }
}

static void barrier(struct race *race) {
    char here = 1, all[MAX_RANKS];
    all_gather(&race->bare.bootstrap, &here, 1, all, serve, &race->bare);
}

/* libodc's ranks meet as the bare loop's do. */
static int exchange(void *race, const void *mine, void *all, size_t bytes) {
    all_gather(&((struct race *)race)->bare.bootstrap, mine, bytes, all, serve, &((struct race *)race)->bare);
    return 0;
}

static void join(struct race *race, size_t bytes, int incast) {
    struct peers *p = &race->bare;
    p->options = (struct options){.provider = "tcp;ofi_rxm",
                                  .op = OP_ADD,
                                  .wait = WAIT_SLEEP,
                                  .bytes = bytes,
                                  .chunk = 512 << 10,
                                  .depth = 8,
                                  .endpoints = 1,
                                  .incast = incast};
    p->receive_buffer = (size_t)p->options.depth * p->options.chunk;
    meet(&p->bootstrap);
    race->numel = bytes / sizeof(float) / (uint64_t)p->bootstrap.size * (uint64_t)p->bootstrap.size;
    p->slice = race->numel / (uint64_t)(incast ? 1 : p->bootstrap.size) * sizeof(float);
    open_all(p);
    fill_slots(p);
    mark(p);
    start_thread(p);
    race->full = (float *)p->local;
    race->gradient = (float *)p->shared;
    odc_config config = {.struct_size = sizeof(config), .all_gather = exchange, .all_gather_arg = race};
    check_odc(odc_init(&config, &race->context));
    uint64_t seed = (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid(), seeds[MAX_RANKS];
    all_gather(&p->bootstrap, &seed, sizeof(seed), seeds, serve, p);
    race->seed = seeds[0];
}

static odc_shard *add_shard(struct race *race, odc_shard_desc desc) {
    odc_shard *shard;
    desc.struct_size = sizeof(desc);
    check_odc(odc_register_shard(race->context, &desc, &shard));
    return shard;
}

static odc_slice slice_of(const odc_shard *shard) {
    odc_slice slice = {.struct_size = sizeof(slice)};
    check_odc(odc_get_slice(shard, &slice));
    return slice;
}

static uint64_t packets(const struct race *race) {
    odc_stats stats = {.struct_size = sizeof(stats)};
    check_odc(odc_get_stats(race->context, &stats));
    return stats.packets_sent;
}

/* ---- Rounds ---- */

/* xorshift: all ranks draw the same numbers from one seed. */
static uint64_t draw(struct race *race) {
    race->seed ^= race->seed << 13;
    race->seed ^= race->seed >> 7;
    race->seed ^= race->seed << 17;
    return race->seed;
}

static double time_ranks(struct race *race, int (*run)(struct race *)) {
    double times[2], all[2 * MAX_RANKS];
    allow_round();
    barrier(race);
    times[0] = now();
    int part = run(race);
    times[1] = now();
    if (!part) {
        times[0] = INFINITY;
        times[1] = 0;
    }
    arm(&race->bare);
    all_gather(&race->bare.bootstrap, times, sizeof(times), all, serve, &race->bare);
    for (int r = 0; r < race->bare.bootstrap.size; ++r) {
        times[0] = all[2 * r] < times[0] ? all[2 * r] : times[0];
        times[1] = all[2 * r + 1] > times[1] ? all[2 * r + 1] : times[1];
    }
    return times[1] - times[0];
}

static double time_round(struct race *race, struct contestant *one) {
    if (one->prepare != NULL) {
        one->prepare(race);
    }
    double seconds = time_ranks(race, one->run);
    if (one->finish != NULL) {
        one->finish(race);
    }
    return seconds;
}

/* Each once untimed, which connects the ranks; then the rounds. */
static void compete(struct race *race, struct contestant *all, int count) {
    int order[MAX_CONTESTANTS];
    for (int i = 0; i < count; ++i) {
        order[i] = i;
        time_round(race, &all[i]);
    }
    for (int round = 0; round < race->rounds; ++round) {
        race->alone = 1 + round % (race->bare.bootstrap.size - 1);
        for (int i = count - 1; i > 0; --i) {
            int j = (int)(draw(race) % (uint64_t)(i + 1)), swapped = order[i];
            order[i] = order[j];
            order[j] = swapped;
        }
        for (int i = 0; i < count; ++i) {
            all[order[i]].seconds[round] = time_round(race, &all[order[i]]);
        }
    }
}

static void print_list(const char *name, const double *values, int count) {
    printf("\"%s\":[", name);
    for (int i = 0; i < count; ++i) {
        printf("%s%.7g", i > 0 ? "," : "", values[i]);
    }
    printf("]");
}

static void print_seconds(const struct race *race, const struct contestant *all, int count) {
    printf("\"seconds\":{");
    for (int i = 0; i < count; ++i) {
        printf("%s", i > 0 ? "," : "");
        print_list(all[i].name, all[i].seconds, race->rounds);
    }
    printf("}}\n");
}

/* ---- All at once ---- */

static float rank_of(const struct race *race) { return (float)race->bare.bootstrap.rank; }

static float sum_of_ranks(const struct race *race) {
    return (float)(race->bare.bootstrap.size * (race->bare.bootstrap.size - 1) / 2);
}

static void choose(struct race *race, enum op op) {
    race->bare.options.op = op;
    arm(&race->bare);
}

/* Clears the previous round's result, so that it is not taken for this one's. */
static void spoil(struct race *race) {
    choose(race, OP_READ);
    for (int r = 0; r < race->bare.bootstrap.size; ++r) {
        if (r != race->bare.bootstrap.rank) {
            uint64_t first = (uint64_t)r * race->bare.slice / sizeof(float);
            race->full[first] = -1;
            race->full[first + race->bare.slice / sizeof(float) - 1] = -1;
        }
    }
}

static int bare(struct race *race) {
    move(&race->bare);
    return 1;
}

static int bare_gather(struct race *race) {
    move_in_thread(&race->bare, copy_own);
    return 1;
}

static void will_add(struct race *race) { choose(race, OP_ADD); }

static int bare_add(struct race *race) {
    move_in_thread(&race->bare, add_own);
    race->bare_sum += sum_of_ranks(race);
    return 1;
}

static int gather(struct race *race) {
    check_odc(odc_gather(race->parameters, race->full, race->numel, NULL));
    return 1;
}

static int add_f32(struct race *race) {
    check_odc(odc_scatter_add(race->f32, race->gradient, race->numel, NULL));
    return 1;
}

static int add_bf16(struct race *race) {
    check_odc(odc_scatter_add(race->bf16, race->narrow, race->numel, NULL));
    return 1;
}

static void check_bytes(struct race *race) { verify(&race->bare); }

/* Rank r's slice holds r, as in the bare loop; `narrow` holds ones. */
static void fill(struct race *race) {
    odc_slice slice = slice_of(race->parameters);
    for (uint64_t i = 0; i < slice.numel; ++i) {
        ((float *)slice.parameters)[i] = rank_of(race);
    }
    race->narrow = (uint16_t *)(void *)allocate(race->numel * sizeof(uint16_t));
    for (uint64_t i = 0; i < race->numel; ++i) {
        race->narrow[i] = 0x3f80;
    }
}

static void check_each(const struct race *race, const float *sums, uint64_t count, float sum, const char *what) {
    for (uint64_t i = 0; i < count; ++i) {
        expect(sums[i] == sum, race, what);
    }
}

static void check_sums(const struct race *race, const odc_shard *shard, float sum, const char *what) {
    odc_slice slice = slice_of(shard);
    check_each(race, slice.gradients, slice.numel, sum, what);
}

static void check_bare_sums(const struct race *race) {
    check_each(race, race->bare.sums, race->bare.slice / sizeof(float), race->bare_sum, "sums of the bare loop");
}

static void measure_move(struct race *race) {
    static struct contestant all[] = {
        {.name = "bare", .prepare = spoil, .run = bare, .finish = check_bytes},
        {.name = "bare_gather", .prepare = spoil, .run = bare_gather, .finish = check_bytes},
        {.name = "bare_gather_again", .prepare = spoil, .run = bare_gather, .finish = check_bytes},
        {.name = "gather", .prepare = spoil, .run = gather, .finish = check_bytes},
        {.name = "bare_add", .prepare = will_add, .run = bare_add},
        {.name = "bare_add_again", .prepare = will_add, .run = bare_add},
        {.name = "add_f32", .run = add_f32},
        {.name = "add_bf16", .run = add_bf16}};
    enum { COUNT = sizeof(all) / sizeof(all[0]) };
    race->parameters = add_shard(race, (odc_shard_desc){.name = "w", .numel = race->numel, .parameter_type = ODC_F32});
    race->f32 = add_shard(race, (odc_shard_desc){.name = "f32", .numel = race->numel, .gradient_type = ODC_F32});
    race->bf16 = add_shard(race, (odc_shard_desc){.name = "bf16", .numel = race->numel, .gradient_type = ODC_BF16});
    fill(race);
    check_odc(odc_publish_all(race->context, NULL));
    compete(race, all, COUNT);
    check_odc(odc_minibatch_sync(race->context));
    float additions = (float)(race->rounds + 1);
    check_bare_sums(race);
    check_sums(race, race->f32, additions * sum_of_ranks(race), "sums of f32");
    check_sums(race, race->bf16, additions * (float)race->bare.bootstrap.size, "sums of bf16");
    if (race->bare.bootstrap.rank == 0) {
        print_seconds(race, all, COUNT);
    }
}

/* ---- All to one ---- */

static int add_many(struct race *race) {
    race->f32_sum += sum_of_ranks(race);
    return race->bare.bootstrap.rank != 0 && add_f32(race);
}

static int add_one(struct race *race) {
    race->f32_sum += (float)race->alone;
    return race->bare.bootstrap.rank == race->alone && add_f32(race);
}

static void from_all(struct race *race) {
    race->bare.options.alone = 0;
    arm(&race->bare);
}

static void from_one(struct race *race) {
    race->bare.options.alone = race->alone;
    arm(&race->bare);
}

/* Rank 0 reads and adds; the others serve its reads while they wait for it. */
static int bare_incast(struct race *race) {
    if (race->bare.bootstrap.rank != 0) {
        return 0;
    }
    move(&race->bare);
    race->bare_sum += race->bare.options.alone ? (float)race->alone : sum_of_ranks(race);
    return 1;
}

/* Private anonymous memory of this process: includes staging, not slices. */
static long private_bytes(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long kilobytes = -1;
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        sscanf(line, "RssAnon: %ld", &kilobytes);
    }
    if (file != NULL) {
        fclose(file);
    }
    return kilobytes * 1024;
}

static long staging_bound(void) {
    const char *value = getenv("ODC_STAGING_BYTES");
    odc_setting setting = {.struct_size = sizeof(setting)};
    for (size_t i = 0; value == NULL && odc_get_setting(i, &setting) == ODC_OK; ++i) {
        value = strcmp(setting.name, "ODC_STAGING_BYTES") == 0 ? setting.fallback : NULL;
    }
    return value != NULL ? atol(value) : -1;
}

/* A shard that rank 0 owns alone. */
static odc_shard *add_shard_at_first(struct race *race) {
    uint64_t slices[MAX_RANKS] = {race->numel};
    int32_t ranks[MAX_RANKS];
    for (int r = 0; r < race->bare.bootstrap.size; ++r) {
        ranks[r] = r;
    }
    return add_shard(race, (odc_shard_desc){.name = "f32",
                                            .numel = race->numel,
                                            .gradient_type = ODC_F32,
                                            .ranks = ranks,
                                            .slices = slices,
                                            .rank_count = (uint64_t)race->bare.bootstrap.size});
}

static void measure_incast(struct race *race) {
    static struct contestant all[] = {{.name = "many", .run = add_many},
                                      {.name = "one", .run = add_one},
                                      {.name = "one_again", .run = add_one},
                                      {.name = "bare_many", .prepare = from_all, .run = bare_incast},
                                      {.name = "bare_many_again", .prepare = from_all, .run = bare_incast},
                                      {.name = "bare_one", .prepare = from_one, .run = bare_incast}};
    enum { COUNT = sizeof(all) / sizeof(all[0]), BARE = 3 };
    check_odc(odc_minibatch_sync(race->context)); /* connects */
    race->f32 = add_shard_at_first(race);
    if (race->bare.bootstrap.rank == 0) {
        check_odc(odc_publish_all(race->context, NULL));
    }
    race->alone = 1;
    time_round(race, &all[BARE]); /* connects the loop, whose memory is not libodc's */
    long before = private_bytes();
    compete(race, all, COUNT);
    long after = private_bytes();
    check_odc(odc_minibatch_sync(race->context));
    if (race->bare.bootstrap.rank == 0) {
        check_bare_sums(race);
        check_sums(race, race->f32, race->f32_sum, "sums of f32");
        printf("\"private_bytes_before\":%ld,\"private_bytes_after\":%ld,\"staging_bytes\":%ld,", before, after,
               staging_bound());
        print_seconds(race, all, COUNT);
    }
}

/* ---- Sync ---- */

static int sync_ranks(struct race *race) {
    check_odc(odc_minibatch_sync(race->context));
    return 1;
}

static int reduce_ranks(struct race *race) {
    double value = 1;
    check_odc(odc_all_reduce(race->context, &value, 1, ODC_MAX));
    return 1;
}

/* Of this process for one of several calls in a row, the progress thread's part with it. */
static double processor_seconds(struct race *race, int (*call)(struct race *)) {
    enum { CALLS = 20 };
    struct timespec begin;
    struct timespec end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    for (int i = 0; i < CALLS; ++i) {
        call(race);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    return ((double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9) / CALLS;
}

/* The packets of one round: of a minibatch's reduction, its publishes, and its sync. A gather from all ranks shows that the
 * publishes have been sent, the calls themselves that their messages have. */
static void measure_sync(struct race *race) {
    enum { REDUCTION, PUBLISH, SYNC, PHASES };
    static const char *const names[PHASES] = {"reduction_packets", "publish_packets", "sync_packets"};
    static double sent[PHASES][MAX_ROUNDS], sync[MAX_ROUNDS], reduction[MAX_ROUNDS];
    static double sync_processor[MAX_ROUNDS], reduction_processor[MAX_ROUNDS];
    race->numel = 1024 * (uint64_t)race->bare.bootstrap.size;
    race->parameters = add_shard(race, (odc_shard_desc){.name = "w", .numel = race->numel, .parameter_type = ODC_F32});
    for (int round = -1; round < race->rounds; ++round) { /* the first connects */
        int i = round > 0 ? round : 0;
        uint64_t before[PHASES + 1];
        before[REDUCTION] = packets(race);
        reduction[i] = time_ranks(race, reduce_ranks);
        before[PUBLISH] = packets(race);
        check_odc(odc_publish_all(race->context, NULL));
        gather(race);
        barrier(race);
        before[SYNC] = packets(race);
        sync[i] = time_ranks(race, sync_ranks);
        before[PHASES] = packets(race);
        for (int phase = 0; phase < PHASES; ++phase) {
            sent[phase][i] = (double)(before[phase + 1] - before[phase]);
        }
    }
    check_odc(odc_release_shard(race->parameters)); /* so that nothing has to be published */
    for (int round = 0; round < race->rounds; ++round) {
        sync_processor[round] = processor_seconds(race, sync_ranks);
        reduction_processor[round] = processor_seconds(race, reduce_ranks);
    }
    if (race->bare.bootstrap.rank == 0) {
        for (int phase = 0; phase < PHASES; ++phase) {
            print_list(names[phase], sent[phase], race->rounds);
            printf(",");
        }
        printf("\"seconds\":{");
        print_list("sync", sync, race->rounds);
        printf(",");
        print_list("sync_processor", sync_processor, race->rounds);
        printf(",");
        print_list("reduction", reduction, race->rounds);
        printf(",");
        print_list("reduction_processor", reduction_processor, race->rounds);
        printf("}}\n");
    }
}

static int usage(void) {
    fprintf(stderr, "usage: fabric_race move|incast|sync [ROUNDS [BYTES]]   (at most %d; default %d and 67108864)\n",
            MAX_ROUNDS, DEFAULT_ROUNDS);
    return 2;
}

int main(int argc, char **argv) {
    static const char *const names[] = {"move", "incast", "sync"};
    void (*const measures[])(struct race *) = {measure_move, measure_incast, measure_sync};
    static struct race race;
    size_t what = 0;
    while (what < 3 && (argc < 2 || strcmp(argv[1], names[what]) != 0)) {
        ++what;
    }
    race.rounds = argc > 2 ? atoi(argv[2]) : DEFAULT_ROUNDS;
    size_t bytes = argc > 3 ? strtoull(argv[3], NULL, 0) : 64 << 20;
    if (what == 3 || argc > 4 || race.rounds < 1 || race.rounds > MAX_ROUNDS || bytes < 4096) {
        return usage();
    }
    join(&race, bytes, measures[what] == measure_incast);
    if (race.bare.bootstrap.rank == 0) {
        printf("{\"what\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"seed\":%llu,", names[what], race.bare.bootstrap.size,
               (size_t)race.numel * sizeof(float), (unsigned long long)race.seed);
    }
    measures[what](&race);
    barrier(&race); /* so that no rank leaves while another prints */
    odc_destroy(race.context);
    close_all(&race.bare);
    return 0;
}
