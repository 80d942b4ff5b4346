/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums: their bits are those of a model in integers, and do not depend on order, ranks, hosts or slices. */
#include "exact_model.h"

#include "gpu.h"

#include <math.h>
#include <stdio.h>

enum { NUMEL = 30011, ADDITIONS = 13, MINIBATCHES = 8, MOST_RANKS = 8 };

static odc_stats stats_of(odc_context *context) {
    odc_stats stats = {.struct_size = sizeof stats};
    CHECK_OK(odc_get_stats(context, &stats));
    return stats;
}

/* ---- Any order and any ranks ---- */

typedef struct division {
    int gradient_type;
    int uneven; /* slices */
    int first;  /* minibatch */
    float largest;
    /* Written by the ranks: */
    float sums[MINIBATCHES][NUMEL];
    float largest_after[MINIBATCHES];
} division;

/* What is added in a minibatch is the same in all jobs; which rank adds it when is not. */
static uint64_t salt_of(int minibatch, int addition) { return (uint64_t)(1 + minibatch * 100 + addition); }

static void add_own(odc_context *context, tensor t, int minibatch, uint64_t *random) {
    uint64_t salts[ADDITIONS];
    uint64_t operations[ADDITIONS];
    void *buffers[ADDITIONS];
    size_t count = 0;
    for (int k = 0; k < ADDITIONS; ++k) {
        if ((k * 7 + minibatch) % odc_size(context) == odc_rank(context)) {
            salts[count++] = salt_of(minibatch, k);
        }
    }
    for (size_t left = count; left > 0; --left) { /* in an order of its own */
        size_t drawn = random_below(random, left);
        buffers[left - 1] = new_buffer(t, t.gradient_type);
        write_gradients(t, buffers[left - 1], salts[drawn]);
        salts[drawn] = salts[left - 1];
        if (random_below(random, 3) == 0) {
            sleep_us((int)random_below(random, 500));
        }
        CHECK_OK(odc_scatter_add_start(t.shard, buffers[left - 1], t.numel, some_stream(t), &operations[left - 1]));
    }
    for (size_t k = 0; k < count; ++k) {
        CHECK_OK(odc_wait(context, operations[k]));
        free_buffer(t, buffers[k]);
    }
}

/* Frees memory that streams may have used. */
static void collect(void) {
    if (tests_gpu()) {
        gpu_collect();
    }
}

static void divide(odc_context *context, void *arg) {
    division *d = arg;
    uint64_t random = test_seed() + (uint64_t)odc_rank(context);
    uint64_t slices[MOST_RANKS];
    int size = odc_size(context);
    odc_shard_desc desc = describe_exact("layer", NUMEL, ODC_F32, d->gradient_type);
    desc.largest = d->largest;
    uint64_t given = 0;
    for (int rank = 1; rank < size; ++rank) { /* the second is empty */
        slices[rank] = rank == 1 ? 0 : 100 * (uint64_t)rank;
        given += slices[rank];
    }
    slices[0] = NUMEL - given;
    desc.slices = d->uneven ? slices : NULL;
    tensor t = make_described(context, &desc);
    for (int m = d->first; m < MINIBATCHES; ++m) {
        CHECK_OK(odc_publish_all(context, NULL));
        if (m != 5) { /* in which nobody adds */
            add_own(context, t, m, &random);
        }
        CHECK_OK(odc_minibatch_sync(context));
        odc_slice slice = slice_of(t);
        double largest = (double)slice.largest;
        CHECK_OK(odc_all_reduce(context, &largest, 1, ODC_MAX));
        if (odc_rank(context) == 0) {
            d->largest_after[m] = (float)largest;
        }
        float *sums = new_sums(t);
        if (slice.numel > 0) {
            memcpy(&d->sums[m][slice.offset], sums, slice.numel * sizeof(float));
        }
        free(sums);
        collect();
    }
}

