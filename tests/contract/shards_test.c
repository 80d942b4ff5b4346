/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of shards: halves, types, slices, subsets, names, memory. One test for each sentence, named after it. */
#include "model.h"

#include <math.h>
#include <stdio.h>

static void in_any_order(odc_context *context, void *arg) {
    enum { COUNT = 9 };
    tensor tensors[COUNT];
    (void)arg;
    for (int i = 0; i < COUNT; ++i) {
        int which = (i * (odc_rank(context) == 1 ? 2 : 4) + 3 * odc_rank(context)) % COUNT;
        char name[32];
        snprintf(name, sizeof name, "layer.%d", which);
        tensors[which] = make_tensor(context, name, 100 + 37 * (uint64_t)which, ODC_F32, ODC_F32);
        memset(name, 'x', sizeof name); /* names are copied */
    }
    use_once(context, tensors, COUNT, 5);
    use_once(context, tensors, COUNT, 6);
}

static void shards_are_matched_by_name_in_any_order(void **state) {
    (void)state;
    run_ranks(3, in_any_order, NULL);
}

static void either_half(odc_context *context, void *arg) {
    (void)arg;
    tensor tensors[2] = {make_tensor(context, "frozen", 101, ODC_BF16, 0),
                         make_tensor(context, "sum", 53, 0, ODC_BF16)};
    odc_slice frozen = slice_of(tensors[0]);
    odc_slice sum = slice_of(tensors[1]);
    float full[101] = {0};
    CHECK(frozen.parameters != NULL && frozen.gradients == NULL);
    CHECK_EQUAL(frozen.parameter_type, ODC_BF16);
    CHECK_EQUAL(frozen.accumulator_type, 0);
    CHECK(sum.parameters == NULL && sum.gradients != NULL);
    CHECK_EQUAL(sum.parameter_type, 0);
    CHECK_EQUAL(sum.accumulator_type, ODC_F32);
    use_once(context, tensors, 2, 9);
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_ERROR(odc_scatter_add(tensors[0].shard, full, 101, NULL), ODC_ERROR_ARGUMENT, "frozen", "gradient");
    CHECK_ERROR(odc_gather(tensors[1].shard, full, 53, NULL), ODC_ERROR_ARGUMENT, "sum", "parameter");
    CHECK_OK(odc_minibatch_sync(context));
}

static void either_half_may_be_absent(void **state) {
    (void)state;
    run_ranks(2, either_half, NULL);
}

static int accumulator_of(int gradient_type) {
    return gradient_type == 0 ? 0 : gradient_type == ODC_F64 ? ODC_F64 : ODC_F32;
}

static void all_types(odc_context *context, void *arg) {
    enum { COUNT = 6 * 5 - 1 };
    odc_shard_desc descs[COUNT];
    odc_shard *shards[COUNT];
    tensor tensors[COUNT];
    char names[COUNT][32];
    (void)arg;
    for (int i = 0; i < COUNT; ++i) {
        int parameter_type = (i + 1) / 5;
        int gradient_type = (i + 1) % 5;
        snprintf(names[i], sizeof names[i], "p%d.g%d", parameter_type, gradient_type);
        descs[i] = describe(names[i], 1000 + (uint64_t)i, parameter_type, gradient_type);
    }
    CHECK_OK(odc_register_shards(context, descs, COUNT, shards));
    for (int i = 0; i < COUNT; ++i) {
        tensors[i] =
            (tensor){shards[i], descs[i].numel, descs[i].parameter_type, descs[i].gradient_type, descs[i].memory, 0};
        odc_slice slice = slice_of(tensors[i]);
        CHECK_EQUAL(slice.parameter_type, descs[i].parameter_type);
        CHECK_EQUAL(slice.accumulator_type, accumulator_of(descs[i].gradient_type));
    }
    use_once(context, tensors, COUNT, 77);
    use_once(context, tensors, COUNT, 78);
}

static void every_parameter_type_goes_with_every_gradient_type(void **state) {
    (void)state;
    run_ranks(3, all_types, NULL);
}

/* All 65,536 bit patterns, with infinities, NaNs and subnormals; added twice, so that each is added, not only stored. */
static void all_halves(odc_context *context, void *arg) {
    enum { COUNT = 65536 };
    int types[2] = {ODC_BF16, ODC_F16};
    uint16_t *full = new_full(COUNT, ODC_F16);
    (void)arg;
    for (int k = 0; k < 2; ++k) {
        tensor t = make_tensor(context, k == 0 ? "bf16" : "f16", COUNT, 0, types[k]);
        for (int i = 0; i < COUNT; ++i) {
            full[i] = (uint16_t)i;
        }
        for (int rounds = 1; rounds <= 2; ++rounds) {
            CHECK_OK(odc_publish_all(context, NULL));
            for (int i = 0; odc_rank(context) == 1 && i < rounds; ++i) {
                CHECK_OK(odc_scatter_add(t.shard, full, COUNT, NULL));
            }
            CHECK_OK(odc_minibatch_sync(context));
            odc_slice slice = slice_of(t);
            for (uint64_t i = 0; i < slice.numel; ++i) {
                float want = (float)get_element(types[k], full, slice.offset + i);
                float got = ((float *)slice.gradients)[i];
                CHECK(isnan(want) ? isnan(got) : got == (rounds == 1 ? want : want + want));
            }
        }
    }
    free(full);
}

