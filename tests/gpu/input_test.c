/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input for GPU memory: a status and one clear sentence, and nothing changes. */
#include "gpu.h"
#include "model.h"

#include <stdio.h>
#include <unistd.h>

enum { NUMEL = 1000 };

static tensor plain(odc_context *context, const char *name) {
    return make_tensor(context, name, NUMEL, ODC_F32, ODC_F32);
}

static tensor on_host(odc_context *context, const char *name) {
    odc_shard_desc desc = describe(name, NUMEL, ODC_F32, ODC_F32);
    desc.memory = ODC_HOST_MEMORY;
    return make_described(context, &desc);
}

static int has_two_gpus(void) {
    int two = gpu_count() >= 2;
    if (!two) {
        printf("skipped: it needs a second GPU\n");
    }
    return two;
}

/* ---- Devices ---- */

static void refuse_device(const char *job, const char *device, odc_status status, const char *text, const char *more) {
    odc_context *context = (odc_context *)1;
    odc_config config = config_of(0, 1, job);
    config.device = device;
    CHECK_ERROR(odc_init(&config, &context), status, text, more);
    CHECK(context == NULL);
    config.device = NULL;
    setenv("ODC_DEVICE", device, 1);
    CHECK_ERROR(odc_init(&config, &context), status, text, more);
    CHECK(context == NULL);
    unsetenv("ODC_DEVICE");
}

static void bad_devices(int rank, int size, const char *job, void *arg) {
    static const char *const malformed[] = {
        "gpu0", "cuda:", "cuda:-1", "CUDA:0", "cuda:0x", "cuda: 1", "cuda", "0", "cuda:99999999999999999999"};
    (void)rank;
    (void)size;
    (void)arg;
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; ++i) {
        refuse_device(job, malformed[i], ODC_ERROR_ARGUMENT, malformed[i], "cuda:0");
    }
    refuse_device(job, "cuda:999", ODC_ERROR_ARGUMENT, "cuda:999 does not exist", "this process sees");
    odc_context *context = join(0, 1, job);
    use_once(context, (tensor[]){plain(context, "layer")}, 1, 1);
    odc_destroy(context);
}

static void a_device_that_does_not_exist_is_refused(void **state) {
    (void)state;
    run_processes(1, bad_devices, NULL);
}

static void by_environment(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    (void)arg;
    setenv("ODC_DEVICE", config.device, 1);
    config.device = NULL;
    CHECK_OK(odc_init(&config, &context));
    use_once(context, (tensor[]){plain(context, "layer")}, 1, 1);
    odc_destroy(context);
    unsetenv("ODC_DEVICE");
}

static void the_device_can_be_named_by_the_environment(void **state) {
    (void)state;
    run_processes(1, by_environment, NULL);
}

static void unfit(int rank, int size, const char *job, void *arg) {
    const char *const *text = arg;
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_UNSUPPORTED, "cuda:0 cannot be used", text[0], text[1]);
    config.device = NULL; /* host memory needs no GPU */
    CHECK_OK(odc_init(&config, &context));
    use_once(context, (tensor[]){on_host(context, "layer")}, 1, 1);
    odc_destroy(context);
}

static void an_old_gpu_is_refused(void **state) {
    const char *text[] = {"compute capability is 7.5", "8.0"};
    (void)state;
    needs_fake_cuda("it simulates an old GPU");
    setenv("FAKE_CUDA_CAPABILITY", "75", 1);
    run_processes(1, unfit, text);
    unsetenv("FAKE_CUDA_CAPABILITY");
}

static void an_old_driver_is_refused(void **state) {
    const char *text[] = {"the driver is of CUDA 12.0", "12.1 or later"};
    (void)state;
    needs_fake_cuda("it simulates an old driver");
    setenv("FAKE_CUDA_VERSION", "12000", 1);
    run_processes(1, unfit, text);
    unsetenv("FAKE_CUDA_VERSION");
}

static void a_driver_that_cannot_compile_the_kernels_is_refused(void **state) {
    static const struct {
        const char *fail, *text[2];
    } cases[] = {
        {"cuModuleLoadData:0:221", {"does not load the kernels", "libnvidia-ptxjitcompiler.so.1"}},
        {"cuModuleLoadData:0:222", {"does not load the kernels", "CUDA 12.1 or later"}},
        {"cuModuleLoadData:0:223", {"does not load the kernels", "unset CUDA_DISABLE_PTX_JIT"}},
    };
    (void)state;
    needs_fake_cuda("a driver's calls cannot be made to fail at will");
    needs_processes("the driver's calls fail for a process");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        setenv("FAKE_CUDA_FAIL", cases[i].fail, 1);
        run_processes(1, unfit, (void *)cases[i].text);
    }
    unsetenv("FAKE_CUDA_FAIL");
}