static void check_division(const division *d, const division *like) {
    for (int m = d->first; m < MINIBATCHES; ++m) {
        CHECK(d->largest_after[m] == like->largest_after[m]);
        for (int i = 0; i < NUMEL; ++i) {
            CHECK(same_bits(d->sums[m][i], like->sums[m][i]));
        }
    }
}

static void compute(division *d) {
    odc_shard_desc desc = describe_exact("layer", NUMEL, ODC_F32, d->gradient_type);
    exact_model *m = new_exact_model(&desc);
    for (int minibatch = 0; minibatch < MINIBATCHES; ++minibatch) {
        uint64_t salts[ADDITIONS];
        for (int k = 0; k < ADDITIONS; ++k) {
            salts[k] = salt_of(minibatch, k);
        }
        add_exactly(m, salts, minibatch != 5 ? ADDITIONS : 0);
        memcpy(d->sums[minibatch], m->sums, sizeof d->sums[minibatch]);
        d->largest_after[minibatch] = (minibatch != 5 ? 1.0F : -1.0F) * ldexpf(1, m->exponent);
    }
    free_exact_model(m);
}

static void sums_are_those_of_the_model_in_any_order_and_on_any_ranks(void **state) {
    (void)state;
    static const int types[] = {ODC_F32, ODC_BF16, ODC_F16};
    static const int sizes[] = {1, 2, 3, 4, 8};
    division *model = share(sizeof *model);
    division *d = share(sizeof *d);
    for (int i = 0; i < 3; ++i) {
        model->gradient_type = types[i];
        compute(model);
        for (int k = 0; k < 5; ++k) {
            if (slowdown() > 1 && (sizes[k] == 8 ? i > 0 : (i + k) % 3 != 0)) {
                continue; /* each type on a size, and each size with a type */
            }
            memset(d, 0, sizeof *d);
            d->gradient_type = types[i];
            d->uneven = (i + k) % 2;
            run_ranks(sizes[k], divide, d);
            check_division(d, model);
        }
    }
}

/* As after a checkpoint: the other job is told what the first one's shard asked for. */
static void another_job_goes_on_with_the_same_bits(void **state) {
    (void)state;
    division *model = share(sizeof *model);
    division *d = share(sizeof *d);
    model->gradient_type = ODC_F32;
    compute(model);
    for (int first = 1; first < MINIBATCHES; first += first == 1 ? 2 : 3) { /* 6: after one in which nobody added */
        memset(d, 0, sizeof *d);
        d->gradient_type = ODC_F32;
        d->first = first;
        d->largest = model->largest_after[first - 1];
        run_ranks(first == 3 ? 2 : 3, divide, d);
        check_division(d, model);
    }
}

/* ---- Values ---- */

static void halves(odc_context *context, void *arg) {
    enum { COUNT = 65536 };
    static const int types[2] = {ODC_BF16, ODC_F16};
    uint16_t *full = new_full(COUNT, ODC_F16);
    (void)arg;
    for (int i = 0; i < COUNT; ++i) {
        full[i] = (uint16_t)i;
    }
    for (int k = 0; k < 2; ++k) {
        const void *twice[2] = {full, full};
        odc_shard_desc desc = describe_exact(k == 0 ? "bf16" : "f16", COUNT, 0, types[k]);
        tensor t = make_described(context, &desc);
        exact_model *m = new_exact_model(&desc);
        for (size_t rounds = 0; rounds <= 2; ++rounds) { /* the last ones with another exponent */
            CHECK_OK(odc_publish_all(context, NULL));
            for (size_t i = 0; i < rounds; ++i) {
                if ((int)i % odc_size(context) == odc_rank(context)) {
                    add_full(t, full);
                }
            }
            CHECK_OK(odc_minibatch_sync(context));
            add_gradients_exactly(m, twice, rounds);
            check_exact_sums(t, m);
        }
        free_exact_model(m);
    }
    free(full);
}

