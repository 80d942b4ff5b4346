/* SPDX-License-Identifier: Apache-2.0 */
/* The expected exact sums (ODC_SUM_EXACT) of a shard, computed by one process for all its elements: what odc.h says, in
 * integers, with values of many magnitudes whose f32 sums would depend on their order. */
#ifndef ODC_TESTS_EXACT_MODEL_H
#define ODC_TESTS_EXACT_MODEL_H

#include "model.h"

typedef struct exact_model {
    int gradient_type;
    uint64_t numel;
    int exponent;     /* of the running minibatch: all gradients are below 2^exponent */
    uint64_t clamped; /* in the last minibatch */
    float *sums;      /* of the last minibatch, of the whole shard */
} exact_model;

odc_shard_desc describe_exact(const char *name, uint64_t numel, int parameter_type, int gradient_type);
exact_model *new_exact_model(const odc_shard_desc *desc);
void free_exact_model(exact_model *m);

/* An element of the gradient with this salt. A few salts have some elements that are too large, and some that are not finite. */
double exact_value(int gradient_type, uint64_t salt, uint64_t index);
void fill_exact_gradients(int gradient_type, void *full, uint64_t numel, uint64_t salt);
/* Ends a minibatch in which gradients with these salts were added. */
void add_exactly(exact_model *m, const uint64_t *salts, size_t count);
/* The same of gradients in memory. */
void add_gradients_exactly(exact_model *m, const void *const *gradients, size_t count);
/* The rank's slice has the bits of the last minibatch's sums. */
void check_exact_sums(tensor t, const exact_model *m);
int same_bits(float one, float other); /* or both are NaN */

#endif
