/* SPDX-License-Identifier: Apache-2.0 */
/* Calls in the wrong phase: each fails at once and changes nothing. Ranks that disagree. */
#include "model.h"

#include <stdio.h>

static tensor plain(odc_context *context, const char *name) {
    return make_tensor(context, name, 100, ODC_F32, ODC_F32);
}

/* ---- One rank, at the wrong moment ---- */

static void wrong_moments(odc_context *context, void *arg) {
    (void)arg;
    float full[100] = {0};
    uint64_t operation = 0;
    double value = 1;
    tensor early = plain(context, "early");
    tensor late = plain(context, "late");
    for (uint64_t minibatch = 0; minibatch < 3; ++minibatch) {
        write_parameters(early, minibatch);
        write_parameters(late, minibatch);
        CHECK_ERROR(odc_gather(early.shard, full, 100, NULL), ODC_ERROR_PHASE, "publish", "early");
        CHECK_ERROR(odc_scatter_add(early.shard, full, 100, NULL), ODC_ERROR_PHASE, "publish", "early");
        CHECK_ERROR(odc_gather_start(early.shard, full, 100, NULL, &operation), ODC_ERROR_PHASE, "publish", "early");
        CHECK_ERROR(odc_scatter_add_start(early.shard, full, 100, NULL, &operation), ODC_ERROR_PHASE, "publish",
                    "early");
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PHASE, "publish", "early|late");
        CHECK_OK(odc_publish(early.shard, NULL));
        CHECK_ERROR(odc_publish(early.shard, NULL), ODC_ERROR_PHASE, "early", "already");
        CHECK_ERROR(odc_release_shard(early.shard), ODC_ERROR_PHASE, "early", "published");
        CHECK_ERROR(odc_all_reduce(context, &value, 1, ODC_SUM), ODC_ERROR_PHASE, "odc_publish");
        CHECK_ERROR(odc_gather(late.shard, full, 100, NULL), ODC_ERROR_PHASE, "publish", "late");
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PHASE, "publish", "late");
        CHECK_ERROR(odc_minibatch_sync_reduce(context, &value, 1, ODC_SUM), ODC_ERROR_PHASE, "publish", "late");
        CHECK_EQUAL(odc_minibatch(context), minibatch);
        CHECK_OK(odc_publish_all(context, NULL));
        check_gather(early, minibatch);
        check_gather(late, minibatch);
        add_gradients(late, 3);
        CHECK_OK(odc_minibatch_sync(context));
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PHASE, "publish", "early|late"); /* sync twice */
        check_sums(early, NULL, 0);
        check_sums(late, (uint64_t[]){3, 3}, 2);
        CHECK(value == 1);
    }
}

static void the_right_call_at_the_wrong_moment_is_refused_and_changes_nothing(void **state) {
    (void)state;
    run_ranks(2, wrong_moments, NULL);
}

static void wrong_buffers(odc_context *context, void *arg) {
    (void)arg;
    float full[200] = {0};
    uint64_t operation = 0;
    int stream = 0;
    tensor t = plain(context, "layer");
    CHECK_OK(odc_publish(t.shard, NULL));
    static const uint64_t counts[4] = {0, 99, 101, UINT64_MAX};
    for (int i = 0; i < 4; ++i) {
        CHECK_ERROR(odc_gather(t.shard, full, counts[i], NULL), ODC_ERROR_ARGUMENT, "layer", "100");
        CHECK_ERROR(odc_scatter_add(t.shard, full, counts[i], NULL), ODC_ERROR_ARGUMENT, "layer", "100");
        CHECK_ERROR(odc_gather_start(t.shard, full, counts[i], NULL, &operation), ODC_ERROR_ARGUMENT, "layer", "100");
        CHECK_ERROR(odc_scatter_add_start(t.shard, full, counts[i], NULL, &operation), ODC_ERROR_ARGUMENT, "layer",
                    "100");
    }
    CHECK_ERROR(odc_gather(t.shard, full, 100, &stream), ODC_ERROR_UNSUPPORTED, "stream", "NULL");
    CHECK_ERROR(odc_scatter_add(t.shard, full, 100, &stream), ODC_ERROR_UNSUPPORTED, "stream", "NULL");
    CHECK_ERROR(odc_publish_all(context, &stream), ODC_ERROR_UNSUPPORTED, "stream", "no GPU", "NULL");
    for (int i = 0; i < 200; ++i) {
        CHECK(full[i] == 0);
    }
    CHECK_OK(odc_minibatch_sync(context));
    check_sums(t, NULL, 0);
}

static void a_wrong_element_count_or_a_stream_is_refused(void **state) {
    (void)state;
    run_ranks(2, wrong_buffers, NULL);
}