static void every_bf16_and_f16_value_is_added_exactly(void **state) {
    (void)state;
    run_ranks(2, halves, NULL);
}

typedef struct heard {
    int warnings;
    char line[512];
} heard;

static void hear(void *arg, int32_t level, const char *line) {
    heard *h = arg;
    if (level == ODC_LOG_WARN && strstr(line, "exact sums") != NULL) {
        ++h->warnings;
        snprintf(h->line, sizeof h->line, "%s", line);
    }
}

static void clamps(int rank, int size, const char *job, void *arg) {
    heard h = {0};
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    float full[20] = {0};
    (void)arg;
    config.log = hear;
    config.log_arg = &h;
    CHECK_OK(odc_init(&config, &context));
    odc_shard_desc desc = describe_exact("layer", 20, 0, ODC_F32);
    desc.largest = 3; /* of the next power of two */
    tensor t = make_described(context, &desc);
    CHECK(slice_of(t).largest == 4);
    full[3] = 5;
    full[5] = -4;
    full[6] = nextafterf(4, 0);
    full[15] = 1;
    CHECK_OK(odc_publish_all(context, NULL));
    add_full(t, full);
    CHECK_OK(odc_minibatch_sync(context));
    odc_slice slice = slice_of(t);
    float *sums = new_sums(t);
    if (rank == 0) {
        CHECK_EQUAL(stats_of(context).clamped_addends, 4);
        CHECK_EQUAL(h.warnings, 1);
        CHECK(strstr(h.line, "\"layer\": 4 elements of gradients were not below 2^2") != NULL);
        CHECK(strstr(h.line, "in the next it is 2^9") != NULL);
        CHECK(sums[3] == 8 && sums[5] == -8 && sums[6] == 2 * full[6]);
        CHECK(slice.largest == 512); /* 64 times the largest sum, as this is more than 64 times before */
    } else {
        CHECK_EQUAL(stats_of(context).clamped_addends, 0);
        CHECK_EQUAL(h.warnings, 0);
        CHECK(sums[5] == 2);
        CHECK(slice.largest == 128); /* 64 times its own largest sum */
    }
    CHECK_OK(odc_publish_all(context, NULL));
    add_full(t, full);
    CHECK_OK(odc_minibatch_sync(context));
    free(sums);
    sums = new_sums(t);
    CHECK_EQUAL(stats_of(context).clamped_addends, rank == 0 ? 4 : 0);
    CHECK_EQUAL(h.warnings, rank == 0 ? 1 : 0);
    CHECK(rank != 0 || (sums[3] == 10 && sums[5] == -8));
    free(sums);
    odc_destroy(context);
}

static void what_is_too_large_is_clamped_counted_and_told(void **state) {
    (void)state;
    run_processes(2, clamps, NULL);
}

static void special_values(odc_context *context, void *arg) {
    float full[40] = {0};
    (void)arg;
    odc_shard_desc desc = describe_exact("layer", 40, 0, ODC_F32);
    tensor t = make_described(context, &desc);
    for (int minibatch = 0; minibatch < 3; ++minibatch) {
        CHECK_OK(odc_publish_all(context, NULL));
        for (int i = 0; i < 40; ++i) {
            full[i] = 1;
        }
        if (odc_rank(context) == minibatch) {
            full[7] = INFINITY;
            full[8] = -INFINITY;
            full[25] = NAN;
        }
        add_full(t, full);
        add_full(t, full);
        CHECK_OK(odc_minibatch_sync(context));
        odc_slice slice = slice_of(t);
        float *sums = new_sums(t);
        for (uint64_t i = 0; i < slice.numel; ++i) {
            uint64_t at = slice.offset + i;
            int special = minibatch < 2 && (at == 7 || at == 8 || at == 25);
            CHECK(same_bits(sums[i], special ? NAN : 4));
        }
        free(sums);
    }
}

