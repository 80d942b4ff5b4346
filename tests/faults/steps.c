/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that runs minibatches and checks every gather, every sum and that each item is claimed once, for hosts_job_test.sh:
 * steps MINIBATCHES [FOLDER [claims]]. Makes FOLDER/RANK after the third minibatch; then, if it is told so, ranks claim items for
 * some seconds. Exits with 0 and "rank R: ok", or with 3 and the error. */
#include <odc/odc.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { NUMEL = 100003, TOUCH = 3, ITEMS = 50, MANY_ITEMS = 3000 };

static int rank = -1;

static void try(odc_status status) {
    if (status != ODC_OK) {
        printf("rank %d: %s: %s\n", rank, odc_status_string(status), odc_last_error());
        fflush(stdout);
        exit(3);
    }
}

static void hold(int condition, const char *what) {
    if (!condition) {
        printf("rank %d: wrong: %s\n", rank, what);
        exit(1);
    }
}

static void touch(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", folder, rank);
    FILE *file = fopen(path, "w");
    hold(file != NULL && fputs("here\n", file) >= 0 && fclose(file) == 0, path);
}

/* The items that this rank gets, as their number and their sum. */
static void claim(odc_context *context, double claimed[2]) {
    uint64_t item = 0;
    for (odc_status status; (status = odc_claim(context, ITEMS, &item)) != ODC_DONE;) {
        try(status);
        claimed[0] += 1;
        claimed[1] += (double)item;
    }
}

/* A minibatch of nothing but items, which take some seconds. Each is a line of FOLDER/items.RANK. */
static void claim_slowly(odc_context *context, odc_shard *shard, const char *folder) {
    const struct timespec pause = {0, 5000000};
    char path[4096];
    uint64_t item = 0;
    snprintf(path, sizeof path, "%s/items.%d", folder, rank);
    FILE *file = fopen(path, "w");
    hold(file != NULL, path);
    setvbuf(file, NULL, _IOLBF, 0);
    try(odc_publish(shard, NULL));
    for (odc_status status; (status = odc_claim(context, MANY_ITEMS, &item)) != ODC_DONE;) {
        try(status);
        hold(fprintf(file, "%d\n", (int)item) > 0, path);
        nanosleep(&pause, NULL);
    }
    fclose(file);
    try(odc_minibatch_sync(context));
}

static void step(odc_context *context, odc_shard *shard, odc_slice slice, float *full, int minibatch) {
    float *mine = slice.parameters;
    for (uint64_t i = 0; i < slice.numel; ++i) {
        mine[i] = (float)((slice.offset + i) % 1000 + (uint64_t)minibatch % 7);
    }
    try(odc_publish(shard, NULL));
    try(odc_gather(shard, full, NUMEL, NULL));
    for (uint64_t i = 0; i < NUMEL; ++i) {
        hold(full[i] == (float)(i % 1000 + (uint64_t)minibatch % 7), "a gathered parameter");
        full[i] = (float)((i + (uint64_t)rank) % 5);
    }
    try(odc_scatter_add(shard, full, NUMEL, NULL));
    double claimed[2] = {0, 0};
    claim(context, claimed);
    try(odc_minibatch_sync_reduce(context, claimed, 2, ODC_SUM));
    hold(claimed[0] == ITEMS && claimed[1] == ITEMS * (ITEMS - 1) / 2, "the items that were claimed");
    const float *sums = slice.gradients;
    for (uint64_t i = 0; i < slice.numel; ++i) {
        uint64_t sum = 0;
        for (int other = 0; other < odc_size(context); ++other) {
            sum += (slice.offset + i + (uint64_t)other) % 5;
        }
        hold(sums[i] == (float)sum, "a sum");
    }
}

int main(int argc, char **argv) {
    const int minibatches = argc > 1 ? atoi(argv[1]) : 10;
    const struct timespec pause = {0, 5000000};
    odc_context *context = NULL;
    try(odc_init(NULL, &context));
    rank = odc_rank(context);
    odc_shard_desc desc = {.struct_size = sizeof desc, .name = "all", .numel = NUMEL};
    desc.parameter_type = desc.gradient_type = ODC_F32;
    odc_shard *shard = NULL;
    try(odc_register_shard(context, &desc, &shard));
    odc_slice slice = {.struct_size = sizeof slice};
    try(odc_get_slice(shard, &slice));
    float *full = malloc(NUMEL * sizeof *full);
    hold(full != NULL, "no memory");
    for (int minibatch = 0; minibatch < minibatches; ++minibatch) {
        step(context, shard, slice, full, minibatch);
        if (minibatch == TOUCH && argc > 2) {
            touch(argv[2]);
            if (argc > 3) {
                claim_slowly(context, shard, argv[2]);
            }
        }
        nanosleep(&pause, NULL);
    }
    odc_destroy(context);
    free(full);
    printf("rank %d: ok\n", rank);
    return 0;
}