static void every_bf16_and_f16_value_widens_exactly(void **state) {
    (void)state;
    run_ranks(2, all_halves, NULL);
}

static void chunks(odc_context *context, void *arg) {
    uint64_t size = (uint64_t)odc_size(context);
    uint64_t rank = (uint64_t)odc_rank(context);
    tensor tensors[40];
    (void)arg;
    for (uint64_t numel = 1; numel <= 40; ++numel) {
        char name[32];
        snprintf(name, sizeof name, "of %d", (int)numel);
        uint64_t chunk = (numel + size - 1) / size;
        uint64_t begin = rank * chunk < numel ? rank * chunk : numel;
        uint64_t end = begin + chunk < numel ? begin + chunk : numel;
        tensors[numel - 1] = make_tensor(context, name, numel, ODC_F64, ODC_F64);
        odc_slice slice = slice_of(tensors[numel - 1]);
        CHECK_EQUAL(slice.numel, end - begin);
        CHECK(slice.numel == 0 || slice.offset == begin);
    }
    use_once(context, tensors, 40, 3);
}

static void equal_slices_are_torch_chunks(void **state) {
    (void)state;
    for (int size = 1; size <= 5; ++size) {
        run_ranks(size, chunks, NULL);
    }
}

static void given_equal(odc_context *context, void *arg) {
    uint64_t slices[3] = {34, 34, 32};
    odc_shard_desc desc = describe("equal", 100, ODC_F32, ODC_F32);
    (void)arg;
    if (odc_rank(context) == 1) {
        desc.slices = slices;
    }
    tensor t = make_described(context, &desc);
    use_once(context, &t, 1, 4);
}

static void giving_equal_slices_is_the_same_as_giving_none(void **state) {
    (void)state;
    run_ranks(3, given_equal, NULL);
}

static void uneven(odc_context *context, void *arg) {
    uint64_t slices[2][4] = {{1000, 0, 1, 37}, {0, 7, 4099, 0}};
    uint64_t salts[4];
    tensor tensors[2];
    int rank = odc_rank(context);
    (void)arg;
    for (int i = 0; i < 2; ++i) {
        odc_shard_desc desc = describe(i == 0 ? "first" : "second", i == 0 ? 1038 : 4106, ODC_F32, ODC_BF16);
        int32_t ranks[4] = {0, 1, 2, 3};
        desc.slices = slices[i];
        if (i == 0) { /* NULL means the same */
            desc.ranks = ranks;
            desc.rank_count = 4;
        }
        tensors[i] = make_described(context, &desc);
        memset(ranks, 0xff, sizeof ranks); /* both lists are copied */
        CHECK_EQUAL(slice_of(tensors[i]).numel, slices[i][rank]);
    }
    memset(slices, 0xff, sizeof slices);
    for (int minibatch = 0; minibatch < 3; ++minibatch) {
        for (int i = 0; i < 2; ++i) {
            write_parameters(tensors[i], 50);
            if (slice_of(tensors[i]).numel > 0) { /* an empty slice is neither published nor waited for */
                CHECK_OK(odc_publish(tensors[i].shard, NULL));
            }
        }
        for (int i = 0; i < 2; ++i) {
            check_gather(tensors[i], 50);
            add_gradients(tensors[i], (uint64_t)rank);
        }
        CHECK_OK(odc_minibatch_sync(context));
        for (int i = 0; i < 4; ++i) {
            salts[i] = (uint64_t)i;
        }
        check_sums(tensors[0], salts, 4);
        check_sums(tensors[1], salts, 4);
    }
}

static void slices_may_be_uneven_and_empty(void **state) {
    (void)state;
    run_ranks(4, uneven, NULL);
}

