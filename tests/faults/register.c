/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that register shards of their own at the same moment, and keep them until all have tried: register BYTES [RANKS [SHARDS]]
 * (default 1). Says how often the kernel was read meanwhile. For memory_limit_test.sh. */
#include <odc/odc.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_int *tried; /* the number of ranks that have tried */

static int fail(void) {
    fprintf(stderr, "%s\n", odc_last_error());
    return 1;
}

/* Not by a call of the job, which may have failed. Killed ranks never come. */
static void await_others(int size) {
    struct timespec moment = {0, 1000000};
    atomic_fetch_add(tried, 1);
    for (int ms = 0; atomic_load(tried) < size && ms < 20000; ++ms) {
        nanosleep(&moment, NULL);
    }
}

/* The number of this process's read() calls, or -1 where the kernel does not count them. */
static long read_calls(void) {
    char line[100];
    long calls = -1;
    FILE *file = fopen("/proc/self/io", "r");
    while (file != NULL && calls < 0 && fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "syscr: %ld", &calls);
    }
    if (file != NULL) {
        fclose(file);
    }
    return calls;
}

static int register_one(odc_context *context, int rank, int number, uint64_t bytes) {
    odc_shard_desc desc = {.struct_size = sizeof desc, .numel = bytes, .parameter_type = ODC_BYTES};
    odc_shard *shard = NULL;
    char name[32];
    snprintf(name, sizeof name, "w%d-%d", rank, number);
    desc.name = name;
    desc.ranks = &rank;
    desc.rank_count = 1;
    return odc_register_shard(context, &desc, &shard) == ODC_OK ? 0 : fail();
}

static int run(int rank, int size, const char *job, uint64_t bytes, int shards) {
    odc_config config = {.struct_size = sizeof config, .rank = rank, .size = size, .job = job};
    odc_context *context = NULL;
    int status = 0;
    if (odc_init(&config, &context) != ODC_OK) {
        return fail();
    }
    const long before = read_calls();
    for (int i = 0; i < shards && status == 0; ++i) {
        status = register_one(context, rank, i, bytes);
    }
    if (status == 0) {
        printf("registered; calls of read(): %ld\n", read_calls() - before);
        fflush(stdout);
    }
    await_others(size);
    odc_destroy(context);
    return status;
}

int main(int argc, char **argv) {
    const uint64_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    const int size = argc > 2 ? atoi(argv[2]) : 1;
    const int shards = argc > 3 ? atoi(argv[3]) : 1;
    char job[32];
    int status = 0;
    int refused = 0;
    snprintf(job, sizeof job, "register-%d", (int)getpid());
    tried = mmap(NULL, sizeof *tried, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int rank = 0; rank < size; ++rank) {
        const pid_t child = fork();
        if (child == 0) {
            exit(run(rank, size, job, bytes, shards));
        }
        if (child < 0) {
            perror("fork");
            return 2;
        }
    }
    while (wait(&status) > 0 || errno == EINTR) {
        if (!WIFEXITED(status)) {
            fprintf(stderr, "a rank was killed by signal %d\n", WTERMSIG(status));
            refused = 2;
        } else if (WEXITSTATUS(status) != 0 && refused == 0) {
            refused = 1;
        }
    }
    return refused;
}
