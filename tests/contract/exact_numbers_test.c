/* SPDX-License-Identifier: Apache-2.0 */
/* odc_exact_add and odc_exact_value against sums of 128-bit integers: the same bits in any order, on any number of ranks. */
#include "model.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>

enum { ROUNDS = 300, MOST_VALUES = 200, MOST_RANKS = 5, DIGITS = ODC_EXACT_DIGITS };

/* So small that the sum of MOST_VALUES in units of 2^-64 fits 128 bits. */
static double some_value(uint64_t *random) {
    const double value = ldexp((double)(next_random(random) >> 11), (int)random_below(random, 120) - 130);
    return random_below(random, 2) == 0 ? value : -value;
}

__extension__ typedef __int128 wide;

static wide units_of(double value) { return (wide)rint(ldexp(value, 64)); }

static double sum_of(const double *values, size_t count) {
    wide units = 0;
    for (size_t i = 0; i < count; ++i) {
        units += units_of(values[i]);
    }
    return ldexp((double)units, -64);
}

static int same_bits(double one, double other) { return memcmp(&one, &other, sizeof one) == 0; }

static double value_of(const double *digits) {
    double value = 12345;
    CHECK_OK(odc_exact_value(digits, &value));
    return value;
}

static void shuffle(double *values, size_t count, uint64_t *random) {
    for (size_t left = count; left > 1; --left) {
        const size_t drawn = random_below(random, left);
        const double kept = values[left - 1];
        values[left - 1] = values[drawn];
        values[drawn] = kept;
    }
}

/* Each part of the values by a call or one by one, and the digits of all parts added up. */
static double divided_sum(const double *values, size_t count, size_t parts, uint64_t *random) {
    double all[DIGITS] = {0};
    for (size_t part = 0; part < parts; ++part) {
        double mine[DIGITS] = {0};
        const size_t begin = count * part / parts;
        const size_t end = count * (part + 1) / parts;
        const size_t step = random_below(random, 2) == 0 ? end - begin : 1;
        for (size_t i = begin; i < end; i += step) {
            CHECK_OK(odc_exact_add(mine, &values[i], step));
        }
        for (int digit = 0; digit < DIGITS; ++digit) {
            all[digit] += mine[digit];
        }
    }
    return value_of(all);
}

static void any_order_and_division_gives_the_sum_of_the_model(void **state) {
    (void)state;
    uint64_t random = test_seed();
    for (int round = 0; round < ROUNDS; ++round) {
        double values[MOST_VALUES];
        const size_t count = random_below(&random, MOST_VALUES + 1);
        for (size_t i = 0; i < count; ++i) {
            values[i] = some_value(&random);
        }
        const double wanted = sum_of(values, count);
        for (size_t parts = 1; parts <= MOST_RANKS; ++parts) {
            shuffle(values, count, &random);
            CHECK(same_bits(divided_sum(values, count, parts, &random), wanted));
        }
    }
}

static void ties_go_to_the_even_one(void **state) {
    (void)state;
    static const double rounded[][2] = {{0.5, 0}, {1.5, 2}, {2.5, 2}, {-0.5, 0}, {-1.5, -2}, {0.75, 1}, {0.25, 0}};
    for (size_t i = 0; i < sizeof rounded / sizeof *rounded; ++i) {
        const double value = ldexp(rounded[i][0], -64);
        double digits[DIGITS] = {0};
        CHECK_OK(odc_exact_add(digits, &value, 1));
        CHECK(value_of(digits) == ldexp(rounded[i][1], -64));
    }
    /* A sum of 54 bits is rounded to 53, ties to even: 2^53 + 1 down, 2^53 + 3 up. */
    static const double sums[][3] = {
        {0x1p53, 1, 0x1p53}, {0x1p53 + 2, 1, 0x1p53 + 4}, {0x1p53, 0x1.000001p0, 0x1p53 + 2}};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; ++i) {
        double digits[DIGITS] = {0};
        CHECK_OK(odc_exact_add(digits, sums[i], 2));
        CHECK(value_of(digits) == sums[i][2]);
    }
}

static void the_programs_rounding_changes_nothing(void **state) {
    (void)state;
    static const double values[] = {0.1, 1e17, -0.3, 1e-18, 0x1.8p-65};
    double wanted[DIGITS] = {0};
    CHECK_OK(odc_exact_add(wanted, values, 5));
    const double value = value_of(wanted);
    fesetround(FE_UPWARD);
    double digits[DIGITS] = {0};
    odc_status status = odc_exact_add(digits, values, 5);
    const double other = value_of(digits);
    fesetround(FE_TONEAREST);
    CHECK_OK(status);
    CHECK(memcmp(digits, wanted, sizeof digits) == 0 && same_bits(other, value));
}