static void wrong_reductions(odc_context *context, void *arg) {
    (void)arg;
    double values[65] = {0};
    CHECK_ERROR(odc_all_reduce(context, values, 65, ODC_SUM), ODC_ERROR_ARGUMENT, "65", "64");
    CHECK_ERROR(odc_all_reduce(context, values, SIZE_MAX, ODC_SUM), ODC_ERROR_ARGUMENT, "64");
    CHECK_ERROR(odc_all_reduce(context, values, 1, (odc_reduction)0), ODC_ERROR_ARGUMENT, "odc_reduction");
    CHECK_ERROR(odc_all_reduce(context, values, 1, (odc_reduction)3), ODC_ERROR_ARGUMENT, "odc_reduction");
    CHECK_ERROR(odc_minibatch_sync_reduce(context, values, 65, ODC_SUM), ODC_ERROR_ARGUMENT, "65", "64");
    CHECK_ERROR(odc_minibatch_sync_reduce(context, values, 1, (odc_reduction)7), ODC_ERROR_ARGUMENT, "odc_reduction");
    values[0] = 1;
    CHECK_OK(odc_all_reduce(context, values, 64, ODC_SUM));
    CHECK(values[0] == 2 && values[63] == 0);
    CHECK_OK(odc_minibatch_sync(context));
}

static void a_wrong_reduction_is_refused(void **state) {
    (void)state;
    run_ranks(2, wrong_reductions, NULL);
}

static void released(odc_context *context, void *arg) {
    (void)arg;
    float full[100] = {0};
    uint64_t operation = 0;
    odc_slice slice = {.struct_size = sizeof slice};
    tensor kept = plain(context, "kept");
    tensor t = plain(context, "layer");
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_OK(odc_release_shard(t.shard));
    CHECK_ERROR(odc_release_shard(t.shard), ODC_ERROR_PHASE, "layer", "released");
    CHECK_ERROR(odc_publish(t.shard, NULL), ODC_ERROR_PHASE, "layer", "released");
    CHECK_ERROR(odc_gather(t.shard, full, 100, NULL), ODC_ERROR_PHASE, "layer", "released");
    CHECK_ERROR(odc_scatter_add(t.shard, full, 100, NULL), ODC_ERROR_PHASE, "layer", "released");
    CHECK_ERROR(odc_gather_start(t.shard, full, 100, NULL, &operation), ODC_ERROR_PHASE, "layer", "released");
    CHECK_ERROR(odc_scatter_add_start(t.shard, full, 100, NULL, &operation), ODC_ERROR_PHASE, "layer", "released");
    CHECK_ERROR(odc_get_slice(t.shard, &slice), ODC_ERROR_PHASE, "layer", "released");
    odc_shard_desc desc = describe("layer", 7, ODC_F32, 0);
    odc_shard *again = NULL; /* allowed in a later minibatch, not in this one */
    CHECK_ERROR(odc_register_shard(context, &desc, &again), ODC_ERROR_PHASE, "layer", "released");
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    tensor next = make_described(context, &desc);
    CHECK(next.shard != t.shard);
    CHECK_ERROR(odc_publish(t.shard, NULL), ODC_ERROR_PHASE, "layer", "released");
    write_parameters(next, 8);
    CHECK_OK(odc_publish_all(context, NULL));
    check_gather(next, 8);
    CHECK_OK(odc_minibatch_sync(context));
    check_sums(kept, NULL, 0);
}

static void released_too_early(odc_context *context, void *arg) {
    uint64_t slices[2] = {0, 100};
    float full[100] = {0};
    uint64_t operation = 0;
    odc_shard_desc desc = describe("theirs", 100, ODC_F32, ODC_F32);
    (void)arg;
    desc.slices = slices;
    tensor t = make_described(context, &desc);
    if (odc_rank(context) == 0) { /* it owns none of the shard, so it publishes nothing first */
        CHECK_OK(odc_gather_start(t.shard, full, 100, NULL, &operation));
        CHECK_ERROR(odc_release_shard(t.shard), ODC_ERROR_PHASE, "theirs", "wait");
    } else {
        write_parameters(t, 3);
        CHECK_OK(odc_publish(t.shard, NULL));
    }
    if (operation != 0) {
        CHECK_OK(odc_wait(context, operation));
    }
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_OK(odc_release_shard(t.shard));
}

static void a_shard_with_a_started_operation_is_not_released(void **state) {
    (void)state;
    run_ranks(2, released_too_early, NULL);
}

static void a_released_shard_cannot_be_used(void **state) {
    (void)state;
    run_ranks(2, released, NULL);
}