static void uses_an_older_driver(odc_context *context, void *arg) {
    (void)arg;
    use_once(context, (tensor[]){plain(context, "layer")}, 1, 1);
}

static void a_driver_without_the_newer_functions_is_enough(void **state) {
    (void)state;
    needs_fake_cuda("it simulates an older driver");
    setenv("FAKE_CUDA_VERSION", "12010", 1);
    setenv("ODC_TEST_DEVICES", "2", 1); /* for copies between GPUs */
    run_ranks(2, uses_an_older_driver, NULL);
    unsetenv("FAKE_CUDA_VERSION");
    setenv("ODC_TEST_DEVICES", "1", 1);
}

/* ---- Descriptions ---- */

static void bad_descriptions(odc_context *context, void *arg) {
    odc_shard *shard = (odc_shard *)1;
    odc_shard_desc desc = describe("layer", NUMEL, ODC_F32, ODC_F32);
    (void)arg;
    desc.memory = 7;
    CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_ARGUMENT, "\"layer\"", "memory 7",
                "ODC_GPU_MEMORY");
    CHECK(shard == NULL);
    desc.memory = ODC_GPU_MEMORY;
    desc.reserved = 1;
    CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_UNSUPPORTED, "\"layer\"", "reserved is 1");
    use_once(context, (tensor[]){plain(context, "layer"), on_host(context, "host")}, 2, 1);
}

static void a_bad_description_is_refused(void **state) {
    (void)state;
    run_ranks(1, bad_descriptions, NULL);
}

static void without_gpus(int rank, int size, const char *job, void *arg) {
    const int *has_gpu = arg;
    odc_context *context = NULL;
    odc_shard *shard = NULL;
    odc_shard_desc desc = describe("layer", NUMEL, ODC_F32, ODC_F32);
    odc_config config = config_of(rank, size, job);
    config.device = has_gpu[rank] ? config.device : NULL;
    CHECK_OK(odc_init(&config, &context));
    for (int i = 0; i < size; ++i) {
        if (!has_gpu[i]) {
            char name[32];
            snprintf(name, sizeof name, "rank %d has no GPU", has_gpu[rank] ? i : rank);
            CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_UNSUPPORTED, "\"layer\"", name,
                        "config.device", "ODC_DEVICE");
        }
    }
    use_once(context, (tensor[]){on_host(context, "host")}, 1, 1);
    if (has_gpu[0]) { /* ranks with a GPU can use it among themselves */
        desc.ranks = (int32_t[]){0};
        desc.rank_count = 1;
        if (rank == 0) {
            tensor alone = make_described(context, &desc);
            write_parameters(alone, 3);
            CHECK_OK(odc_publish_all(context, NULL));
            check_gather(alone, 3);
        } else {
            CHECK_OK(odc_publish_all(context, NULL));
        }
        CHECK_OK(odc_minibatch_sync(context));
        if (rank == 0) {
            gpu_collect();
        }
    }
    odc_destroy(context);
}

static void gpu_memory_without_a_gpu_is_refused(void **state) {
    int nobody[] = {0, 0};
    int first[] = {1, 0};
    (void)state;
    run_processes(1, without_gpus, nobody);
    run_processes(2, without_gpus, nobody);
    run_processes(2, without_gpus, first);
}

/* ---- Buffers ---- */

