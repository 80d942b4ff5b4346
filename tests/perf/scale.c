/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of many ranks on one host, and of many shards. Prints Markdown tables: scale [--shards COUNT] [RANKS...] (default:
 * 10000 shards; 2 4 8 16 32 64 128 256 512 ranks) */
#include <odc/odc.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 4096, MAX_FIGURES = 8, VALUES = 4, SHARD_RANKS = 16, SHARD_NUMEL = 1600 };

/* Written by each rank, read by the parent when all have ended. */
typedef double figures[MAX_FIGURES];
static figures *all;

typedef struct job {
    const char *name;
    int rank;
    int size;
    odc_context *context;
} job;

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void must(odc_status status) {
    if (status != ODC_OK) {
        fprintf(stderr, "scale: %s\n", odc_last_error());
        exit(1);
    }
}

/* ---- Ranks ---- */

static void meet(job *this) {
    odc_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.rank = this->rank;
    config.size = this->size;
    config.job = this->name;
    must(odc_init(&config, &this->context));
}

/* Runs `size` ranks to their end. They are killed if their parent ends. */
static void run(int size, void (*rank_main)(job *, double *)) {
    uint64_t nonce = 0;
    char name[32];
    int failed = getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce;
    snprintf(name, sizeof name, "scale-%016llx", (unsigned long long)nonce);
    fflush(NULL);
    for (int rank = 0; rank < size && !failed; ++rank) {
        pid_t parent = getpid();
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) {
                _exit(1);
            }
            job this = {name, rank, size, NULL};
            rank_main(&this, all[rank]);
            odc_destroy(this.context);
            _exit(0);
        }
        failed = child < 0;
    }
    for (int status = 0; wait(&status) > 0;) {
        failed |= status != 0;
    }
    if (failed) {
        fprintf(stderr, "scale: a rank of %d failed\n", size);
        exit(1);
    }
}

static double mean(int size, int figure) {
    double sum = 0;
    for (int rank = 0; rank < size; ++rank) {
        sum += all[rank][figure];
    }
    return sum / size;
}

static double most(int size, int figure) {
    double most = 0;
    for (int rank = 0; rank < size; ++rank) {
        most = all[rank][figure] > most ? all[rank][figure] : most;
    }
    return most;
}

/* ---- Ranks of one host ---- */

enum { INIT_WALL, SYNC_WALL, SYNC_CPU, REDUCE_WALL, REDUCE_CPU };

static void sync_once(odc_context *context) { must(odc_minibatch_sync(context)); }

static void reduce_once(odc_context *context) {
    double values[VALUES] = {1, 2, 3, 4};
    must(odc_all_reduce(context, values, VALUES, ODC_SUM));
}

/* The time and processor time of a call; all ranks start together. */
static void measure(odc_context *context, int count, void (*call)(odc_context *), double *wall, double *cpu) {
    sync_once(context);
    *wall = now(CLOCK_MONOTONIC);
    *cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < count; ++i) {
        call(context);
    }
    *cpu = (now(CLOCK_PROCESS_CPUTIME_ID) - *cpu) / count;
    *wall = (now(CLOCK_MONOTONIC) - *wall) / count;
}

static void many_ranks(job *this, double *mine) {
    int count = 40000 / this->size > 40 ? 40000 / this->size : 40;
    mine[INIT_WALL] = now(CLOCK_MONOTONIC);
    meet(this);
    mine[INIT_WALL] = now(CLOCK_MONOTONIC) - mine[INIT_WALL];
    measure(this->context, count, sync_once, &mine[SYNC_WALL], &mine[SYNC_CPU]);
    measure(this->context, count, reduce_once, &mine[REDUCE_WALL], &mine[REDUCE_CPU]);
}

static void print_ranks(int size) {
    run(size, many_ranks);
    printf("| %d | %.2f s | %.1f µs | %.1f µs | %.1f µs | %.1f µs |\n", size, most(size, INIT_WALL),
           1e6 * mean(size, SYNC_WALL), 1e6 * mean(size, SYNC_CPU), 1e6 * mean(size, REDUCE_WALL),
           1e6 * mean(size, REDUCE_CPU));
    fflush(stdout);
}

/* ---- Many shards ---- */

enum { AT_ONCE, ONE_BY_ONE, FIRST_GATHERS, SECOND_GATHERS, FIRST_SYNC, LATER_SYNC, RELEASE };

