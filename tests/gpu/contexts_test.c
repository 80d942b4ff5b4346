/* SPDX-License-Identifier: Apache-2.0 */
/* What calls leave unchanged of the caller's state, the current context and captures; and several contexts in a process. */
#include "gpu.h"
#include "model.h"

#include <pthread.h>
#include <stdio.h>

enum { NUMEL = 3000, A_STREAM = 3 };

static tensor plain(odc_context *context, const char *name) {
    return make_tensor(context, name, NUMEL, ODC_F32, ODC_F32);
}

/* ---- The caller's context, and its capture mode ---- */

static void every_call(int rank, const char *job, int current) {
    odc_context *context = NULL;
    odc_config config = config_of(rank, 2, job);
    odc_shard *shard = NULL;
    odc_shard_desc desc = describe("layer", NUMEL, ODC_F32, ODC_F32);
    odc_shard_desc large = describe("large", (uint64_t)1 << 42, ODC_F32, ODC_F32);
    uint64_t operation = 0;
    void *buffer = gpu_new(NUMEL * 4);
    void *stream = gpu_new_stream(0, 1);
    gpu_make_current(current);
#define KEEPS(call)                         \
    do {                                    \
        CHECK_OK(call);                     \
        CHECK(gpu_is_current(current));     \
        CHECK_EQUAL(gpu_capture_mode(), 0); \
    } while (0)
    KEEPS(odc_init(&config, &context));
    KEEPS(odc_register_shard(context, &desc, &shard));
    CHECK_EQUAL(odc_register_shard(context, &large, &(odc_shard *){NULL}), ODC_ERROR_NO_MEMORY);
    CHECK(gpu_is_current(current));
    for (int minibatch = 0; minibatch < 2; ++minibatch) {
        KEEPS(odc_publish(shard, stream));
        KEEPS(odc_gather(shard, buffer, NUMEL, stream));
        KEEPS(odc_scatter_add(shard, buffer, NUMEL, stream));
        KEEPS(odc_gather_start(shard, buffer, NUMEL, stream, &operation));
        KEEPS(odc_wait(context, operation));
        CHECK_EQUAL(odc_gather(shard, &operation, NUMEL, stream), ODC_ERROR_ARGUMENT);
        CHECK(gpu_is_current(current));
        KEEPS(odc_minibatch_sync(context));
    }
    KEEPS(odc_release_shard(shard));
#undef KEEPS
    odc_destroy(context);
    CHECK(gpu_is_current(current));
    gpu_make_current(0);
    gpu_end_stream(stream);
    gpu_free(buffer);
}

static void with_other_contexts(int rank, int size, const char *job, void *arg) {
    char name[128];
    (void)size;
    (void)arg;
    for (int current = -1; current < gpu_count() && current < 2; ++current) {
        snprintf(name, sizeof name, "%s.%d", job, current + 1);
        every_call(rank, name, current);
    }
}

static void every_call_keeps_the_callers_context(void **state) {
    (void)state;
    run_processes(2, with_other_contexts, NULL);
}

/* ---- Another thread's capture ---- */

typedef struct capturing {
    atomic_int ended;
    void *stream;
} capturing;

static void *capture_again_and_again(void *arg) {
    capturing *all = arg;
    gpu_make_current(0);
    while (!read_flag(&all->ended)) {
        gpu_begin_capture(all->stream);
        sleep_us(200);
        CHECK_EQUAL(gpu_end_capture(all->stream), 0);
        sleep_us(50);
    }
    return NULL;
}

static void use_beside_a_capture(odc_context *context, void *buffer) {
    tensor t = plain(context, "layer");
    tensor more[2] = {plain(context, "second"), plain(context, "third")};
    void *stream = gpu_stream(A_STREAM);
    for (int minibatch = 0; minibatch < 3; ++minibatch) {
        CHECK_OK(odc_publish(t.shard, stream));
        CHECK_OK(odc_publish_all(context, stream));
        CHECK_OK(odc_gather(t.shard, buffer, NUMEL, stream));
        CHECK_OK(odc_scatter_add(t.shard, buffer, NUMEL, stream));
        CHECK_OK(odc_gather(more[1].shard, buffer, NUMEL, stream));
        CHECK_OK(odc_minibatch_sync(context));
    }
    CHECK_OK(odc_release_shard(more[0].shard));
}