static void after_shutdown(odc_context *context, void *arg) {
    (void)arg;
    float full[100] = {0};
    double value = 1;
    uint64_t operation = 0;
    odc_shard_desc desc = describe("another", 10, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    odc_stats stats = {.struct_size = sizeof stats};
    tensor t = plain(context, "layer");
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_gather_start(t.shard, full, 100, NULL, &operation));
    CHECK_OK(odc_shutdown(context));
    CHECK_ERROR(odc_shutdown(context), ODC_ERROR_PHASE, "left");
    CHECK_ERROR(odc_abort(context, "x"), ODC_ERROR_PHASE, "left");
    CHECK_ERROR(odc_wait(context, operation), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_release_shard(t.shard), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_publish(t.shard, NULL), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_publish_all(context, NULL), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_gather(t.shard, full, 100, NULL), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_scatter_add(t.shard, full, 100, NULL), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_gather_start(t.shard, full, 100, NULL, &operation), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_scatter_add_start(t.shard, full, 100, NULL, &operation), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_wait(context, 1), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_minibatch_sync_reduce(context, &value, 1, ODC_SUM), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_all_reduce(context, &value, 1, ODC_SUM), ODC_ERROR_PHASE, "odc_shutdown");
    check_sums(t, NULL, 0); /* slices and statistics are unchanged */
    CHECK_OK(odc_get_stats(context, &stats));
    CHECK_EQUAL(stats.syncs, 1);
    CHECK_EQUAL(odc_minibatch(context), 1);
}

static void after_shutdown_every_call_is_refused_but_slices_stay(void **state) {
    (void)state;
    run_ranks(2, after_shutdown, NULL);
}

/* ---- Ranks that disagree ---- */

typedef struct disagreement {
    odc_shard_desc descs[2]; /* of ranks 0 and 2, and of rank 1 */
    const char *word;
    int in_sync; /* nobody gathers first */
    atomic_int failed;
} disagreement;

static void disagree(odc_context *context, void *arg) {
    disagreement *what = arg;
    float full[128] = {0};
    tensor t = make_described(context, &what->descs[odc_rank(context) == 1]);
    odc_status status = odc_publish_all(context, NULL);
    if (status == ODC_OK && !what->in_sync && t.parameter_type == ODC_F32) {
        status = odc_gather(t.shard, full, t.numel, NULL);
    }
    if (status == ODC_OK) {
        status = odc_minibatch_sync(context);
    }
    if (status == ODC_OK) { /* a rank that was done before the others noticed gets the error in the next minibatch */
        status = odc_publish_all(context, NULL);
    }
    if (status == ODC_OK) {
        status = odc_minibatch_sync(context);
    }
    CHECK_EQUAL(status, ODC_ERROR_MISMATCH);
    CHECK_SENTENCE(odc_last_error(), "layer", "rank 1", "rank 0|rank 2", what->word);
    raise_flag(&what->failed);
    await_flag(&what->failed, odc_size(context));
}

static void ranks_that_describe_a_shard_differently_are_both_named(void **state) {
    static const uint64_t slices[2][3] = {{10, 80, 10}, {80, 10, 10}};
    static const int32_t ranks[2][3] = {{0, 1, 2}, {2, 1, 0}};
    const odc_shard_desc good = describe("layer", 100, ODC_F32, ODC_F32);
    (void)state;
    for (int kind = 0; kind < 12; ++kind) {
        disagreement *what = share(sizeof *what);
        what->descs[0] = what->descs[1] = good;
        what->in_sync = kind >= 6;
        switch (kind % 6) {
            case 0:
                what->descs[1].numel = 101;
                what->word = "101";
                break;
            case 1:
                what->descs[1].parameter_type = ODC_BF16;
                what->word = "bf16";
                break;
            case 2:
                what->descs[1].gradient_type = 0;
                what->word = "gradient";
                break;
            case 3:
                what->descs[0].slices = slices[0];
                what->descs[1].slices = slices[1];
                what->word = "slices";
                break;
            case 4: /* rank 1 lists neither of the others */
                what->descs[1].ranks = &ranks[0][1];
                what->descs[1].rank_count = 1;
                what->word = "says ranks all, rank 1 says 1";
                break;
            default:
                what->descs[0].ranks = ranks[0];
                what->descs[1].ranks = ranks[1];
                what->descs[0].rank_count = what->descs[1].rank_count = 3;
                what->word = "ranks";
                break;
        }
        run_ranks(3, disagree, what);
    }
}

typedef struct lateness {
    int waits; /* rank 0 gathers before its sync */
    atomic_int failed;
} lateness;

