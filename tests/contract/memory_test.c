/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the library takes beside the slices: at most 1 MiB + 1 KiB for each shard + 0.1 % of the slices, per rank.
 * Measured as the pages of the ranks' shared files, and the growth of the process's private memory. Released memory is used
 * again. */
#include "model.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct load {
    int count;
    uint64_t numel;
    int parameter_type;
    int gradient_type;
} load;

/* The number that `format` reads from a line of a file of /proc, or -1 if there is none. */
static long number_in(const char *path, const char *format) {
    char line[256];
    long number = -1;
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        sscanf(line, format, &number);
    }
    if (file != NULL) {
        fclose(file);
    }
    return number;
}

/* RssAnon: without shared files and program text. */
static long own_bytes(void) {
    const long kib = number_in("/proc/self/status", "RssAnon: %ld");
    CHECK(kib >= 0);
    return kib * 1024;
}

/* Allocated pages, touched or not, of all shared files that this process has open: one per rank. */
static long shared_bytes(int *files) {
    ino_t seen[64];
    long bytes = 0;
    *files = 0;
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != NULL);
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        char target[256] = {0};
        struct stat status;
        int known = 0;
        if (readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1) < 0 ||
            strstr(target, "memfd:odc") == NULL || fstatat(dirfd(directory), entry->d_name, &status, 0) != 0) {
            continue;
        }
        for (int i = 0; i < *files; ++i) {
            known |= seen[i] == status.st_ino;
        }
        if (!known && *files < 64) {
            seen[(*files)++] = status.st_ino;
            bytes += (long)status.st_blocks * 512;
        }
    }
    closedir(directory);
    return bytes;
}

static void register_and_use(odc_context *context, const load *what, void *full) {
    odc_shard **shards = calloc((size_t)what->count, sizeof *shards);
    for (int i = 0; i < what->count; ++i) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.mlp.down_proj.weight", i);
        odc_shard_desc desc = describe(name, what->numel, what->parameter_type, what->gradient_type);
        CHECK_OK(odc_register_shard(context, &desc, &shards[i]));
    }
    for (int minibatch = 0; minibatch < 3; ++minibatch) {
        CHECK_OK(odc_publish_all(context, NULL));
        for (int i = 0; i < what->count; ++i) {
            CHECK_OK(odc_gather(shards[i], full, what->numel, NULL));
            CHECK_OK(odc_scatter_add(shards[i], full, what->numel, NULL));
        }
        CHECK_OK(odc_minibatch_sync(context));
    }
    free(shards);
}

static void weigh(int rank, int size, const char *job, void *arg) {
    const load *what = arg;
    odc_stats stats = {.struct_size = sizeof stats};
    size_t bytes = what->numel * 8;
    double total_slices = 0;
    int files = 0;
    void *full = malloc(bytes);
    memset(full, 1, bytes); /* not 0, so that its pages are allocated before the measurement */
    long before = own_bytes();
    odc_context *context = join(rank, size, job);
    register_and_use(context, what, full);
    long own = own_bytes() - before;
    CHECK_OK(odc_get_stats(context, &stats));
    double slices = (double)stats.slice_bytes;
    total_slices = slices;
    CHECK_OK(odc_all_reduce(context, &total_slices, 1, ODC_SUM)); /* returns when all have registered */
    double shared = (double)shared_bytes(&files);
    CHECK_OK(odc_all_reduce(context, &(double){0}, 1, ODC_SUM)); /* keeps ranks from leaving before all have measured */
    CHECK_EQUAL(files, size);
    double beside = (double)own + (shared - total_slices) / size;
    double allowed = 1048576.0 + 1024.0 * what->count + 0.001 * slices;
    if (rank == 0) {
        printf(
            "%d shards, %.1f MiB of slices: %.0f KiB beside them (%.0f KiB shared, %.0f KiB own), %.0f KiB allowed\n",
            what->count, slices / 1048576, beside / 1024, (shared - total_slices) / size / 1024, (double)own / 1024,
            allowed / 1024);
    }
    CHECK(beside <= allowed);
    free(full);
    odc_destroy(context);
}

static void memory_beside_the_slices_is_bounded(void **state) {
    static const load loads[4] = {{1, (uint64_t)8 << 20, ODC_BF16, ODC_BF16},
                                  {1000, 13, ODC_F32, ODC_F32},
                                  {200, 70001, ODC_F32, ODC_BF16},
                                  {30, 1000003, ODC_BF16, ODC_F32}};
    (void)state;
    needs_processes("it measures the memory of a process");
    needs_no_sanitizer("it would measure the sanitizer's own memory");
    for (int i = 0; i < 4; ++i) {
        run_processes(2, weigh, (void *)&loads[i]);
        run_processes(4, weigh, (void *)&loads[i]);
    }
}

