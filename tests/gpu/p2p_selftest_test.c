/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of GPUs whose driver promises more than they do: odc_init notices, and sums go through host memory. */
#include <stdio.h>

#include "gpu.h"
#include "model.h"

static odc_route route_to(odc_context *context, int rank) {
    odc_route route;
    memset(&route, 0, sizeof route);
    route.struct_size = sizeof route;
    CHECK_OK(odc_get_route(context, rank, ODC_GPU_MEMORY, &route));
    return route;
}

/* Ranks 0 and 2 are on cuda:0, rank 1 is on cuda:1: they use host memory, with correct results. */
static void staged(odc_context *context, void *arg) {
    const char *const *text = arg;
    int mine = odc_rank(context) % 2;
    for (int rank = 0; rank < odc_size(context); ++rank) {
        odc_route route = route_to(context, rank);
        int same = rank % 2 == mine;
        CHECK(strcmp(route.transport, same ? "cuda" : "shm") == 0);
        CHECK(strcmp(route.access, same ? "direct" : "staged") == 0);
        if (same) {
            CHECK_SENTENCE(route.why, "the same GPU");
        } else {
            CHECK_SENTENCE(route.why, "through host memory", text[0], text[1]);
        }
    }
    tensor t[3] = {make_tensor(context, "f32", 100000, ODC_F32, ODC_F32),
                   make_tensor(context, "mixed", 70001, ODC_BF16, ODC_F16),
                   make_tensor(context, "tiny", 2, ODC_F64, ODC_F64)};
    for (uint64_t minibatch = 0; minibatch < 3; ++minibatch) {
        use_once(context, t, 3, 1 + minibatch);
    }
}

static void try_with(const char *test, const char *p2p, const char *first, const char *second) {
    const char *text[2] = {first, second};
    setenv("FAKE_CUDA_P2P", p2p, 1);
    run_ranks_of(test, 3, staged, text);
    setenv("FAKE_CUDA_P2P", "all", 1);
}

static void sums_that_are_lost_between_gpus_are_noticed(void **state) {
    (void)state;
    try_with(__func__, "lossy", "added to at the same time|that rank cannot use", "not whole|its own route says why");
}

/* The early rank has added long before the late one begins, if it does not wait for it. */
static void late(int rank, int size, const char *job, void *arg) {
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    (void)arg;
    setenv("FAKE_CUDA_DELAY_US", rank == 0 ? "0" : "20000", 1);
    CHECK_OK(odc_init(&config, &context));
    CHECK(strcmp(route_to(context, 1 - rank).access, "staged") == 0);
    odc_destroy(context);
}

static void sums_are_added_beside_a_late_rank(void **state) {
    (void)state;
    needs_processes("each has a pace of its own");
    setenv("FAKE_CUDA_P2P", "lossy", 1);
    for (int i = 0; i < 2; ++i) { /* by chance the first may overlap */
        run_processes(2, late, NULL);
    }
    setenv("FAKE_CUDA_P2P", "all", 1);
}

static void wrong_reads_between_gpus_are_noticed(void **state) {
    (void)state;
    try_with(__func__, "blind", "not what was written|that rank cannot use", "IOMMU|its own route says why");
}

static void what_the_driver_denies_is_not_tried(void **state) {
    (void)state;
    try_with(__func__, "none", "cannot read each other's memory", "peer-to-peer");
    try_with(__func__, "no-atomics", "no native atomics", "lost");
}

static void good_route(odc_context *context, void *arg) {
    (void)arg;
    for (int rank = 0; rank < odc_size(context); ++rank) {
        odc_route route = route_to(context, rank);
        CHECK(strcmp(route.transport, "cuda") == 0 && strcmp(route.access, "direct") == 0);
        CHECK_SENTENCE(route.why, (rank ^ odc_rank(context)) % 2 == 0 ? "the same GPU" : "with native atomics",
                       "cuda:");
    }
}

