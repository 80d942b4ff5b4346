/* SPDX-License-Identifier: Apache-2.0 */
/* The single-process model: the contents of every slice after every step. */
#include "model.h"

#include <math.h>
#include <stdio.h>

#include "exact_model.h"
#include "gpu.h"

enum { GUARD_BYTES = 64, GUARD = 0xa5 };

size_t type_size(int type) {
    switch (type) {
        case ODC_F64: return 8;
        case ODC_F32: return 4;
        case ODC_BF16:
        case ODC_F16: return 2;
        default: return 1;
    }
}

static double widen_bf16(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static double widen_f16(uint16_t bits) {
    int exponent = (bits >> 10) & 31;
    int mantissa = bits & 1023;
    double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == 31) {
        return mantissa != 0 ? NAN : sign * INFINITY;
    }
    return exponent == 0 ? sign * ldexp(mantissa, -24) : sign * ldexp(1024 + mantissa, exponent - 25);
}

static uint16_t narrow_bf16(double value) {
    float single = (float)value;
    uint32_t word;
    memcpy(&word, &single, sizeof word);
    return (uint16_t)(word >> 16);
}

/* Normal numbers and zero, the only ones that tests write. */
static uint16_t narrow_f16(double value) {
    int exponent = 0;
    double fraction = frexp(fabs(value), &exponent);
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (value == 0) {
        return sign;
    }
    return (uint16_t)(sign | ((exponent + 14) << 10) | ((int)ldexp(fraction, 11) & 1023));
}

double get_element(int type, const void *data, uint64_t index) {
    uint16_t half;
    switch (type) {
        case ODC_F64: return ((const double *)data)[index];
        case ODC_F32: return ((const float *)data)[index];
        case ODC_BYTES: return ((const signed char *)data)[index];
        default: break;
    }
    memcpy(&half, (const char *)data + 2 * index, sizeof half);
    return type == ODC_BF16 ? widen_bf16(half) : widen_f16(half);
}

void put_element(int type, void *data, uint64_t index, double value) {
    uint16_t half;
    switch (type) {
        case ODC_F64: ((double *)data)[index] = value; return;
        case ODC_F32: ((float *)data)[index] = (float)value; return;
        case ODC_BYTES: ((signed char *)data)[index] = (signed char)value; return;
        default: break;
    }
    half = type == ODC_BF16 ? narrow_bf16(value) : narrow_f16(value);
    memcpy((char *)data + 2 * index, &half, sizeof half);
}

double small_value(uint64_t salt, uint64_t index) {
    uint64_t state = salt * 0x2545f4914f6cdd1du + index;
    return (double)random_below(&state, 17) - 8;
}

odc_shard_desc describe(const char *name, uint64_t numel, int parameter_type, int gradient_type) {
    odc_shard_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.name = name;
    desc.numel = numel;
    desc.parameter_type = parameter_type;
    desc.gradient_type = gradient_type;
    desc.memory = tests_gpu() ? ODC_GPU_MEMORY : ODC_HOST_MEMORY;
    return desc;
}

tensor make_described(odc_context *context, const odc_shard_desc *desc) {
    tensor t = {NULL, desc->numel, desc->parameter_type, desc->gradient_type, desc->memory, desc->sum};
    CHECK_OK(odc_register_shard(context, desc, &t.shard));
    CHECK(t.shard != NULL);
    return t;
}

tensor make_tensor(odc_context *context, const char *name, uint64_t numel, int parameter_type, int gradient_type) {
    odc_shard_desc desc = describe(name, numel, parameter_type, gradient_type);
    return make_described(context, &desc);
}

/* Slices of two ranks: equal, all on one, or uneven. */
static void check_too_large(odc_context *context, uint64_t numel, int parameter_type, int gradient_type) {
    uint64_t divisions[3][2] = {{numel, 0}, {0, numel}, {numel / 3, numel - numel / 3}};
    for (int i = 0; i < 4; ++i) {
        char name[64];
        odc_shard *shard = NULL;
        snprintf(name, sizeof name, "%llu %d %d %d", (unsigned long long)numel, parameter_type, gradient_type, i);
        odc_shard_desc desc = describe(name, numel, parameter_type, gradient_type);
        desc.slices = i < 3 ? divisions[i] : NULL;
        odc_status status = odc_register_shard(context, &desc, &shard);
        if (i < 2 && divisions[i][odc_rank(context)] == 0 && status == ODC_OK) { /* this rank's slice is empty */
            CHECK_OK(odc_release_shard(shard));
            continue;
        }
        CHECK(shard == NULL);
        CHECK(status == ODC_ERROR_ARGUMENT || status == ODC_ERROR_NO_MEMORY);
        CHECK_SENTENCE(odc_last_error(), status == ODC_ERROR_ARGUMENT ? "larger than any memory" : "need");
    }
}

