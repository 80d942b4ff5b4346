/* SPDX-License-Identifier: Apache-2.0 */
/* What exact sums ask of a GPU is asked when a shard has them: their kernels, and atomics on integers between GPUs. */
#include "exact_model.h"

#include "gpu.h"

#include <stdio.h>

enum { OUT_OF_MEMORY = 2, INVALID_PTX = 218 };

static odc_status register_named(odc_context *context, const char *name, int32_t sum, odc_shard **shard) {
    odc_shard_desc desc = describe_exact(name, 1000, ODC_F32, ODC_F32);
    desc.sum = sum;
    return odc_register_shard(context, &desc, shard);
}

/* An addition of ones by every rank to a shard that is registered now. */
static void use(odc_context *context, const char *name) {
    odc_shard_desc desc = describe_exact(name, 1000, ODC_F32, ODC_F32);
    tensor t = make_described(context, &desc);
    void *buffer = new_buffer(t, ODC_F32);
    float ones[1000];
    for (int i = 0; i < 1000; ++i) {
        ones[i] = 1;
    }
    gpu_write(buffer, ones, sizeof ones);
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_scatter_add(t.shard, buffer, 1000, some_stream(t)));
    CHECK_OK(odc_minibatch_sync(context));
    float *sums = new_sums(t);
    CHECK(sums[0] == (float)odc_size(context));
    CHECK_EQUAL(gpu_enqueued().lazy_loads, 0);
    free(sums);
    free_buffer(t, buffer);
    gpu_collect();
}

static void kernels(odc_context *context, void *arg) {
    odc_shard *shard = NULL;
    (void)arg; /* the second load of this process fails: odc_init has made one */
    CHECK_OK(register_named(context, "plain", 0, &shard));
    CHECK_EQUAL(register_named(context, "no room", ODC_SUM_EXACT, &shard), ODC_ERROR_NO_MEMORY);
    CHECK_SENTENCE(odc_last_error(), "\"no room\"", "the kernels of exact sums", "cuModuleLoadData on cuda:0");
    gpu_fail("cuModuleLoadData", 0, INVALID_PTX); /* neither machine code nor PTX */
    CHECK_EQUAL(register_named(context, "old driver", ODC_SUM_EXACT, &shard), ODC_ERROR_UNSUPPORTED);
    CHECK_SENTENCE(odc_last_error(), "\"old driver\"", "cuda:0 cannot make exact sums", "does not load");
    gpu_fail_no_more();
    gpu_fail("cuModuleLoadData", 2, INVALID_PTX); /* one load is enough for all shards */
    use(context, "layer");
    use(context, "another");
    gpu_fail_no_more();
}

static void the_kernels_are_loaded_when_the_first_such_shard_is_registered(void **state) {
    (void)state;
    char text[64];
    snprintf(text, sizeof text, "cuModuleLoadData:2:%d", OUT_OF_MEMORY);
    setenv("FAKE_CUDA_FAIL", text, 1);
    run_ranks(1, kernels, NULL);
    unsetenv("FAKE_CUDA_FAIL");
}

static void uses_both(int rank, int size, const char *job, void *arg) {
    odc_context *context = join(rank, size, job);
    (void)arg;
    use_once(context, (tensor[]){make_tensor(context, "plain", 1000, ODC_F32, ODC_F32)}, 1, 1);
    use(context, "exact");
    odc_destroy(context);
}

/* The library has machine code for GPUs of 8.x and 9.x, and PTX for later ones. */
static void machine_code_is_loaded_or_ptx_compiled(void **state) {
    static const struct {
        const char *capability, *setting;
    } cases[] = {{"80", "CUDA_DISABLE_PTX_JIT"},
                 {"89", "CUDA_DISABLE_PTX_JIT"},
                 {"90", "CUDA_DISABLE_PTX_JIT"},
                 {"90", "CUDA_FORCE_PTX_JIT"},
                 {"100", "CUDA_FORCE_PTX_JIT"}};
    (void)state;
    needs_processes("the driver reads its settings once a process");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        setenv("FAKE_CUDA_CAPABILITY", cases[i].capability, 1);
        setenv(cases[i].setting, "1", 1);
        run_processes(1, uses_both, NULL);
        unsetenv(cases[i].setting);
    }
    unsetenv("FAKE_CUDA_CAPABILITY");
}

static void floats_only(odc_context *context, void *arg) {
    odc_shard *shard = NULL;
    int rank = odc_rank(context);
    char other[32];
    (void)arg;
    snprintf(other, sizeof other, "rank %d", 1 - rank);
    odc_route route = {.struct_size = sizeof route};
    CHECK_OK(odc_get_route(context, 1 - rank, ODC_GPU_MEMORY, &route));
    CHECK(strcmp(route.access, "direct") == 0);
    CHECK_EQUAL(register_named(context, "layer", ODC_SUM_EXACT, &shard), ODC_ERROR_UNSUPPORTED);
    CHECK_SENTENCE(odc_last_error(), "\"layer\"", other, "atomics for floats only", "ODC_TRANSPORTS=shm");
    tensor t = make_tensor(context, "plain", 1000, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 1);
}

static void through_host_memory(odc_context *context, void *arg) {
    (void)arg;
    use(context, "layer");
}

static void atomics_on_integers_are_asked_of_gpus_that_need_them(void **state) {
    (void)state;
    setenv("FAKE_CUDA_P2P", "floats", 1);
    run_ranks(2, floats_only, NULL);
    setenv("ODC_TRANSPORTS", "shm", 1);
    run_ranks(2, through_host_memory, NULL);
    unsetenv("ODC_TRANSPORTS");
    unsetenv("FAKE_CUDA_P2P");
}

int main(void) {
    if (!tests_gpu() || getenv("FAKE_CUDA_DEVICES") == NULL) {
        puts("skipped: it simulates GPUs, so it needs the driver for tests (ctest gives it)");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernels_are_loaded_when_the_first_such_shard_is_registered),
        cmocka_unit_test(machine_code_is_loaded_or_ptx_compiled),
        cmocka_unit_test(atomics_on_integers_are_asked_of_gpus_that_need_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