static void what_is_not_finite_makes_its_element_nan(void **state) {
    (void)state;
    run_ranks(2, special_values, NULL);
}

/* Sums of 2^127 and more than f32 holds, and of the least numbers. */
static void extremes(odc_context *context, void *arg) {
    float full[3] = {ldexpf(1.5F, 126), ldexpf(1, -149), 0};
    (void)arg;
    odc_shard_desc descs[2] = {describe_exact("large", 3, 0, ODC_F32), describe_exact("small", 3, 0, ODC_F32)};
    descs[0].largest = ldexpf(1, 127);
    descs[1].largest = ldexpf(1, -98);
    odc_shard *shards[2];
    CHECK_OK(odc_register_shards(context, descs, 2, shards));
    tensor large = {shards[0], 3, 0, ODC_F32, descs[0].memory, ODC_SUM_EXACT};
    tensor small = {shards[1], 3, 0, ODC_F32, descs[1].memory, ODC_SUM_EXACT};
    CHECK_OK(odc_publish_all(context, NULL));
    for (int i = 0; i < 3; ++i) {
        add_full(large, full);
    }
    full[0] = 0;
    for (int i = 0; i < 3; ++i) {
        add_full(small, full);
    }
    CHECK_OK(odc_minibatch_sync(context));
    float *large_sums = new_sums(large);
    float *small_sums = new_sums(small);
    CHECK(isnan(large_sums[0]) && large_sums[1] == 0);
    CHECK(small_sums[1] == ldexpf(3, -149));
    CHECK(slice_of(large).largest == ldexpf(1, 127) && slice_of(small).largest == ldexpf(1, -98));
    free(large_sums);
    free(small_sums);
}

static void the_extremes_of_f32_are_within_reach(void **state) {
    (void)state;
    run_ranks(1, extremes, NULL);
}

/* The first minibatch's unit is that of the default `largest`, too coarse for these; the second one's is that of the first. */
static void small_sums(odc_context *context, void *arg) {
    enum { COUNT = 1000 };
    (void)arg;
    odc_shard_desc desc = describe_exact("small", COUNT, 0, ODC_F32);
    tensor t = make_described(context, &desc);
    for (int minibatch = 0; minibatch < 2; ++minibatch) {
        CHECK_OK(odc_publish_all(context, NULL));
        float full[COUNT];
        for (int i = 0; i < COUNT; ++i) {
            full[i] = ldexpf(1, -30) * (1 + (float)i / COUNT);
        }
        for (int i = 0; i < 3; ++i) {
            add_full(t, full);
        }
        CHECK_OK(odc_minibatch_sync(context));
        float *sums = new_sums(t);
        for (int i = 0; i < COUNT && minibatch > 0; ++i) {
            /* A unit of the largest sum in f32. */
            CHECK(fabs(sums[i] - 3 * (double)full[i]) <= ldexp(6, -30 - 23));
        }
        free(sums);
    }
}

static void small_sums_are_as_fine_as_f32_from_the_second_minibatch_on(void **state) {
    (void)state;
    run_ranks(1, small_sums, NULL);
}

/* ---- Shards ---- */