/* Counts the mappings of all ranks' shared files. */
static long mappings(void) {
    char line[512];
    long count = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        count += strstr(line, "memfd:odc") != NULL;
    }
    fclose(file);
    return count;
}

static void register_and_release(odc_context *context, const load *what, int rounds, void *full) {
    for (int round = 0; round < rounds; ++round) {
        odc_shard *shards[3];
        for (int i = 0; i < what->count; ++i) {
            char name[64];
            snprintf(name, sizeof name, "activations.%d of round %d", i, (int)odc_minibatch(context));
            odc_shard_desc desc = describe(name, what->numel, what->parameter_type, what->gradient_type);
            CHECK_OK(odc_register_shard(context, &desc, &shards[i]));
        }
        CHECK_OK(odc_publish_all(context, NULL));
        for (int i = 0; i < what->count; ++i) {
            CHECK_OK(odc_scatter_add(shards[i], full, what->numel, NULL));
        }
        CHECK_OK(odc_minibatch_sync(context));
        for (int i = 0; i < what->count; ++i) {
            CHECK_OK(odc_release_shard(shards[i]));
        }
    }
}

static void grow(int rank, int size, const char *job, void *arg) {
    const load *what = arg;
    int rounds = what->numel > 100000 ? 20 : 2000;
    int files = 0;
    void *full = malloc(what->numel * 8);
    memset(full, 1, what->numel * 8);
    odc_context *context = join(rank, size, job);
    long mapped = mappings();
    register_and_release(context, what, 10, full);
    CHECK_OK(odc_all_reduce(context, &(double){0}, 1, ODC_SUM));
    long own = own_bytes();
    long shared = shared_bytes(&files);
    CHECK_OK(odc_all_reduce(context, &(double){0}, 1, ODC_SUM));
    register_and_release(context, what, rounds, full);
    CHECK_OK(odc_all_reduce(context, &(double){0}, 1, ODC_SUM));
    own = own_bytes() - own;
    shared = shared_bytes(&files) - shared;
    mapped = mappings() - mapped;
    CHECK_OK(odc_all_reduce(context, &(double){0}, 1, ODC_SUM));
    if (rank == 0) {
        printf("%d x %d shards of %d elements registered and released: %.0f KiB shared, %.0f KiB own, %ld mappings\n",
               rounds, what->count, (int)what->numel, (double)shared / 1024, (double)own / 1024, mapped);
    }
    /* A handle stays valid, so that its use after the release is an error. */
    CHECK(own <= 65536 + 128L * what->count * rounds);
    CHECK(shared <= 65536);
    CHECK_EQUAL(mapped, 0);
    free(full);
    odc_destroy(context);
}

static void what_is_released_is_used_again(void **state) {
    static const load loads[4] = {{1, 13, ODC_F32, ODC_F32},
                                  {3, 3001, ODC_BF16, ODC_F32},
                                  {3, 70001, ODC_F32, ODC_BF16},
                                  {2, 4000003, ODC_F64, ODC_F64}};
    (void)state;
    needs_processes("it measures the memory of a process");
    needs_no_sanitizer("it would measure the sanitizer's own memory");
    for (int i = 0; i < 4; ++i) {
        run_processes(2, grow, (void *)&loads[i]);
    }
}

/* The number of this process's read() calls, or -1 where the kernel does not count them. */
static long read_calls(void) { return number_in("/proc/self/io", "syscr: %ld"); }

static long available_bytes(void) {
    const long kib = number_in("/proc/meminfo", "MemAvailable: %ld");
    CHECK(kib >= 0);
    return kib * 1024;
}

static void register_one_by_one(int rank, int size, const char *job, void *arg) {
    enum { SHARDS = 100, NUMEL = 1 << 18 }; /* of 1 MiB */
    (void)arg;
    odc_context *context = join(rank, size, job);
    const long before = read_calls();
    for (int i = 0; i < SHARDS; ++i) {
        char name[32];
        odc_shard *shard = NULL;
        snprintf(name, sizeof name, "layer %d", i);
        const odc_shard_desc desc = describe(name, NUMEL, ODC_F32, 0);
        CHECK_OK(odc_register_shard(context, &desc, &shard));
    }
    const long calls = read_calls() - before;
    print_message("%d registrations made %ld calls of read()\n", SHARDS, calls);
    CHECK(calls < SHARDS * 2);
    odc_destroy(context);
}

/* A look at the available memory takes about eight calls of read(). */
static void registrations_share_looks_at_the_available_memory(void **state) {
    (void)state;
    needs_processes("it counts the calls of a process");
    if (read_calls() < 0 || available_bytes() < 6L << 30) {
        print_message("skipped: the kernel counts no calls, or less than 6 GiB of memory is available\n");
        skip();
    }
    run_processes(1, register_one_by_one, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_beside_the_slices_is_bounded),
        cmocka_unit_test(what_is_released_is_used_again),
        cmocka_unit_test(registrations_share_looks_at_the_available_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