static void subsets(odc_context *context, void *arg) {
    static const int32_t lists[4][3] = {{1, 3, -1}, {3, 0, 2}, {2, -1, -1}, {0, 1, 3}};
    int rank = odc_rank(context);
    (void)arg;
    for (uint64_t minibatch = 0; minibatch < 4; ++minibatch) {
        tensor tensors[4];
        uint64_t counts[4];
        int mine[4];
        for (int i = 0; i < 4; ++i) {
            char name[32]; /* released in this minibatch, used again in the next */
            snprintf(name, sizeof name, "subset.%d.%d", i, (int)(minibatch % 2));
            odc_shard_desc desc = describe(name, 333 + (uint64_t)i, ODC_F32, ODC_F32);
            desc.ranks = lists[i];
            desc.rank_count = i == 0 ? 2 : i == 2 ? 1 : 3;
            counts[i] = desc.rank_count;
            mine[i] = 0;
            for (uint64_t k = 0; k < desc.rank_count; ++k) {
                mine[i] |= lists[i][k] == rank;
            }
            if (mine[i]) {
                tensors[i] = make_described(context, &desc);
                write_parameters(tensors[i], minibatch);
            }
        }
        CHECK_OK(odc_publish_all(context, NULL));
        for (int i = 0; i < 4; ++i) {
            if (mine[i]) {
                check_gather(tensors[i], minibatch);
                add_gradients(tensors[i], (uint64_t)rank);
            }
        }
        CHECK_OK(odc_minibatch_sync(context));
        for (int i = 0; i < 4; ++i) {
            uint64_t salts[3];
            for (uint64_t k = 0; k < counts[i]; ++k) {
                salts[k] = (uint64_t)lists[i][k];
            }
            if (mine[i]) {
                check_sums(tensors[i], salts, counts[i]);
                CHECK_OK(odc_release_shard(tensors[i].shard));
            }
        }
    }
}

static void a_shard_may_belong_to_any_subset_of_the_ranks_in_any_order(void **state) {
    (void)state;
    run_ranks(4, subsets, NULL);
}

static void one_element(odc_context *context, void *arg) {
    (void)arg;
    tensor tensors[2] = {make_tensor(context, "bias", 1, ODC_F16, ODC_F64), make_tensor(context, "b", 1, ODC_BYTES, 0)};
    for (uint64_t minibatch = 0; minibatch < 20; ++minibatch) {
        use_once(context, tensors, 2, minibatch);
    }
}

static void a_shard_may_have_one_element(void **state) {
    (void)state;
    run_ranks(3, one_element, NULL);
    run_ranks(1, one_element, NULL);
}

static void no_element(odc_context *context, void *arg) {
    (void)arg;
    tensor tensors[2] = {make_tensor(context, "nothing", 0, ODC_F32, ODC_F32),
                         make_tensor(context, "something", 3, ODC_F32, ODC_F32)};
    use_once(context, tensors, 2, 1);
    use_once(context, tensors, 2, 2);
}

static void a_shard_may_have_no_element(void **state) {
    (void)state;
    run_ranks(2, no_element, NULL);
}

static void many(odc_context *context, void *arg) {
    enum { COUNT = 1000 };
    odc_shard_desc *descs = calloc(COUNT, sizeof *descs);
    odc_shard **shards = calloc(COUNT, sizeof *shards);
    char(*names)[32] = calloc(COUNT, sizeof *names);
    (void)arg;
    for (int i = 0; i < COUNT; ++i) {
        int which = odc_rank(context) == 0 ? i : COUNT - 1 - i;
        snprintf(names[i], sizeof names[i], "layer.%d", which);
        descs[i] = describe(names[i], 10 + (uint64_t)which % 7, ODC_BF16, ODC_BF16);
    }
    descs[COUNT - 1].numel = UINT64_MAX; /* all or none: the last one is invalid, so none is registered */
    CHECK(odc_register_shards(context, descs, COUNT, shards) != ODC_OK);
    descs[COUNT - 1].numel = 10 + (odc_rank(context) == 0 ? COUNT - 1 : 0) % 7;
    CHECK_OK(odc_register_shards(context, descs, COUNT, shards));
    for (uint64_t minibatch = 0; minibatch < 2; ++minibatch) {
        for (int i = 0; i < COUNT; ++i) {
            tensor t = {shards[i], descs[i].numel, ODC_BF16, ODC_BF16, ODC_HOST_MEMORY, 0};
            write_parameters(t, descs[i].numel + minibatch);
        }
        CHECK_OK(odc_publish_all(context, NULL));
        for (int i = 0; i < COUNT; ++i) {
            tensor t = {shards[i], descs[i].numel, ODC_BF16, ODC_BF16, ODC_HOST_MEMORY, 0};
            check_gather(t, descs[i].numel + minibatch);
            add_gradients(t, minibatch);
        }
        CHECK_OK(odc_minibatch_sync(context));
        for (int i = 0; i < COUNT; ++i) {
            tensor t = {shards[i], descs[i].numel, ODC_BF16, ODC_BF16, ODC_HOST_MEMORY, 0};
            check_sums(t, (uint64_t[]){minibatch, minibatch}, 2);
        }
    }
    free(descs);
    free(shards);
    free(names);
}

