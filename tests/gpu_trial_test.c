/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of GPUs of which the driver promises more than they keep: odc_init finds out, and no sum is ever wrong. */
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

/* Ranks 0 and 2 are on cuda:0, rank 1 is on cuda:1. */
static void refused(odc_context *context, void *arg) {
    const char *const *words = arg;
    odc_shard_desc desc = describe("layer", 100, ODC_F32, ODC_F32);
    static const int32_t near[2] = {0, 2};
    odc_shard *shard = NULL;
    int far = odc_rank(context) == 1 ? 0 : 1;
    odc_route route = route_to(context, far);
    CHECK(route.transport == NULL && strcmp(route.access, "none") == 0);
    CHECK_SENTENCE(route.why, words[0], words[1]);
    CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_UNSUPPORTED, "layer", "no path");
    if (odc_rank(context) != 1) {
        route = route_to(context, 2 - odc_rank(context));
        CHECK(strcmp(route.transport, "cuda") == 0 && strcmp(route.access, "direct") == 0);
        CHECK_SENTENCE(route.why, "the same GPU");
        desc.ranks = near;
        desc.rank_count = 2;
        tensor t = make_described(context, &desc);
        write_parameters(t, 1);
        CHECK_OK(odc_publish(t.shard, NULL));
        check_gather(t, 1);
        add_gradients(t, 2);
        CHECK_OK(odc_minibatch_sync(context));
        check_sums(t, (uint64_t[]){2, 2}, 2);
        gpu_collect();
    } else {
        CHECK_OK(odc_minibatch_sync(context));
    }
}

static void try_with(const char *test, const char *p2p, const char *first, const char *second) {
    const char *words[2] = {first, second};
    setenv("FAKE_CUDA_P2P", p2p, 1);
    run_ranks_of(test, 3, refused, words);
    setenv("FAKE_CUDA_P2P", "all", 1);
}

static void sums_that_are_lost_between_gpus_are_noticed(void **state) {
    (void)state;
    try_with(__func__, "lossy", "added to at the same time|that rank cannot use", "not whole|its own route says why");
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
        CHECK_SENTENCE(route.why, (rank ^ odc_rank(context)) % 2 == 0 ? "the same GPU" : "with native atomics", "cuda:");
    }
}

static void good_pairs_say_how_they_are_reached(void **state) {
    (void)state;
    run_ranks(3, good_route, NULL);
}

int main(void) {
    if (!tests_gpu() || getenv("FAKE_CUDA_DEVICES") == NULL) {
        puts("skipped: it pretends GPUs, so it needs the driver for tests (ctest gives it)");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_that_are_lost_between_gpus_are_noticed),
        cmocka_unit_test(wrong_reads_between_gpus_are_noticed),
        cmocka_unit_test(what_the_driver_denies_is_not_tried),
        cmocka_unit_test(good_pairs_say_how_they_are_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