void check_overflows(odc_context *context) {
    enum { COUNT = 128 };
    static const int parameter_types[] = {0, ODC_F32, ODC_F64, ODC_BF16, ODC_F16, ODC_BYTES};
    static const int gradient_types[] = {0, ODC_F32, ODC_F64, ODC_BF16, ODC_F16};
    odc_shard_desc many[COUNT];
    odc_shard *shards[COUNT] = {NULL};
    char names[COUNT][12];
    CHECK_EQUAL(odc_size(context), 2);
    for (int i = 1; i < 6 * 5; ++i) {
        int parameters = parameter_types[i % 6];
        int gradients = gradient_types[i / 6];
        for (uint64_t bytes = 1; bytes <= 17; ++bytes) { /* bytes of an element; with and without its share of a lock */
            uint64_t limits[] = {UINT64_MAX / bytes, UINT64_MAX / (512 * bytes + 1) * 512, INT64_MAX / bytes};
            for (int k = 0; k < 9; ++k) {
                uint64_t numel = limits[k / 3] + (uint64_t)(k % 3) - 1;
                if (numel != 0) { /* UINT64_MAX + 1 */
                    check_too_large(context, numel, parameters, gradients);
                }
            }
        }
        check_too_large(context, (uint64_t)1 << 58, parameters, gradients);
    }
    check_too_large(context, UINT64_C(1152780784296263929), ODC_F64, ODC_F64);
    for (int i = 0; i < COUNT; ++i) { /* 2^64 bytes in all */
        snprintf(names[i], sizeof names[i], "%d", i);
        many[i] = describe(names[i], (uint64_t)1 << 58, ODC_BYTES, 0);
    }
    CHECK_ERROR(odc_register_shards(context, many, COUNT, shards), ODC_ERROR_ARGUMENT, "larger than any memory");
}

static int is_gpu(tensor t) { return t.memory == ODC_GPU_MEMORY; }

odc_slice slice_of(tensor t) {
    odc_slice slice;
    memset(&slice, 0, sizeof slice);
    slice.struct_size = sizeof slice;
    CHECK_OK(odc_get_slice(t.shard, &slice));
    return slice;
}

void *new_full(uint64_t numel, int type) {
    size_t bytes = numel * type_size(type);
    char *full = malloc(bytes + GUARD_BYTES);
    CHECK(full != NULL);
    memset(full, GUARD, bytes + GUARD_BYTES);
    return full;
}

void enqueue_parameters(tensor t, uint64_t salt, void *stream) {
    odc_slice slice = slice_of(t);
    size_t bytes = t.parameter_type != 0 ? slice.numel * type_size(t.parameter_type) : 0;
    void *values = is_gpu(t) ? malloc(bytes + 1) : slice.parameters;
    for (uint64_t i = 0; t.parameter_type != 0 && i < slice.numel; ++i) {
        put_element(t.parameter_type, values, i, small_value(salt, slice.offset + i));
    }
    if (is_gpu(t)) {
        if (bytes > 0) {
            void *source = gpu_new(bytes);
            gpu_write(source, values, bytes);
            gpu_copy(slice.parameters, source, bytes, stream);
            gpu_free_later(source);
        }
        free(values);
    }
}

void write_parameters(tensor t, uint64_t salt) { enqueue_parameters(t, salt, NULL); }

void check_full(tensor t, const void *full, uint64_t salt) {
    const unsigned char *guard = (const unsigned char *)full + t.numel * type_size(t.parameter_type);
    for (uint64_t i = 0; i < t.numel; ++i) {
        if (get_element(t.parameter_type, full, i) != small_value(salt, i)) {
            CHECK_EQUAL(get_element(t.parameter_type, full, i), small_value(salt, i));
        }
    }
    for (int i = 0; i < GUARD_BYTES; ++i) {
        CHECK_EQUAL(guard[i], GUARD);
    }
}

void *new_buffer(tensor t, int type) {
    void *full = new_full(t.numel, type);
    if (!is_gpu(t)) {
        return full;
    }
    size_t bytes = t.numel * type_size(type) + GUARD_BYTES;
    void *buffer = gpu_new(bytes);
    gpu_write(buffer, full, bytes);
    free(full);
    return buffer;
}

void free_buffer(tensor t, void *buffer) {
    if (is_gpu(t)) {
        gpu_free_later(buffer);
    } else {
        free(buffer);
    }
}

void write_gradients(tensor t, void *buffer, uint64_t salt) {
    void *values = is_gpu(t) ? new_full(t.numel, t.gradient_type) : buffer;
    fill_gradients(t, values, salt);
    if (is_gpu(t)) {
        gpu_write(buffer, values, t.numel * type_size(t.gradient_type));
        free(values);
    }
}