static int shard_count = 10000;
static double begun;

static void take_cpu(double *figure) { *figure = now(CLOCK_PROCESS_CPUTIME_ID) - begun; }

static void begin(void) { begun = now(CLOCK_PROCESS_CPUTIME_ID); }

static void gather_all(odc_shard **shards, int count) {
    static float full[SHARD_NUMEL];
    for (int i = 0; i < count; ++i) {
        must(odc_gather(shards[i], full, SHARD_NUMEL, NULL));
    }
}

/* Registers half of the shards in one call and the other half one by one; then uses all of them. */
static void many_shards(job *this, double *mine) {
    int half = shard_count / 2;
    odc_shard_desc *descs = calloc((size_t)shard_count, sizeof *descs);
    odc_shard **shards = calloc((size_t)shard_count, sizeof(odc_shard *));
    char(*names)[32] = calloc((size_t)shard_count, sizeof *names);
    meet(this);
    for (int i = 0; i < shard_count; ++i) {
        snprintf(names[i], sizeof names[i], "layer.%d.weight", i);
        descs[i].struct_size = sizeof descs[i];
        descs[i].name = names[i];
        descs[i].numel = SHARD_NUMEL;
        descs[i].parameter_type = ODC_F32;
        descs[i].gradient_type = ODC_F32;
    }
    sync_once(this->context);
    begin();
    must(odc_register_shards(this->context, descs, (size_t)half, shards));
    take_cpu(&mine[AT_ONCE]);
    begin();
    for (int i = half; i < shard_count; ++i) {
        must(odc_register_shard(this->context, &descs[i], &shards[i]));
    }
    take_cpu(&mine[ONE_BY_ONE]);
    must(odc_publish_all(this->context, NULL));
    begin();
    gather_all(shards, shard_count);
    take_cpu(&mine[FIRST_GATHERS]);
    begin();
    gather_all(shards, shard_count);
    take_cpu(&mine[SECOND_GATHERS]);
    begin();
    sync_once(this->context);
    take_cpu(&mine[FIRST_SYNC]);
    must(odc_publish_all(this->context, NULL));
    begin();
    sync_once(this->context);
    take_cpu(&mine[LATER_SYNC]);
    begin();
    for (int i = 0; i < shard_count; ++i) {
        must(odc_release_shard(shards[i]));
    }
    take_cpu(&mine[RELEASE]);
    sync_once(this->context);
    sync_once(this->context);
    free(descs);
    free(shards);
    free(names);
}

static void print_shards(void) {
    static const char *const what[] = {"register half of them in one call",
                                       "register the other half one by one",
                                       "first gather of all",
                                       "second gather of all",
                                       "the sync after that",
                                       "a later sync",
                                       "release all one by one"};
    run(SHARD_RANKS, many_shards);
    printf("\n| %d shards of %d f32 over %d ranks | processor time of a rank |\n|---|---|\n", shard_count, SHARD_NUMEL,
           SHARD_RANKS);
    for (int i = 0; i < (int)(sizeof what / sizeof *what); ++i) {
        printf("| %s | %.1f ms |\n", what[i], 1e3 * mean(SHARD_RANKS, i));
    }
}

int main(int argc, char **argv) {
    static const int sizes[] = {2, 4, 8, 16, 32, 64, 128, 256, 512};
    int first = 1;
    all = mmap(NULL, MAX_RANKS * sizeof(figures), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    if (argc > 2 && strcmp(argv[1], "--shards") == 0) {
        shard_count = atoi(argv[2]);
        first = 3;
    }
    printf(
        "| ranks | odc_init | sync | its processor time per rank | odc_all_reduce of %d values | its processor time per "
        "rank |\n|---|---|---|---|---|---|\n",
        VALUES);
    for (int i = first; i < argc; ++i) {
        int size = atoi(argv[i]);
        if (size < 1 || size > MAX_RANKS) {
            fprintf(stderr, "scale: '%s' is not a number of ranks in 1..%d\n", argv[i], MAX_RANKS);
            return 2;
        }
        print_ranks(size);
    }
    for (size_t i = 0; first == argc && i < sizeof sizes / sizeof *sizes; ++i) {
        print_ranks(sizes[i]);
    }
    if (shard_count > 0) {
        print_shards();
    }
    return 0;
}