/* Rank 1 registers "layer" a minibatch after rank 0; seen from rank 1, rank 0 did so a minibatch earlier. */
static void register_late(odc_context *context, void *arg) {
    lateness *what = arg;
    float full[100];
    odc_status status = ODC_OK;
    tensor common = plain(context, "common");
    tensor t = {0};
    for (int minibatch = 0; minibatch < 3 && status == ODC_OK; ++minibatch) {
        if (minibatch == odc_rank(context)) {
            t = plain(context, "layer");
        }
        status = odc_publish_all(context, NULL); /* the other rank may have seen it first */
        if (status == ODC_OK) {
            status = odc_gather(common.shard, full, 100, NULL);
        }
        if (status == ODC_OK && t.shard != NULL && what->waits) {
            status = odc_gather(t.shard, full, 100, NULL);
        }
        if (status == ODC_OK) {
            status = odc_minibatch_sync(context);
        }
    }
    CHECK_EQUAL(status, ODC_ERROR_MISMATCH);
    CHECK_SENTENCE(odc_last_error(), "layer", "rank 0", "rank 1", "minibatch 0");
    raise_flag(&what->failed);
    await_flag(&what->failed, 2);
}

static void ranks_that_register_a_shard_in_different_minibatches_are_both_named(void **state) {
    (void)state;
    for (int waits = 0; waits < 2; ++waits) {
        lateness *what = share(sizeof *what);
        what->waits = waits;
        run_ranks(2, register_late, what);
    }
}

typedef struct quarrel {
    size_t counts[2]; /* of rank 1, and of the others; 0: does not call */
    odc_reduction ops[2];
    int rides;
    atomic_int failed;
} quarrel;

static void reduce_differently(odc_context *context, void *arg) {
    quarrel *what = arg;
    double values[64] = {0};
    int which = odc_rank(context) != 1;
    size_t count = what->counts[which];
    odc_status status = ODC_OK;
    tensor t = plain(context, "layer");
    if (!what->rides && count > 0) {
        status = odc_all_reduce(context, values, count, what->ops[which]);
    }
    for (int i = 0; i < 2 && status == ODC_OK; ++i) {
        CHECK_OK(odc_publish(t.shard, NULL));
        status = what->rides && count > 0 ? odc_minibatch_sync_reduce(context, values, count, what->ops[which])
                                          : odc_minibatch_sync(context);
    }
    CHECK_EQUAL(status, ODC_ERROR_MISMATCH);
    CHECK_SENTENCE(odc_last_error(), "rank 1", "rank 0|rank 2", "reduce");
    raise_flag(&what->failed);
    await_flag(&what->failed, odc_size(context));
}

static void publish_nothing(odc_context *context, void *arg) {
    double value = 1;
    waiting_threads *waiting = arg;
    if (odc_rank(context) == 1) {
        CHECK_OK(odc_publish_all(context, NULL));
        await_waiters(waiting, 1);
    } else {
        add_waiter(waiting);
    }
    CHECK_OK(odc_all_reduce(context, &value, 1, ODC_SUM));
    CHECK(value == 2);
}

static void a_rank_without_shards_may_publish_and_then_reduce(void **state) {
    (void)state;
    run_ranks(2, publish_nothing, share(sizeof(waiting_threads)));
}

static void ranks_that_reduce_differently_are_both_named(void **state) {
    static const quarrel quarrels[6] = {{{3, 4}, {ODC_SUM, ODC_SUM}, 0, 0}, {{3, 3}, {ODC_SUM, ODC_MAX}, 0, 0},
                                        {{0, 3}, {ODC_SUM, ODC_SUM}, 0, 0}, /* one skips it */
                                        {{3, 4}, {ODC_SUM, ODC_SUM}, 1, 0}, {{3, 3}, {ODC_MAX, ODC_SUM}, 1, 0},
                                        {{0, 3}, {ODC_SUM, ODC_SUM}, 1, 0}};
    (void)state;
    for (int i = 0; i < 6; ++i) {
        quarrel *what = share(sizeof *what);
        memcpy(what, &quarrels[i], sizeof *what);
        run_ranks(3, reduce_differently, what);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_right_call_at_the_wrong_moment_is_refused_and_changes_nothing),
        cmocka_unit_test(a_wrong_element_count_or_a_stream_is_refused),
        cmocka_unit_test(a_wrong_reduction_is_refused),
        cmocka_unit_test(a_shard_with_a_started_operation_is_not_released),
        cmocka_unit_test(a_released_shard_cannot_be_used),
        cmocka_unit_test(after_shutdown_every_call_is_refused_but_slices_stay),
        cmocka_unit_test(ranks_that_describe_a_shard_differently_are_both_named),
        cmocka_unit_test(ranks_that_register_a_shard_in_different_minibatches_are_both_named),
        cmocka_unit_test(a_rank_without_shards_may_publish_and_then_reduce),
        cmocka_unit_test(ranks_that_reduce_differently_are_both_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