void check_buffer(tensor t, const void *buffer, uint64_t salt) {
    if (!is_gpu(t)) {
        check_full(t, buffer, salt);
        return;
    }
    void *full = new_full(t.numel, t.parameter_type);
    gpu_read(full, buffer, t.numel * type_size(t.parameter_type) + GUARD_BYTES);
    check_full(t, full, salt);
    free(full);
}

void *some_stream(tensor t) {
    static _Thread_local uint64_t state = 1;
    return is_gpu(t) ? gpu_stream(next_random(&state) >> 20) : NULL;
}

void await_stream(tensor t, void *stream) {
    if (is_gpu(t)) {
        gpu_wait(stream);
    }
}

void check_gather(tensor t, uint64_t salt) {
    void *buffer = new_buffer(t, t.parameter_type);
    void *stream = some_stream(t);
    CHECK_OK(odc_gather(t.shard, buffer, t.numel, stream));
    await_stream(t, stream);
    check_buffer(t, buffer, salt);
    free_buffer(t, buffer);
}

void fill_gradients(tensor t, void *full, uint64_t salt) {
    if (t.sum == ODC_SUM_EXACT) {
        fill_exact_gradients(t.gradient_type, full, t.numel, salt);
        return;
    }
    for (uint64_t i = 0; i < t.numel; ++i) {
        put_element(t.gradient_type, full, i, small_value(salt, i));
    }
}

void spoil_gradients(tensor t, void *buffer, void *stream) {
    size_t bytes = t.numel * type_size(t.gradient_type);
    if (!is_gpu(t)) {
        memset(buffer, 0xff, bytes);
    } else if (bytes > 0) {
        gpu_fill(buffer, 0xff, bytes, stream);
    }
}

void add_gradients(tensor t, uint64_t salt) {
    void *buffer = new_buffer(t, t.gradient_type);
    void *stream = some_stream(t);
    write_gradients(t, buffer, salt);
    CHECK_OK(odc_scatter_add(t.shard, buffer, t.numel, stream));
    spoil_gradients(t, buffer, stream);
    free_buffer(t, buffer);
}

void add_full(tensor t, const void *full) {
    size_t bytes = t.numel * type_size(t.gradient_type);
    void *buffer = new_buffer(t, t.gradient_type);
    void *stream = some_stream(t);
    if (is_gpu(t)) {
        gpu_write(buffer, full, bytes);
    } else {
        memcpy(buffer, full, bytes);
    }
    CHECK_OK(odc_scatter_add(t.shard, buffer, t.numel, stream));
    free_buffer(t, buffer);
}

/* What a stream reads now, without a fence: after a sync the sums are final for all streams. */
void *new_sums(tensor t) {
    odc_slice slice = slice_of(t);
    size_t bytes = slice.numel * type_size(slice.accumulator_type);
    void *sums = malloc(bytes + 1);
    CHECK(sums != NULL);
    if (bytes > 0 && is_gpu(t)) {
        void *stream = some_stream(t);
        void *copy = gpu_new(bytes);
        gpu_copy(copy, slice.gradients, bytes, stream);
        gpu_wait(stream);
        gpu_read(sums, copy, bytes);
        gpu_free_later(copy);
    } else if (bytes > 0) {
        memcpy(sums, slice.gradients, bytes);
    }
    return sums;
}

void check_sums(tensor t, const uint64_t *salts, size_t count) {
    odc_slice slice = slice_of(t);
    int copied = is_gpu(t) && t.gradient_type != 0 && slice.numel > 0;
    if (copied) {
        slice.gradients = new_sums(t);
    }
    for (uint64_t i = 0; t.gradient_type != 0 && i < slice.numel; ++i) {
        double sum = 0;
        for (size_t k = 0; k < count; ++k) {
            sum += small_value(salts[k], slice.offset + i);
        }
        double got = get_element(slice.accumulator_type, slice.gradients, i);
        if (got != sum) {
            CHECK_EQUAL(got, sum);
        }
    }
    if (copied) {
        free(slice.gradients);
    }
}

void use_once(odc_context *context, const tensor *tensors, size_t count, uint64_t salt) {
    uint64_t salts[64];
    int size = odc_size(context);
    for (size_t i = 0; i < count; ++i) {
        write_parameters(tensors[i], salt + i);
    }
    CHECK_OK(odc_publish_all(context, NULL));
    for (size_t i = 0; i < count; ++i) {
        if (tensors[i].parameter_type != 0) {
            check_gather(tensors[i], salt + i);
        }
        if (tensors[i].gradient_type != 0) {
            add_gradients(tensors[i], salt + 100 * (uint64_t)(odc_rank(context) + 1));
        }
    }
    CHECK_OK(odc_minibatch_sync(context));
    for (int rank = 0; rank < size; ++rank) {
        salts[rank] = salt + 100 * (uint64_t)(rank + 1);
    }
    for (size_t i = 0; i < count; ++i) {
        check_sums(tensors[i], salts, (size_t)size);
    }
    if (tests_gpu()) {
        gpu_collect();
    }
}