static void what_is_not_finite_stays(void **state) {
    (void)state;
    const double infinities[] = {INFINITY, 1, -INFINITY};
    double digits[DIGITS] = {0};
    CHECK_OK(odc_exact_add(digits, infinities, 2));
    CHECK(value_of(digits) == INFINITY);
    CHECK_OK(odc_exact_add(digits, infinities + 2, 1));
    CHECK(isnan(value_of(digits)));
}

static void check_refused(double *digits, const double *values, size_t count, const char *why) {
    double before[DIGITS];
    memcpy(before, digits, sizeof before);
    CHECK_EQUAL(odc_exact_add(digits, values, count), ODC_ERROR_ARGUMENT);
    CHECK_SENTENCE(odc_last_error(), "odc_exact_add", why);
    CHECK(memcmp(before, digits, sizeof before) == 0);
}

static void wrong_arguments_are_refused_and_change_nothing(void **state) {
    (void)state;
    double digits[DIGITS] = {0};
    double value = 3;
    const double large[] = {1, 0x1p94};
    double most[8];
    CHECK_OK(odc_exact_add(digits, NULL, 0));
    CHECK_EQUAL(odc_exact_add(digits, NULL, 1), ODC_ERROR_ARGUMENT);
    CHECK_EQUAL(odc_exact_add(NULL, large, 1), ODC_ERROR_ARGUMENT);
    CHECK_EQUAL(odc_exact_value(NULL, &value), ODC_ERROR_ARGUMENT);
    CHECK_EQUAL(odc_exact_value(digits, NULL), ODC_ERROR_ARGUMENT);
    check_refused(digits, large, 2, "values[1] is 1");
    for (size_t i = 0; i < 8; ++i) {
        most[i] = -0x1.fffffp93;
    }
    CHECK_OK(odc_exact_add(digits, most, 8));
    check_refused(digits, most, 2, "the sum is too large");
    for (int i = 0; i < DIGITS - 1; ++i) {
        static const double none[] = {0.5, NAN, INFINITY, 0x1p54};
        for (size_t k = 0; k < sizeof none / sizeof *none; ++k) {
            double wrong[DIGITS] = {0};
            wrong[i] = none[k];
            check_refused(wrong, large, 1, "begin with zeros");
            CHECK_EQUAL(odc_exact_value(wrong, &value), ODC_ERROR_ARGUMENT);
            CHECK(value == 3);
        }
    }
}

/* ---- In a job ---- */

typedef struct division {
    uint64_t seed;
    double sums[2]; /* of two reductions, which rank 0 writes */
} division;

enum { SUMS = 10 }; /* in a call */

static void add_mine(odc_context *context, uint64_t seed, double *digits) {
    for (int sum = 0; sum < SUMS; ++sum) {
        uint64_t random = seed + (uint64_t)sum;
        for (int i = 0; i < 100; ++i) {
            const double value = some_value(&random);
            if ((i * 7 + sum) % odc_size(context) == odc_rank(context)) {
                CHECK_OK(odc_exact_add(digits + (size_t)(sum * DIGITS), &value, 1));
            }
        }
    }
}

static double total_of(const double *digits) {
    double total[DIGITS] = {0};
    for (size_t sum = 0; sum < SUMS; ++sum) {
        const double value = value_of(digits + sum * DIGITS);
        CHECK_OK(odc_exact_add(total, &value, 1));
    }
    return value_of(total);
}

static void sums_twice(odc_context *context, void *arg) {
    division *what = arg;
    double digits[2][SUMS * DIGITS] = {{0}};
    add_mine(context, what->seed, digits[0]);
    add_mine(context, what->seed + 1000, digits[1]);
    CHECK_OK(odc_minibatch_sync_reduce(context, digits[0], (size_t)SUMS * DIGITS, ODC_SUM));
    CHECK_OK(odc_all_reduce(context, digits[1], (size_t)SUMS * DIGITS, ODC_SUM));
    for (int i = 0; odc_rank(context) == 0 && i < 2; ++i) {
        what->sums[i] = total_of(digits[i]);
    }
}

static void every_number_of_ranks_has_the_same_bits(void **state) {
    (void)state;
    division *what = share(sizeof *what);
    double alone[2] = {0};
    what->seed = test_seed();
    for (int size = 1; size <= MOST_RANKS; ++size) {
        run_ranks(size, sums_twice, what);
        if (size == 1) {
            memcpy(alone, what->sums, sizeof alone);
            CHECK(alone[0] != 0 && alone[0] != alone[1]);
        }
        CHECK(same_bits(what->sums[0], alone[0]) && same_bits(what->sums[1], alone[1]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_and_division_gives_the_sum_of_the_model),
        cmocka_unit_test(ties_go_to_the_even_one),
        cmocka_unit_test(the_programs_rounding_changes_nothing),
        cmocka_unit_test(what_is_not_finite_stays),
        cmocka_unit_test(wrong_arguments_are_refused_and_change_nothing),
        cmocka_unit_test(every_number_of_ranks_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