/* Only the library is called while the other thread captures: most other CUDA calls would invalidate the capture. */
static void beside_a_capture(int rank, int size, const char *job, void *arg) {
    capturing all = {0, gpu_new_stream(0, 1)};
    void *buffer = gpu_new(NUMEL * 4);
    pthread_t thread;
    (void)arg;
    CHECK(pthread_create(&thread, NULL, capture_again_and_again, &all) == 0);
    for (int round = 0; round < 8; ++round) {
        char name[128];
        snprintf(name, sizeof name, "%s.%d", job, round);
        odc_context *context = join(rank, size, name);
        use_beside_a_capture(context, buffer);
        odc_destroy(context);
    }
    set_flag(&all.ended, 1);
    pthread_join(thread, NULL);
    gpu_end_stream(all.stream);
    gpu_free(buffer);
}

static void no_call_breaks_the_capture_of_another_thread(void **state) {
    (void)state;
    run_processes(1, beside_a_capture, NULL);
    needs_processes("one rank's program may not capture while another one's waits for a stream");
    run_processes(2, beside_a_capture, NULL);
}

/* ---- Contexts of one process ---- */

static void several_contexts(int rank, int size, const char *job, void *arg) {
    enum { CONTEXTS = 3 };
    odc_context *contexts[CONTEXTS];
    tensor tensors[CONTEXTS];
    odc_config config = config_of(rank, size, job);
    (void)arg;
    for (int i = 0; i < CONTEXTS; ++i) {
        char group[24];
        snprintf(group, sizeof group, "group %d", i);
        config.group = group;
        CHECK_OK(odc_init(&config, &contexts[i]));
        tensors[i] = plain(contexts[i], "layer");
    }
    for (uint64_t round = 0; round < 3; ++round) {
        for (uint64_t i = 0; i < CONTEXTS; ++i) {
            use_once(contexts[i], &tensors[i], 1, round * 10 + i);
        }
    }
    odc_destroy(contexts[1]);
    use_once(contexts[0], &tensors[0], 1, 50);
    use_once(contexts[2], &tensors[2], 1, 51);
    odc_destroy(contexts[0]);
    odc_destroy(contexts[2]);
}

static void contexts_of_one_process_use_one_gpu(void **state) {
    (void)state;
    run_processes(2, several_contexts, NULL);
}

/* One process uses two GPUs, with a job each. */
static void a_context_on_each(int rank, int size, const char *job, void *arg) {
    static const char *const devices[] = {"cuda:0", "cuda:1"};
    odc_context *contexts[2];
    odc_config config = config_of(rank, size, job);
    (void)arg;
    if (gpu_count() < 2) {
        printf("skipped: it needs a second GPU\n");
        return;
    }
    for (int i = 0; i < 2; ++i) {
        config.device = devices[i];
        config.group = devices[i];
        CHECK_OK(odc_init(&config, &contexts[i]));
    }
    for (int i = 0; i < 2; ++i) {
        tensor t = plain(contexts[i], "layer");
        void *stream = gpu_new_stream(i, 1);
        void *buffer = gpu_new_on(i, NUMEL * 4);
        float values[NUMEL];
        for (uint64_t k = 0; k < NUMEL; ++k) {
            values[k] = (float)small_value(9, k);
        }
        gpu_write(buffer, values, sizeof values);
        CHECK_OK(odc_publish(t.shard, stream));
        CHECK_OK(odc_scatter_add(t.shard, buffer, NUMEL, stream));
        CHECK_OK(odc_gather(t.shard, buffer, NUMEL, stream));
        CHECK_OK(odc_minibatch_sync(contexts[i]));
        odc_slice slice = slice_of(t);
        gpu_read(values, slice.gradients, slice.numel * 4);
        for (uint64_t k = 0; k < slice.numel; ++k) {
            CHECK(values[k] == (float)size * small_value(9, slice.offset + k));
        }
        gpu_end_stream(stream);
        gpu_free(buffer);
    }
    odc_destroy(contexts[0]);
    odc_destroy(contexts[1]);
}

static void one_process_uses_two_gpus(void **state) {
    (void)state;
    run_processes(2, a_context_on_each, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_keeps_the_callers_context),
        cmocka_unit_test(no_call_breaks_the_capture_of_another_thread),
        cmocka_unit_test(contexts_of_one_process_use_one_gpu),
        cmocka_unit_test(one_process_uses_two_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
