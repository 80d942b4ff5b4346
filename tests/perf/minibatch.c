/* SPDX-License-Identifier: Apache-2.0 */
/* A minibatch between hosts without compute, with the node cache and without: each rank gathers and adds a shard for each of its
 * microbatches. Both contexts are in the same processes and take turns, in the other order every round; a minibatch lasts from
 * when all ranks are ready to the slowest rank's sync. Rank 0 prints a JSON object with each round's seconds and the bytes that
 * its host's interface received.
 *
 * usage: minibatch BYTES MICROBATCHES GATHERS ROUNDS [bf16], as a rank (tests/harness/hosts.sh ranks N); BYTES: of the shard's
 * gradients, which are f32; bf16: of the parameters */
#include <odc/odc.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTEXTS = 2, MAX_ROUNDS = 1000 };

typedef struct contestant {
    const char *name;
    const char *node_cache;
    odc_context *context;
    odc_shard *shard;
    double seconds[MAX_ROUNDS];
    double received[MAX_ROUNDS];
} contestant;

static uint64_t numel;
static int microbatches, gathers, rounds;
static int32_t parameter_type = ODC_F32;
static void *full;
static float *gradients;

static void must(odc_status status) {
    if (status != ODC_OK) {
        fprintf(stderr, "minibatch: %s\n", odc_last_error());
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* By this host's interface. */
static double received_bytes(void) {
    double bytes = 0;
    FILE *file = fopen("/sys/class/net/net0/statistics/rx_bytes", "r");
    if (file == NULL || fscanf(file, "%lf", &bytes) != 1) {
        fprintf(stderr, "minibatch: net0 counts no bytes; start it by tests/harness/hosts.sh\n");
        exit(1);
    }
    fclose(file);
    return bytes;
}

static void join(contestant *one) {
    odc_config config = {.struct_size = sizeof config, .group = one->name};
    odc_shard_desc desc = {.struct_size = sizeof desc,
                           .name = "layer",
                           .numel = numel,
                           .parameter_type = parameter_type,
                           .gradient_type = ODC_F32};
    odc_slice slice = {.struct_size = sizeof slice};
    setenv("ODC_NODE_CACHE", one->node_cache, 1);
    must(odc_init(&config, &one->context));
    must(odc_register_shard(one->context, &desc, &one->shard));
    must(odc_get_slice(one->shard, &slice));
    memset(slice.parameters, 0x3c, slice.numel * (parameter_type == ODC_F32 ? 4 : 2));
}

static void check_sums(const contestant *one) {
    odc_slice slice = {.struct_size = sizeof slice};
    must(odc_get_slice(one->shard, &slice));
    const float *sums = slice.gradients;
    const float sum = (float)(odc_size(one->context) * microbatches);
    for (uint64_t i = 0; i < slice.numel; i += 997) {
        if (sums[i] != sum || ((unsigned char *)full)[i] != 0x3c) {
            fprintf(stderr, "minibatch: %s: sum %lu is %g, not %g\n", one->name, (unsigned long)i, (double)sums[i],
                    (double)sum);
            exit(1);
        }
    }
}

static void run(contestant *one, int round) {
    double ready = 1;
    must(odc_all_reduce(one->context, &ready, 1, ODC_SUM));
    const double received = received_bytes();
    const double begin = now();
    must(odc_publish(one->shard, NULL));
    for (int i = 0; i < microbatches; ++i) {
        for (int j = 0; j < gathers; ++j) {
            must(odc_gather(one->shard, full, numel, NULL));
        }
        must(odc_scatter_add(one->shard, gradients, numel, NULL));
    }
    must(odc_minibatch_sync(one->context));
    double seconds = now() - begin;
    must(odc_all_reduce(one->context, &seconds, 1, ODC_MAX));
    one->seconds[round] = seconds;
    one->received[round] = received_bytes() - received;
    check_sums(one);
}

static void print(const char *name, const double *values) {
    printf("\"%s\": [", name);
    for (int i = 0; i < rounds; ++i) {
        printf("%s%.9g", i > 0 ? ", " : "", values[i]);
    }
    printf("]");
}

int main(int argc, char **argv) {
    static contestant all[CONTEXTS] = {{.name = "flat", .node_cache = "off"}, {.name = "cached", .node_cache = "auto"}};
    if (argc < 5 || argc > 6 || (argc == 6 && strcmp(argv[5], "bf16") != 0) || atoll(argv[1]) < 4 ||
        atoi(argv[2]) < 1 || atoi(argv[3]) < 1 || atoi(argv[4]) < 1 || atoi(argv[4]) >= MAX_ROUNDS) {
        fprintf(stderr, "usage: minibatch BYTES MICROBATCHES GATHERS ROUNDS [bf16]\n");
        return 2;
    }
    numel = (uint64_t)atoll(argv[1]) / 4;
    microbatches = atoi(argv[2]);
    gathers = atoi(argv[3]);
    rounds = atoi(argv[4]);
    parameter_type = argc == 6 ? ODC_BF16 : ODC_F32;
    full = malloc(numel * 4);
    gradients = malloc(numel * 4);
    for (uint64_t i = 0; i < numel; ++i) {
        gradients[i] = 1;
    }
    for (int c = 0; c < CONTEXTS; ++c) {
        join(&all[c]);
    }
    for (int round = -1; round < rounds; ++round) { /* the first is not counted */
        for (int c = 0; c < CONTEXTS; ++c) {
            run(&all[(round + c + 1) % CONTEXTS], round < 0 ? 0 : round);
        }
    }
    if (odc_rank(all[0].context) == 0) {
        printf("{\"ranks\": %d, \"bytes\": %.0f, \"microbatches\": %d, \"gathers\": %d", odc_size(all[0].context),
               (double)numel * 4, microbatches, gathers);
        for (int c = 0; c < CONTEXTS; ++c) {
            printf(", \"%s\": {", all[c].name);
            print("seconds", all[c].seconds);
            printf(", ");
            print("received", all[c].received);
            printf("}");
        }
        printf("}\n");
    }
    for (int c = 0; c < CONTEXTS; ++c) {
        odc_destroy(all[c].context);
    }
    free(full);
    free(gradients);
    return 0;
}