static void many_shards_are_registered_in_one_call_all_or_none(void **state) {
    (void)state;
    run_ranks(2, many, NULL);
}

static void late(odc_context *context, void *arg) {
    waiting_threads *waiting = arg;
    tensor early = make_tensor(context, "early", 10, ODC_F32, ODC_F32);
    for (uint64_t minibatch = 0; minibatch < 5; ++minibatch) {
        char name[32];
        snprintf(name, sizeof name, "late.%d", (int)minibatch);
        uint64_t operation = 0;
        if (odc_rank(context) == 1) { /* rank 0 has registered, published and begun to wait by then */
            await_waiters(waiting, (int)minibatch + 1);
        }
        tensor t = make_tensor(context, name, 99, ODC_F32, ODC_F32);
        float *full = new_full(99, ODC_F32);
        write_parameters(t, minibatch);
        write_parameters(early, minibatch);
        CHECK_OK(odc_publish_all(context, NULL));
        CHECK_OK(odc_gather_start(t.shard, full, 99, NULL, &operation));
        if (odc_rank(context) == 0) {
            add_waiter(waiting);
        }
        CHECK_OK(odc_wait(context, operation));
        check_full(t, full, minibatch);
        check_gather(early, minibatch);
        CHECK_OK(odc_minibatch_sync(context));
        free(full);
    }
}

static void registering_waits_for_nobody_and_is_possible_in_every_minibatch(void **state) {
    (void)state;
    run_ranks(2, late, share(sizeof(waiting_threads)));
}

static void memory_is_zero(odc_context *context, void *arg) {
    (void)arg;
    tensor t = make_tensor(context, "zeros", 10001, ODC_F32, ODC_F64);
    odc_slice slice = slice_of(t);
    for (uint64_t i = 0; i < slice.numel; ++i) {
        CHECK(((float *)slice.parameters)[i] == 0 && ((double *)slice.gradients)[i] == 0);
    }
    CHECK((uintptr_t)slice.parameters % 16 == 0 && (uintptr_t)slice.gradients % 16 == 0);
}

static void slices_begin_as_zeros_and_aligned(void **state) {
    (void)state;
    run_ranks(3, memory_is_zero, NULL);
}

static void stays_valid(odc_context *context, void *arg) {
    atomic_int *published = arg;
    tensor t = make_tensor(context, "checkpoint", 5000, ODC_F32, ODC_F32);
    odc_slice slice = slice_of(t);
    use_once(context, &t, 1, 21);
    CHECK_OK(odc_publish_all(context, NULL));
    raise_flag(published);
    if (odc_rank(context) == 0) {
        await_flag(published, 3); /* otherwise a slower rank gets the error in its publish */
        CHECK_OK(odc_abort(context, "stop here"));
    }
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_ABORTED, "stop here");
    odc_slice again = slice_of(t);
    CHECK(again.parameters == slice.parameters && again.gradients == slice.gradients);
    CHECK_OK(odc_shutdown(context));
    again = slice_of(t);
    CHECK(again.parameters == slice.parameters && again.gradients == slice.gradients);
    for (uint64_t i = 0; i < slice.numel; ++i) {
        CHECK(((float *)slice.parameters)[i] == small_value(21, slice.offset + i));
    }
    check_sums(t, (uint64_t[]){121, 221, 321}, 3);
}

static void slices_stay_valid_until_destroy_even_after_an_error(void **state) {
    (void)state;
    run_ranks(3, stays_valid, share(sizeof(atomic_int)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_are_matched_by_name_in_any_order),
        cmocka_unit_test(either_half_may_be_absent),
        cmocka_unit_test(every_parameter_type_goes_with_every_gradient_type),
        cmocka_unit_test(every_bf16_and_f16_value_widens_exactly),
        cmocka_unit_test(equal_slices_are_torch_chunks),
        cmocka_unit_test(giving_equal_slices_is_the_same_as_giving_none),
        cmocka_unit_test(slices_may_be_uneven_and_empty),
        cmocka_unit_test(a_shard_may_belong_to_any_subset_of_the_ranks_in_any_order),
        cmocka_unit_test(a_shard_may_have_one_element),
        cmocka_unit_test(a_shard_may_have_no_element),
        cmocka_unit_test(many_shards_are_registered_in_one_call_all_or_none),
        cmocka_unit_test(registering_waits_for_nobody_and_is_possible_in_every_minibatch),
        cmocka_unit_test(slices_begin_as_zeros_and_aligned),
        cmocka_unit_test(slices_stay_valid_until_destroy_even_after_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
