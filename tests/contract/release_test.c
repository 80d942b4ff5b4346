/* SPDX-License-Identifier: Apache-2.0 */
/* Releasing shards: released memory is used again, and no rank takes a new shard for a released one. */
#include "model.h"

#include <stdio.h>

static void release(odc_context *context, void *arg) {
    (void)arg;
    odc_stats stats = {.struct_size = sizeof stats};
    tensor kept = make_tensor(context, "kept", 64, ODC_F32, ODC_F32);
    CHECK_OK(odc_get_stats(context, &stats));
    uint64_t bytes = stats.slice_bytes;
    for (uint64_t minibatch = 0; minibatch < 30; ++minibatch) {
        /* The same name with another size and other types each time. */
        int type = minibatch % 2 == 0 ? ODC_F32 : ODC_BF16;
        tensor tensors[2] = {make_tensor(context, "reused", 1000 + 500 * minibatch, type, type), kept};
        use_once(context, tensors, 2, minibatch);
        CHECK_OK(odc_release_shard(tensors[0].shard));
        CHECK_OK(odc_get_stats(context, &stats));
        CHECK_EQUAL(stats.slice_bytes, bytes);
        use_once(context, &kept, 1, minibatch);
    }
}

static void release_gives_memory_back_and_a_name_may_be_used_in_a_later_minibatch(void **state) {
    (void)state;
    run_ranks(3, release, NULL);
}

/* The memory's previous contents. */
static void zeros_again(odc_context *context, void *arg) {
    enum { COUNT = 12 };
    uint64_t random = *(uint64_t *)arg; /* the same on every rank */
    tensor tensors[COUNT];
    int used[COUNT] = {0};
    tensor kept = make_tensor(context, "kept", 100, ODC_F32, ODC_F32);
    for (uint64_t minibatch = 0; minibatch < 60; ++minibatch) {
        for (int i = 0; i < COUNT; ++i) {
            if (used[i] && random_below(&random, 3) == 0) {
                CHECK_OK(odc_release_shard(tensors[i].shard));
                used[i] = 0;
            } else if (!used[i] && random_below(&random, 2) == 0) {
                uint64_t scale = random_below(&random, 3);
                uint64_t numel = 1 + random_below(&random, scale == 0 ? 40 : scale == 1 ? 4000 : 400000);
                char name[32];
                snprintf(name, sizeof name, "%d of %d", i, (int)minibatch);
                tensors[i] = make_tensor(context, name, numel, ODC_F32, ODC_F64);
                odc_slice slice = slice_of(tensors[i]);
                for (uint64_t k = 0; k < slice.numel; ++k) {
                    CHECK(((float *)slice.parameters)[k] == 0 && ((double *)slice.gradients)[k] == 0);
                }
                if (slice.numel > 0) {
                    memset(slice.parameters, 0x5a, slice.numel * sizeof(float));
                    memset(slice.gradients, 0xa5, slice.numel * sizeof(double));
                }
                used[i] = 1;
            }
        }
        use_once(context, &kept, 1, minibatch);
    }
}

static void memory_that_is_used_again_begins_as_zeros(void **state) {
    (void)state;
    uint64_t *seed = share(sizeof *seed);
    *seed = test_seed();
    run_ranks(2, zeros_again, seed);
}

/* Rank 0 keeps a shard of which it owns nothing; rank 1 releases it and registers others in its place. */
static void outlives(odc_context *context, void *arg) {
    uint64_t slices[2] = {0, 100};
    float full[100];
    odc_shard_desc desc = describe("old", 100, ODC_F32, ODC_F32);
    (void)arg;
    desc.slices = slices;
    tensor old = make_described(context, &desc);
    for (int minibatch = 0; minibatch < 10; ++minibatch) {
        char name[8];
        snprintf(name, sizeof name, "n.%d", minibatch); /* of equal length, so the record has the same size */
        odc_shard_desc next = desc;
        next.name = name;
        tensor t = make_described(context, &next);
        write_parameters(t, 7);
        if (minibatch == 0) {
            write_parameters(old, 8);
        }
        CHECK_OK(odc_publish_all(context, NULL));
        check_gather(t, 7);
        if (minibatch == 0) {
            check_gather(old, 8);
        }
        CHECK_OK(odc_minibatch_sync(context));
        if (minibatch < 4) { /* the later ones stay in the places of the earlier ones */
            CHECK_OK(odc_release_shard(t.shard));
        }
        if (minibatch == 0 && odc_rank(context) == 1) {
            CHECK_OK(odc_release_shard(old.shard));
        }
    }
    desc.name = "las";
    make_described(context, &desc);
    CHECK_OK(odc_publish_all(context, NULL));
    if (odc_rank(context) == 0) {
        CHECK_ERROR(odc_gather(old.shard, full, 100, NULL), ODC_ERROR_MISMATCH, "rank 1", "rank 0", "old", "released");
    } else {
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_MISMATCH, "rank 1", "rank 0", "old", "released");
    }
}

static void who_keeps_a_shard_that_its_owner_released_reads_so_for_ever(void **state) {
    (void)state;
    run_ranks(2, outlives, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_gives_memory_back_and_a_name_may_be_used_in_a_later_minibatch),
        cmocka_unit_test(memory_that_is_used_again_begins_as_zeros),
        cmocka_unit_test(who_keeps_a_shard_that_its_owner_released_reads_so_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