static void bad_buffers(odc_context *context, void *arg) {
    enum { BYTES = NUMEL * 4 };
    tensor t = plain(context, "layer");
    tensor host = on_host(context, "host");
    float in_host_memory[NUMEL] = {0};
    void *on_gpu = gpu_new(BYTES);
    uint64_t operation = 0;
    int other = strcmp(gpu_of(odc_rank(context)), "cuda:0") == 0;
    (void)arg;
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_ERROR(odc_gather(t.shard, in_host_memory, NUMEL, NULL), ODC_ERROR_ARGUMENT, "odc_gather", "\"layer\"",
                "host memory", "cuda:0");
    CHECK_ERROR(odc_scatter_add(t.shard, in_host_memory, NUMEL, NULL), ODC_ERROR_ARGUMENT, "odc_scatter_add",
                "\"layer\"", "host memory", "cuda:0");
    CHECK_ERROR(odc_gather_start(t.shard, in_host_memory, NUMEL, NULL, &operation), ODC_ERROR_ARGUMENT, "host memory");
    CHECK_ERROR(odc_gather(t.shard, NULL, NUMEL, NULL), ODC_ERROR_ARGUMENT, "\"layer\"", "NULL");
    CHECK_ERROR(odc_scatter_add(t.shard, NULL, NUMEL, NULL), ODC_ERROR_ARGUMENT, "\"layer\"", "NULL");
    CHECK_ERROR(odc_gather(t.shard, on_gpu, NUMEL - 1, NULL), ODC_ERROR_ARGUMENT, "999", "1000");
    CHECK_ERROR(odc_gather(host.shard, on_gpu, NUMEL, NULL), ODC_ERROR_ARGUMENT, "odc_gather", "\"host\"",
                "is in GPU memory", "host memory");
    CHECK_ERROR(odc_scatter_add(host.shard, on_gpu, NUMEL, NULL), ODC_ERROR_ARGUMENT, "odc_scatter_add", "\"host\"",
                "is in GPU memory");
    CHECK_ERROR(odc_scatter_add_start(host.shard, on_gpu, NUMEL, NULL, &operation), ODC_ERROR_ARGUMENT,
                "is in GPU memory");
    if (has_two_gpus()) {
        void *elsewhere = gpu_new_on(other, BYTES);
        CHECK_ERROR(odc_gather(t.shard, elsewhere, NUMEL, NULL), ODC_ERROR_ARGUMENT, "\"layer\"", "memory of cuda:1",
                    "in that of cuda:0");
        CHECK_ERROR(odc_scatter_add(t.shard, elsewhere, NUMEL, NULL), ODC_ERROR_ARGUMENT, "memory of cuda:1");
        gpu_free(elsewhere);
    }
    CHECK_OK(odc_minibatch_sync(context));
    check_sums(t, NULL, 0);
    check_sums(host, NULL, 0);
    gpu_free(on_gpu);
    use_once(context, (tensor[]){t, host}, 2, 5);
}

static void a_buffer_that_is_elsewhere_is_refused(void **state) {
    (void)state;
    run_ranks(2, bad_buffers, NULL);
}

/* ---- Streams ---- */

/* Every call that takes a stream refuses this one. */
static void refuse_stream(odc_context *context, const tensor *two, void *buffer, void *stream, const char *text) {
    const tensor published = two[0];
    const tensor other = two[1];
    uint64_t operation = 0;
    CHECK_ERROR(odc_gather(published.shard, buffer, NUMEL, stream), ODC_ERROR_ARGUMENT, "odc_gather", text);
    CHECK_ERROR(odc_scatter_add(published.shard, buffer, NUMEL, stream), ODC_ERROR_ARGUMENT, "odc_scatter_add", text);
    CHECK_ERROR(odc_gather_start(published.shard, buffer, NUMEL, stream, &operation), ODC_ERROR_ARGUMENT, text);
    CHECK_ERROR(odc_scatter_add_start(published.shard, buffer, NUMEL, stream, &operation), ODC_ERROR_ARGUMENT, text);
    CHECK_ERROR(odc_publish(other.shard, stream), ODC_ERROR_ARGUMENT, "odc_publish", text);
    CHECK_ERROR(odc_publish_all(context, stream), ODC_ERROR_ARGUMENT, text);
}

static void bad_streams(odc_context *context, void *arg) {
    tensor early = plain(context, "early");
    tensor host = on_host(context, "a host shard"); /* by its name the first of all to be published */
    tensor late = plain(context, "late");
    const tensor two[] = {early, late};
    void *buffer = gpu_new(NUMEL * 4);
    void *stream = gpu_new_stream(0, 1);
    void *blocking = gpu_new_stream(0, 0);
    float full[NUMEL];
    (void)arg;
    write_parameters(late, 7);
    write_parameters(host, 7);
    CHECK_OK(odc_publish(early.shard, NULL));
    gpu_wait(NULL);
    gpu_begin_capture(stream);
    refuse_stream(context, two, buffer, stream, "is being captured");
    CHECK_EQUAL(gpu_end_capture(stream), 0); /* the capture is still valid */
    gpu_begin_capture(blocking);
    refuse_stream(context, two, buffer, NULL, "captured");
    CHECK_EQUAL(gpu_end_capture(blocking), 0);
    if (has_two_gpus()) {
        void *elsewhere = gpu_new_stream(1, 1);
        refuse_stream(context, two, buffer, elsewhere, "primary context of cuda:0");
        gpu_end_stream(elsewhere);
    }
    CHECK_ERROR(odc_publish(host.shard, stream), ODC_ERROR_UNSUPPORTED, "stream", "\"a host shard\"", "host memory");
    /* None of these calls published it. */
    CHECK_ERROR(odc_gather(host.shard, full, NUMEL, NULL), ODC_ERROR_PHASE, "publish");
    CHECK_OK(odc_publish_all(context, stream));
    CHECK_ERROR(odc_gather(host.shard, full, NUMEL, stream), ODC_ERROR_UNSUPPORTED, "stream", "host memory");
    CHECK_ERROR(odc_scatter_add(host.shard, full, NUMEL, stream), ODC_ERROR_UNSUPPORTED, "stream", "host memory");
    check_gather(late, 7);
    check_gather(host, 7);
    CHECK_OK(odc_minibatch_sync(context));
    check_sums(early, NULL, 0);
    use_once(context, (tensor[]){early, host, late}, 3, 5);
    gpu_end_stream(stream);
    gpu_end_stream(blocking);
    gpu_free(buffer);
}