static void routes_of_good_pairs_explain_their_access(void **state) {
    (void)state;
    run_ranks(3, good_route, NULL);
}

static void by_scalars(odc_context *context, void *arg) {
    tensor t[2] = {make_tensor(context, "f32", 100000, ODC_F32, ODC_F32),
                   make_tensor(context, "mixed", 70001, ODC_BF16, ODC_F16)};
    (void)arg;
    for (int rank = 0; rank < odc_size(context); ++rank) {
        odc_route route = route_to(context, rank);
        CHECK(strcmp(route.access, "direct") == 0);
        CHECK_SENTENCE(route.why, (rank ^ odc_rank(context)) % 2 == 0 ? "the same GPU" : "none on vectors", "cuda:");
    }
    for (uint64_t minibatch = 0; minibatch < 3; ++minibatch) {
        use_once(context, t, 2, 1 + minibatch);
    }
    CHECK_EQUAL(gpu_enqueued().lazy_loads, 0);
}

static void pairs_without_vector_reductions_add_element_by_element(void **state) {
    (void)state;
    setenv("FAKE_CUDA_P2P", "scalars", 1);
    run_ranks(3, by_scalars, NULL);
    setenv("FAKE_CUDA_P2P", "all", 1);
}

enum { MANY = 200 };

/* More descriptors than the kernel queues for a receiver that does not read them. */
static void many_shards(odc_context *context, void *arg) {
    char name[32];
    int many = slowdown() > 1 ? MANY / 4 : MANY;
    (void)arg;
    for (uint64_t minibatch = 1; minibatch < 3; ++minibatch) {
        static tensor t[MANY];
        for (int i = 0; i < many; ++i) {
            snprintf(name, sizeof name, "%d of %d", i, (int)minibatch);
            t[i] = make_tensor(context, name, 10, ODC_F32, ODC_F32);
        }
        if (odc_rank(context) != 0) { /* rank 0 has nothing to do and is the first in sync */
            sleep_ms(20);
        }
        for (int i = 0; i < many; ++i) {
            write_parameters(t[i], minibatch);
        }
        CHECK_OK(odc_publish_all(context, NULL));
        for (int i = 0; i < many && odc_rank(context) != 0; ++i) {
            check_gather(t[i], minibatch);
            add_gradients(t[i], minibatch);
        }
        CHECK_OK(odc_minibatch_sync(context));
        for (int i = 0; i < many; ++i) {
            check_sums(t[i], (uint64_t[]){minibatch, minibatch}, 2);
            CHECK_OK(odc_release_shard(t[i].shard));
        }
        gpu_collect();
    }
}

static void many_shards_are_registered_one_by_one(void **state) {
    (void)state;
    needs_processes("it takes half a minute under a race detector");
    setenv("FAKE_CUDA_MEMORY", "8589934592", 1); /* each takes a granule of 2 MiB */
    run_ranks(3, many_shards, NULL);
    setenv("FAKE_CUDA_P2P", "none", 1);
    run_ranks(3, many_shards, NULL);
    setenv("FAKE_CUDA_P2P", "all", 1);
    unsetenv("FAKE_CUDA_MEMORY");
}

int main(void) {
    if (!tests_gpu() || getenv("FAKE_CUDA_DEVICES") == NULL) {
        puts("skipped: it simulates GPUs, so it needs the driver for tests (ctest gives it)");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_that_are_lost_between_gpus_are_noticed),
        cmocka_unit_test(sums_are_added_beside_a_late_rank),
        cmocka_unit_test(wrong_reads_between_gpus_are_noticed),
        cmocka_unit_test(what_the_driver_denies_is_not_tried),
        cmocka_unit_test(routes_of_good_pairs_explain_their_access),
        cmocka_unit_test(pairs_without_vector_reductions_add_element_by_element),
        cmocka_unit_test(many_shards_are_registered_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
