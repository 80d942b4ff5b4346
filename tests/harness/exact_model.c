/* SPDX-License-Identifier: Apache-2.0 */
#include "exact_model.h"

#include <math.h>
#include <stdio.h>

enum {
    BITS = 51,
    LEAST_EXPONENT = -98,
    MOST_EXPONENT = 127,
    HEADROOM = 6,
    MOST_EXCESS = 20,
    EXPONENT_OF_HALF = 16,
    DEFAULT_EXPONENT = 10,
    SPECIAL_SALTS = 5, /* one of so many has elements that are too large; one, that are not finite */
    SPECIAL_ELEMENTS = 700
};

odc_shard_desc describe_exact(const char *name, uint64_t numel, int parameter_type, int gradient_type) {
    odc_shard_desc desc = describe(name, numel, parameter_type, gradient_type);
    desc.sum = ODC_SUM_EXACT;
    return desc;
}

exact_model *new_exact_model(const odc_shard_desc *desc) {
    exact_model *m = calloc(1, sizeof *m);
    CHECK(m != NULL);
    m->gradient_type = desc->gradient_type;
    m->numel = desc->numel;
    m->sums = calloc(desc->numel + 1, sizeof *m->sums);
    CHECK(m->sums != NULL);
    m->exponent = desc->gradient_type == ODC_F16 ? EXPONENT_OF_HALF : DEFAULT_EXPONENT;
    if (desc->largest != 0) {
        m->exponent = ilogbf(fabsf(desc->largest));
    }
    return m;
}

void free_exact_model(exact_model *m) {
    if (m != NULL) {
        free(m->sums);
        free(m);
    }
}

static int is_special(uint64_t salt, int kind, uint64_t index) {
    uint64_t state = salt * 31 + index;
    return (int)(salt % SPECIAL_SALTS) == kind && random_below(&state, SPECIAL_ELEMENTS) == 0;
}

double exact_value(int gradient_type, uint64_t salt, uint64_t index) {
    uint64_t state = salt * 0x9e3779b97f4a7c15u + index;
    int fraction_bits = gradient_type == ODC_F32 ? 23 : gradient_type == ODC_BF16 ? 7 : 10;
    int exponent = (int)random_below(&state, 23) - 14;
    double fraction = ldexp((double)random_below(&state, (uint64_t)1 << fraction_bits), -fraction_bits);
    double sign = random_below(&state, 2) == 0 ? 1 : -1;
    if (gradient_type != ODC_F16 && is_special(salt, 0, index)) {
        exponent += 26;
    }
    if (gradient_type != ODC_F16 && is_special(salt, 1, index)) {
        return random_below(&state, 2) == 0 ? NAN : sign * INFINITY;
    }
    return random_below(&state, 50) == 0 ? sign * 0 : sign * ldexp(1 + fraction, exponent);
}

void fill_exact_gradients(int gradient_type, void *full, uint64_t numel, uint64_t salt) {
    for (uint64_t i = 0; i < numel; ++i) {
        put_element(gradient_type, full, i, exact_value(gradient_type, salt, i));
    }
}

/* The sum of an element, in units. */
typedef struct exact_total {
    int64_t units;
    int not_finite;
} exact_total;

static void add_value(exact_model *m, exact_total *sum, double value, int exponent) {
    double most = ldexp(1, BITS) - 1;
    double units = ldexp(value, BITS - exponent);
    if (!isfinite(value)) {
        sum->not_finite = 1;
    } else if (fabs(units) > most) {
        sum->units += (int64_t)copysign(most, units);
        ++m->clamped;
    } else {
        sum->units += (int64_t)rint(units);
    }
}

static float read_total(const exact_total *sum, int exponent) {
    float nearest = (float)ldexpl((long double)sum->units, exponent - BITS); /* which holds all 63 bits */
    return sum->not_finite || isinf(nearest) ? NAN : nearest;
}

/* The least k with units <= 2^k. */
static int bits_of(uint64_t units) {
    int k = 0;
    while (((uint64_t)1 << k) < units) {
        ++k;
    }
    return k;
}

static int limited(int exponent) {
    return exponent < LEAST_EXPONENT ? LEAST_EXPONENT : exponent > MOST_EXPONENT ? MOST_EXPONENT : exponent;
}

static void end_minibatch(exact_model *m, uint64_t largest) {
    int next = m->exponent;
    if (largest > 0) {
        int asked = bits_of(largest) + m->exponent - BITS + HEADROOM;
        next = m->exponent - 1 < asked + MOST_EXCESS ? m->exponent - 1 : asked + MOST_EXCESS;
        next = next > asked ? next : asked;
    }
    if (m->clamped > 0 && next < m->exponent + HEADROOM) {
        next = m->exponent + HEADROOM;
    }
    m->exponent = limited(next);
}

/* gradients[k] NULL: by the salt. */
static void add_all(exact_model *m, const uint64_t *salts, const void *const *gradients, size_t count) {
    uint64_t largest = 0;
    m->clamped = 0;
    for (uint64_t i = 0; i < m->numel; ++i) {
        exact_total sum = {0, 0};
        for (size_t k = 0; k < count; ++k) {
            double value = gradients != NULL ? get_element(m->gradient_type, gradients[k], i)
                                             : exact_value(m->gradient_type, salts[k], i);
            add_value(m, &sum, value, m->exponent);
        }
        m->sums[i] = read_total(&sum, m->exponent);
        uint64_t magnitude = (uint64_t)(sum.units < 0 ? -sum.units : sum.units);
        if (!sum.not_finite && magnitude > largest) {
            largest = magnitude;
        }
    }
    end_minibatch(m, largest);
}

void add_exactly(exact_model *m, const uint64_t *salts, size_t count) { add_all(m, salts, NULL, count); }

void add_gradients_exactly(exact_model *m, const void *const *gradients, size_t count) {
    add_all(m, NULL, gradients, count);
}

int same_bits(float one, float other) { return isnan(one) ? isnan(other) : memcmp(&one, &other, sizeof one) == 0; }

void check_exact_sums(tensor t, const exact_model *m) {
    odc_slice slice = slice_of(t);
    float *sums = new_sums(t);
    CHECK_EQUAL(slice.sum, ODC_SUM_EXACT);
    for (uint64_t i = 0; i < slice.numel; ++i) {
        if (!same_bits(sums[i], m->sums[slice.offset + i])) {
            fprintf(stderr, "element %llu: %a instead of %a\n", (unsigned long long)(slice.offset + i), (double)sums[i],
                    (double)m->sums[slice.offset + i]);
            CHECK(same_bits(sums[i], m->sums[slice.offset + i]));
        }
    }
    free(sums);
}