static void a_stream_that_cannot_be_used_is_refused(void **state) {
    (void)state;
    run_ranks(1, bad_streams, NULL); /* captures restrict all threads of a process */
}

static void a_destroyed_stream(odc_context *context, void *arg) {
    tensor t = plain(context, "layer");
    void *stream = gpu_new_stream(0, 1);
    (void)arg;
    gpu_end_stream(stream);
    CHECK_ERROR(odc_publish(t.shard, stream), ODC_ERROR_ARGUMENT, "odc_publish", "is not a CUDA stream");
    use_once(context, &t, 1, 5);
}

static void a_stream_that_is_none_is_refused(void **state) {
    (void)state;
    needs_fake_cuda("a GPU's driver may crash");
    run_ranks(2, a_destroyed_stream, NULL);
}

/* ---- Memory ---- */

static void too_large(odc_context *context, void *arg) {
    const uint64_t huge = (uint64_t)1 << 42;
    odc_shard_desc desc = describe("large", huge, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    int fake = arg != NULL;
    struct fake_cuda_counts before = {0};
    char needed[32];
    snprintf(needed, sizeof needed, "need %llu", (unsigned long long)(huge * 8));
    if (fake) {
        before = gpu_live();
    }
    for (int i = 0; i < 3; ++i) {
        CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_NO_MEMORY, "shard \"large\"", "cuda:0",
                    needed, "free");
        CHECK(shard == NULL);
    }
    if (fake) {
        gpu_check_live(before);
    }
    odc_shard_desc both[] = {describe("in host memory", 1, ODC_F32, ODC_F32), desc};
    odc_shard *shards[2] = {NULL, NULL};
    both[0].memory = ODC_HOST_MEMORY;
    CHECK_ERROR(odc_register_shards(context, both, 2, shards), ODC_ERROR_NO_MEMORY, "shard \"large\": ", needed);
    use_once(context, (tensor[]){plain(context, "large")}, 1, 1);
}

static void overflows(odc_context *context, void *arg) {
    (void)arg;
    check_overflows(context);
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    run_ranks(2, overflows, NULL);
}

static void what_is_too_large_is_refused_with_what_there_is(void **state) {
    (void)state;
    run_ranks(1, too_large, NULL);
}

static void what_is_too_large_leaves_nothing_behind(void **state) {
    (void)state;
    needs_fake_cuda("it counts what there is");
    run_ranks(1, too_large, &(int){1});
}

static void without_room_to_map(odc_context *context, void *arg) {
    static const char *const calls[] = {"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemHostRegister"};
    const odc_shard_desc desc = describe("layer", NUMEL, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    (void)arg;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
        gpu_fail(calls[i], 1, 2);
        int of_the_host = strcmp(calls[i], "cuMemHostRegister") == 0;
        CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_NO_MEMORY, calls[i], "cuda:0",
                    "no memory for", of_the_host ? "bytes of host memory" : "bytes are free");
        gpu_fail_no_more();
    }
    use_once(context, (tensor[]){plain(context, "layer")}, 1, 1);
}

static void a_lack_of_memory_fails_the_call_and_not_the_job(void **state) {
    (void)state;
    needs_fake_cuda("a driver's calls cannot be made to fail at will");
    needs_processes("the driver's calls fail for a process");
    run_ranks(1, without_room_to_map, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_does_not_exist_is_refused),
        cmocka_unit_test(the_device_can_be_named_by_the_environment),
        cmocka_unit_test(an_old_gpu_is_refused),
        cmocka_unit_test(an_old_driver_is_refused),
        cmocka_unit_test(a_driver_that_cannot_compile_the_kernels_is_refused),
        cmocka_unit_test(a_driver_without_the_newer_functions_is_enough),
        cmocka_unit_test(a_bad_description_is_refused),
        cmocka_unit_test(gpu_memory_without_a_gpu_is_refused),
        cmocka_unit_test(a_buffer_that_is_elsewhere_is_refused),
        cmocka_unit_test(a_stream_that_cannot_be_used_is_refused),
        cmocka_unit_test(a_stream_that_is_none_is_refused),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(what_is_too_large_is_refused_with_what_there_is),
        cmocka_unit_test(what_is_too_large_leaves_nothing_behind),
        cmocka_unit_test(a_lack_of_memory_fails_the_call_and_not_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