static void two_kinds(odc_context *context, void *arg) {
    enum { COUNT = 4 };
    (void)arg;
    for (int minibatch = 0; minibatch < 6; ++minibatch) { /* the same name and memory, in turns */
        odc_shard_desc desc = minibatch % 2 == 0 ? describe_exact("layer", 5000, ODC_BF16, ODC_F32)
                                                 : describe("layer", 5000, ODC_BF16, ODC_F32);
        tensor plain = make_tensor(context, "plain", 3000, ODC_F32, ODC_BF16);
        tensor t = make_described(context, &desc);
        odc_slice slice = slice_of(t);
        exact_model *m = new_exact_model(&desc);
        uint64_t salts[COUNT];
        CHECK_EQUAL(slice.accumulator_type, ODC_F32);
        CHECK_EQUAL(slice.sum, minibatch % 2 == 0 ? ODC_SUM_EXACT : 0);
        CHECK(slice.largest == (minibatch % 2 == 0 ? 1024 : 0));
        float *zeros = new_sums(t);
        for (uint64_t i = 0; i < slice.numel; ++i) {
            CHECK(zeros[i] == 0);
        }
        free(zeros);
        for (uint64_t rank = 0; rank < COUNT; ++rank) {
            salts[rank] = 10 * (uint64_t)minibatch + rank;
        }
        write_parameters(t, 3);
        write_parameters(plain, 4);
        CHECK_OK(odc_publish_all(context, NULL));
        check_gather(t, 3);
        check_gather(plain, 4);
        for (int k = odc_rank(context); k < COUNT; k += odc_size(context)) {
            add_gradients(t, salts[k]);
            add_gradients(plain, salts[k]);
        }
        CHECK_OK(odc_minibatch_sync(context));
        if (minibatch % 2 == 0) {
            add_exactly(m, salts, COUNT);
            check_exact_sums(t, m);
        } else {
            check_sums(t, salts, COUNT);
        }
        check_sums(plain, salts, COUNT);
        CHECK_OK(odc_release_shard(t.shard));
        CHECK_OK(odc_release_shard(plain.shard));
        free_exact_model(m);
        CHECK_OK(odc_publish_all(context, NULL));
        CHECK_OK(odc_minibatch_sync(context));
    }
}

static void shards_of_both_kinds_live_side_by_side_and_one_after_the_other(void **state) {
    (void)state;
    run_ranks(3, two_kinds, NULL);
}

static void takes_more_memory(odc_context *context, void *arg) {
    (void)arg;
    uint64_t numel = 1000 * (uint64_t)odc_size(context);
    tensor plain = make_tensor(context, "plain", numel, ODC_BF16, ODC_BF16);
    CHECK_EQUAL(stats_of(context).slice_bytes, 1000 * (2 + 4));
    odc_shard_desc desc = describe_exact("exact", numel, ODC_BF16, ODC_BF16);
    make_described(context, &desc);
    CHECK_EQUAL(stats_of(context).slice_bytes, 1000 * (2 + 4 + 2 + 8));
    CHECK_OK(odc_release_shard(plain.shard));
    CHECK_EQUAL(stats_of(context).slice_bytes, 1000 * (2 + 8));
}

static void they_take_four_bytes_more_an_element(void **state) {
    (void)state;
    run_ranks(2, takes_more_memory, NULL);
}

/* ---- Errors ---- */

#define CHECK_REFUSED(context, desc, status, ...)                                     \
    do {                                                                              \
        odc_shard *shard_ = NULL;                                                     \
        CHECK_ERROR(odc_register_shard(context, desc, &shard_), status, __VA_ARGS__); \
        CHECK(shard_ == NULL);                                                        \
    } while (0)

static void bad_descriptions(odc_context *context, void *arg) {
    (void)arg;
    odc_shard_desc desc = describe_exact("wrong", 10, ODC_F32, ODC_F64);
    CHECK_REFUSED(context, &desc, ODC_ERROR_UNSUPPORTED, "\"wrong\"", "f64", "bf16");
    desc = describe_exact("wrong", 10, ODC_F32, 0);
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "\"wrong\"", "no gradients");
    desc = describe("wrong", 10, ODC_F32, ODC_F32);
    desc.sum = 2;
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "\"wrong\"", "sum 2");
    desc.sum = 0;
    desc.largest = 8;
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "\"wrong\"", "largest is 8", "ODC_SUM_EXACT");
    float out_of_range[] = {ldexpf(1, -99), ldexpf(1.5F, 127), -ldexpf(1.5F, 127), INFINITY, NAN};
    for (int i = 0; i < 5; ++i) {
        desc = describe_exact("wrong", 10, ODC_F32, ODC_F32);
        desc.largest = out_of_range[i];
        CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "\"wrong\"", "largest", "2^-98", "2^127");
    }
}

