/* SPDX-License-Identifier: Apache-2.0 */
/* The expected contents of shards, computed by one process: small integers, exact in every type and in every order of addition,
 * drawn from a salt and the element's index. */
#ifndef ODC_TESTS_MODEL_H
#define ODC_TESTS_MODEL_H

#include "ranks.h"

typedef struct tensor {
    odc_shard *shard;
    uint64_t numel;
    int parameter_type;
    int gradient_type;
    int memory; /* odc_memory of its slices and of its full-size buffers */
    int sum;    /* odc_summation: its gradients are those of exact_model.h */
} tensor;

size_t type_size(int type);
/* BYTES are signed. */
double get_element(int type, const void *data, uint64_t index);
void put_element(int type, void *data, uint64_t index, double value); /* value must be exact in the type */
double small_value(uint64_t salt, uint64_t index);                    /* an integer in -8..8 */

odc_shard_desc describe(const char *name, uint64_t numel, int parameter_type, int gradient_type);
/* Registers a shard; the test fails if that fails. */
tensor make_tensor(odc_context *context, const char *name, uint64_t numel, int parameter_type, int gradient_type);
tensor make_described(odc_context *context, const odc_shard_desc *desc);
odc_slice slice_of(tensor t);
/* Shards whose byte counts overflow, alone or together, are errors and change nothing. */
void check_overflows(odc_context *context);

void *new_full(uint64_t numel, int type); /* numel elements and a guard after them, in host memory; never NULL */
void write_parameters(tensor t, uint64_t salt);
void enqueue_parameters(tensor t, uint64_t salt, void *stream); /* a shard's in GPU memory when the stream reaches it */
void check_full(tensor t, const void *full, uint64_t salt);     /* and that nothing was written past the end */
void check_gather(tensor t, uint64_t salt);                     /* gathers and compares */
void fill_gradients(tensor t, void *full, uint64_t salt);
void add_gradients(tensor t, uint64_t salt);
/* numel elements and a guard after them, in the memory of the tensor's buffers (GPU or host). */
void *new_buffer(tensor t, int type);
void free_buffer(tensor t, void *buffer);
void write_gradients(tensor t, void *buffer, uint64_t salt);
/* Overwrites it on the addition's stream: after the addition the buffer belongs to the caller again. */
void spoil_gradients(tensor t, void *buffer, void *stream);
/* As check_full, for what has been gathered so far. */
void check_buffer(tensor t, const void *buffer, uint64_t salt);
/* Returns a random one of a few streams; waits for the work on it. */
void *some_stream(tensor t);
void await_stream(tensor t, void *stream);

/* Checks that this rank's accumulators are the sums of additions with these salts. */
void check_sums(tensor t, const uint64_t *salts, size_t count);
/* Copies of this rank's sums, and additions of a whole gradient, for both kinds of memory. */
void *new_sums(tensor t);
void add_full(tensor t, const void *full);
/* One minibatch in which every rank adds once and checks everything. All ranks must pass the same `salt`. */
void use_once(odc_context *context, const tensor *tensors, size_t count, uint64_t salt);

#endif