static void what_cannot_be_summed_exactly_is_refused(void **state) {
    (void)state;
    run_ranks(1, bad_descriptions, NULL);
}

static void disagreement(odc_context *context, void *arg) {
    const int *about_largest = arg;
    odc_shard_desc desc = describe_exact("layer", 100, ODC_F32, ODC_F32);
    if (odc_rank(context) == 1) {
        desc.largest = *about_largest ? 2048 : 0;
        desc.sum = *about_largest ? ODC_SUM_EXACT : 0;
    }
    make_described(context, &desc);
    odc_status status = odc_publish_all(context, NULL);
    if (status == ODC_OK) {
        status = odc_minibatch_sync(context);
    }
    CHECK_EQUAL(status, ODC_ERROR_MISMATCH);
    if (*about_largest) {
        CHECK_SENTENCE(odc_last_error(), "\"layer\"", "says largest 2^1", "2^10", "2^11", "rank 0", "rank 1");
    } else {
        CHECK_SENTENCE(odc_last_error(), "\"layer\"", "sum", "exact", "default", "rank 0", "rank 1");
    }
}

static void ranks_that_disagree_are_told_so(void **state) {
    (void)state;
    for (int about_largest = 0; about_largest < 2; ++about_largest) {
        run_ranks(2, disagreement, &about_largest);
    }
}

static void adds_too_often(odc_context *context, void *arg) {
    enum { MOST = 4096 };
    float full[2] = {1023, -0.25F};
    (void)arg;
    odc_shard_desc desc = describe_exact("layer", 2, 0, ODC_F32);
    tensor t = make_described(context, &desc);
    void *buffer = new_buffer(t, ODC_F32);
    void *stream = some_stream(t);
    int rank = odc_rank(context);
    tests_gpu() ? gpu_write(buffer, full, sizeof full) : (void)memcpy(buffer, full, sizeof full);
    CHECK_OK(odc_publish_all(context, NULL));
    for (int i = 0; i < MOST / 2; ++i) {
        CHECK_OK(odc_scatter_add(t.shard, buffer, 2, stream));
    }
    CHECK_OK(odc_minibatch_sync(context));
    float *sum = new_sums(t);
    CHECK(*sum == MOST * full[rank]);
    free(sum);
    CHECK_OK(odc_publish_all(context, NULL));
    for (int i = 0; i < MOST / 2 + (rank == 0); ++i) {
        CHECK_OK(odc_scatter_add(t.shard, buffer, 2, stream));
    }
    CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_ABORTED);
    CHECK_SENTENCE(odc_last_error(), "rank ", "\"layer\"", "4096|4,096", "ODC_SUM_EXACT");
    free_buffer(t, buffer);
}

static void more_than_4096_additions_are_an_error(void **state) {
    (void)state;
    run_ranks(2, adds_too_often, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_model_in_any_order_and_on_any_ranks),
        cmocka_unit_test(another_job_goes_on_with_the_same_bits),
        cmocka_unit_test(every_bf16_and_f16_value_is_added_exactly),
        cmocka_unit_test(what_is_too_large_is_clamped_counted_and_told),
        cmocka_unit_test(what_is_not_finite_makes_its_element_nan),
        cmocka_unit_test(the_extremes_of_f32_are_within_reach),
        cmocka_unit_test(small_sums_are_as_fine_as_f32_from_the_second_minibatch_on),
        cmocka_unit_test(shards_of_both_kinds_live_side_by_side_and_one_after_the_other),
        cmocka_unit_test(they_take_four_bytes_more_an_element),
        cmocka_unit_test(what_cannot_be_summed_exactly_is_refused),
        cmocka_unit_test(ranks_that_disagree_are_told_so),
        cmocka_unit_test(more_than_4096_additions_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
