/* SPDX-License-Identifier: Apache-2.0 */
/* The path between GPUs, how it is used, and the statistics of it. */
#include "gpu.h"
#include "model.h"

#include <stdio.h>

enum { NUMEL = 1001 };

static odc_route route_to(odc_context *context, int rank) {
    odc_route route = {.struct_size = sizeof route};
    CHECK_OK(odc_get_route(context, rank, ODC_GPU_MEMORY, &route));
    return route;
}

/* ---- Pairs that reach each other's memory ---- */

static void are_direct(odc_context *context, void *arg) {
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    for (int rank = 0; rank < odc_size(context); ++rank) {
        odc_route route = route_to(context, rank);
        CHECK(route.transport != NULL && strcmp(route.transport, "cuda") == 0);
        CHECK(strcmp(route.access, "direct") == 0);
        CHECK(route.provider == NULL && route.nic == NULL && route.peer_nic == NULL);
        CHECK_SENTENCE(route.why, rank == odc_rank(context) ? "the same GPU" : (const char *)arg);
    }
    use_once(context, &t, 1, 3);
}

static void ranks_on_one_gpu_are_direct(void **state) {
    (void)state;
    run_ranks(3, are_direct, "the same GPU");
}

static void on_two_gpus(odc_context *context, void *arg) {
    if (gpu_count() < 2) {
        printf("skipped: it needs a second GPU\n");
        return;
    }
    are_direct(context, arg);
}

static void ranks_on_two_gpus_are_direct_where_they_can(void **state) {
    (void)state;
    needs_fake_cuda("not every pair of GPUs can");
    setenv("ODC_TEST_DEVICES", "2", 1);
    run_ranks(2, on_two_gpus, "native atomics");
    setenv("ODC_TEST_DEVICES", "1", 1);
}

/* ---- Pairs without peer access ---- */

/* Through host memory, and both ends report why. */
static void are_staged(odc_context *context, void *arg) {
    const char *why = arg;
    odc_route route = route_to(context, 1 - odc_rank(context));
    CHECK(strcmp(route.transport, "shm") == 0);
    CHECK(strcmp(route.access, "staged") == 0);
    CHECK_SENTENCE(route.why, "through host memory", why);
    CHECK_SENTENCE(route.why_not, "cuda: ", why);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    for (uint64_t minibatch = 1; minibatch < 4; ++minibatch) {
        use_once(context, &t, 1, minibatch);
    }
}

static void without(const char *name, const char *p2p, const char *why) {
    needs_fake_cuda("it simulates limits of a pair of GPUs");
    setenv("ODC_TEST_DEVICES", "2", 1);
    setenv("FAKE_CUDA_P2P", p2p, 1);
    run_ranks_of(name, 2, are_staged, (void *)why);
    unsetenv("FAKE_CUDA_P2P");
    setenv("ODC_TEST_DEVICES", "1", 1);
}

static void gpus_without_peer_to_peer_access_go_through_host_memory(void **state) {
    (void)state;
    without(__func__, "none", "no peer-to-peer access");
}

static void gpus_without_native_atomics_go_through_host_memory(void **state) {
    (void)state;
    without(__func__, "no-atomics", "no native atomics");
}

static odc_stats stats_of(odc_context *context) {
    odc_stats stats = {.struct_size = sizeof stats};
    CHECK_OK(odc_get_stats(context, &stats));
    return stats;
}

/* Shared memory that this process has touched, in KiB. */
static long shared_kib(void) {
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "re");
    CHECK(file != NULL);
    while (kib < 0 && fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "RssShmem: %ld", &kib);
    }
    fclose(file);
    return kib;
}

/* A host shadow that local peers may still have pinned serves the next shard. */
static void staged_again_and_again(odc_context *context, void *arg) {
    enum { TIMES = 16, LARGE = 1 << 18 };
    char name[16];
    uint64_t pinned = 0;
    long shared = 0;
    (void)arg;
    for (int i = 0; i < TIMES; ++i) {
        snprintf(name, sizeof name, "layer%d", i);
        tensor t = make_tensor(context, name, LARGE, ODC_F32, ODC_F32);
        uint64_t now = stats_of(context).pinned_bytes;
        CHECK(now > (uint64_t)LARGE / 2 * (4 + 4)); /* its host shadow and staging */
        CHECK(i == 0 || now == pinned);
        pinned = now;
        use_once(context, &t, 1, (uint64_t)i);
        CHECK_OK(odc_release_shard(t.shard));
        CHECK(stats_of(context).pinned_bytes < pinned);
        shared = i == 1 ? shared_kib() : shared;
        CHECK_OK(odc_minibatch_sync(context));
    }
    CHECK(shared_kib() < shared + TIMES / 2 * (LARGE * 4 / 1024)); /* half of what would leak */
}

static void staged_shards_may_come_and_go(void **state) {
    (void)state;
    needs_fake_cuda("it simulates limits of a pair of GPUs");
    setenv("ODC_TEST_DEVICES", "2", 1);
    setenv("FAKE_CUDA_P2P", "none", 1);
    run_ranks(2, staged_again_and_again, NULL);
    unsetenv("FAKE_CUDA_P2P");
    setenv("ODC_TEST_DEVICES", "1", 1);
}

static atomic_int full_lines; /* of this process */

static void count_full(void *arg, int32_t level, const char *line) {
    (void)arg;
    full_lines += level == ODC_LOG_DEBUG && strstr(line, "bounce buffers of GPU memory were all in use ") != NULL;
}

/* Each rank's part of the other's slice is much larger than its bounce buffers. */
static void fill_bounce_buffers(int rank, int size, const char *job, void *arg) {
    enum { LARGE = 1 << 23, MOST = 100 };
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    (void)arg;
    setenv("ODC_STAGING_BYTES", "1048576", 1);
    config.log = count_full;
    config.log_level = ODC_LOG_DEBUG;
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_tensor(context, "layer", LARGE, ODC_F32, ODC_F32);
    double told = 0;
    for (int i = 0; told < size; ++i) {
        CHECK(i < MOST);
        use_once(context, &t, 1, (uint64_t)i);
        told = full_lines > 0;
        CHECK_OK(odc_all_reduce(context, &told, 1, ODC_SUM));
    }
    odc_destroy(context);
}

static void full_bounce_buffers_are_told(void **state) {
    (void)state;
    needs_fake_cuda("it simulates limits of a pair of GPUs");
    needs_processes("it sets ODC_STAGING_BYTES");
    setenv("ODC_TEST_DEVICES", "2", 1);
    setenv("FAKE_CUDA_P2P", "none", 1);
    run_processes(2, fill_bounce_buffers, NULL);
    unsetenv("FAKE_CUDA_P2P");
    setenv("ODC_TEST_DEVICES", "1", 1);
}

typedef struct view {
    const char *visible; /* CUDA_VISIBLE_DEVICES */
    const char *why;
} view;

static void sees_some_gpus(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    const view *mine = (const view *)arg + rank;
    setenv("CUDA_VISIBLE_DEVICES", mine->visible, 1);
    setenv("ODC_TEST_MEMORY", "gpu", 1);
    config.device = "cuda:0";
    gpu_choose(0);
    CHECK_OK(odc_init(&config, &context));
    are_staged(context, (void *)mine->why);
    odc_destroy(context);
}

static void a_gpu_that_the_other_rank_does_not_see_is_reached_through_host_memory(void **state) {
    static const view neither[] = {{"0", "does not see that rank's GPU"}, {"1", "does not see that rank's GPU"}};
    static const view one_does[] = {{"0,1", "cannot use this one's GPU"}, {"1", "does not see that rank's GPU"}};
    (void)state;
    needs_fake_cuda("it needs two GPUs");
    needs_processes("ranks see GPUs of their own");
    setenv("ODC_TEST_MEMORY", "host", 1); /* ranks choose their GPUs themselves */
    run_processes(2, sees_some_gpus, (void *)neither);
    run_processes(2, sees_some_gpus, (void *)one_does);
    setenv("ODC_TEST_MEMORY", "gpu", 1);
}

static void some_have_none(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    (void)arg;
    config.device = rank == 1 ? NULL : config.device;
    CHECK_OK(odc_init(&config, &context));
    for (int other = 0; other < size; ++other) {
        odc_route route = route_to(context, other);
        if (rank == 1 || other == 1) {
            CHECK(route.transport == NULL);
            CHECK_SENTENCE(route.why, "rank 1 has no GPU", "config.device");
        } else {
            CHECK(route.transport != NULL);
        }
    }
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
}

static void a_rank_without_a_gpu_has_no_path(void **state) {
    (void)state;
    run_processes(3, some_have_none, NULL);
}

/* ---- Use of direct routes ---- */

/* Batched copies, unless `arg` is given, but not on the legacy default stream, which does not take them; plain ones inside a
 * GPU. */
static void copies_of_gathers(odc_context *context, void *arg) {
    void *const streams[] = {NULL, (void *)1 /* CU_STREAM_LEGACY */, (void *)2 /* CU_STREAM_PER_THREAD */,
                             gpu_stream(1), gpu_stream(2)};
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    int elsewhere = 0;
    const int batches = arg == NULL;
    for (int rank = 0; rank < odc_size(context); ++rank) {
        elsewhere += strcmp(gpu_of(rank), gpu_of(odc_rank(context))) != 0;
    }
    CHECK(elsewhere > 0);
    write_parameters(t, 7);
    CHECK_OK(odc_publish(t.shard, NULL));
    for (size_t i = 0; i < sizeof streams / sizeof *streams; ++i) {
        const int batched = batches && i >= 2 ? elsewhere : 0;
        void *full = new_buffer(t, ODC_F32);
        struct fake_cuda_work before = gpu_enqueued();
        CHECK_OK(odc_gather(t.shard, full, NUMEL, streams[i]));
        CHECK_EQUAL(gpu_enqueued().batched_copies - before.batched_copies, batched);
        CHECK_EQUAL(gpu_enqueued().copies - before.copies, odc_size(context) - batched);
        gpu_wait(streams[i]);
        check_buffer(t, full, 7);
        gpu_free(full);
    }
    CHECK_OK(odc_minibatch_sync(context));
}

static void copies_between_gpus_go_in_batches_that_overlap_with_kernels(void **state) {
    (void)state;
    needs_fake_cuda("it counts copies");
    needs_processes("the driver counts those of a process");
    setenv("ODC_TEST_DEVICES", "2", 1);
    run_ranks(3, copies_of_gathers, NULL);
    setenv("ODC_COPY_BATCHES", "0", 1);
    run_ranks(3, copies_of_gathers, "one by one");
    unsetenv("ODC_COPY_BATCHES");
    setenv("ODC_TEST_DEVICES", "1", 1);
}

/* The own slice first, then the next ranks', so ranks begin with different ones. */
static void order_of_additions(odc_context *context, void *arg) {
    enum { EACH = 250 };
    const int size = odc_size(context);
    tensor t = make_tensor(context, "layer", (uint64_t)EACH * (uint64_t)size, ODC_F32, ODC_F32);
    char *gradients = new_buffer(t, ODC_F32);
    struct fake_cuda_work work;
    (void)arg;
    write_gradients(t, gradients, 5);
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_scatter_add(t.shard, gradients, t.numel, NULL));
    work = gpu_enqueued();
    CHECK_EQUAL(work.addends, size);
    for (int i = 0; i < size; ++i) {
        const int owner = (odc_rank(context) + i) % size;
        CHECK_EQUAL(work.from[i] - (uintptr_t)gradients, owner * EACH * 4);
    }
    CHECK_OK(odc_minibatch_sync(context));
    gpu_free(gradients);
}

static void additions_begin_with_another_owner_on_each_rank(void **state) {
    (void)state;
    needs_fake_cuda("it tells what kernels were handed");
    needs_processes("the driver tells those of a process");
    run_ranks(4, order_of_additions, NULL);
}

static void large_additions(odc_context *context, void *arg) {
    tensor t = make_tensor(context, "layer", 600000, ODC_F32, ODC_F32); /* 74 tiles */
    use_once(context, &t, 1, 1);
    CHECK_EQUAL(gpu_enqueued().most_blocks, *(unsigned *)arg);
}

static void additions_take_no_more_blocks_than_allowed(void **state) {
    static unsigned limits[] = {1, 3};
    static unsigned half = 66, between = 32; /* of 132 multiprocessors */
    char text[16];
    (void)state;
    needs_fake_cuda("it tells how kernels were launched");
    needs_processes("the driver tells those of a process");
    for (size_t i = 0; i < sizeof limits / sizeof *limits; ++i) {
        snprintf(text, sizeof text, "%u", limits[i]);
        setenv("ODC_ADD_BLOCKS", text, 1);
        run_ranks(2, large_additions, &limits[i]);
    }
    unsetenv("ODC_ADD_BLOCKS");
    run_ranks(2, large_additions, &half);
    setenv("ODC_TEST_DEVICES", "2", 1);
    run_ranks(2, large_additions, &between);
    setenv("ODC_TEST_DEVICES", "1", 1);
}

/* ---- Statistics ---- */

static void is_counted(odc_context *context, void *arg) {
    tensor t = make_tensor(context, "layer", NUMEL, ODC_BF16, ODC_F32);
    void *gathered = new_buffer(t, ODC_BF16);
    void *again = new_buffer(t, ODC_BF16);
    void *added = new_buffer(t, ODC_F32);
    odc_slice slice = slice_of(t);
    uint64_t operation = 0;
    atomic_int *published = arg;
    CHECK_EQUAL(stats_of(context).slice_bytes, slice.numel * (2 + 4));
    if (odc_rank(context) == 1) { /* so late that the other one waits */
        await_flag(published, 1);
        sleep_ms(gpu_is_pretended() ? 20 : 1000); /* a GPU's first operations take long */
    }
    CHECK_OK(odc_publish(t.shard, gpu_stream(2)));
    raise_flag(published);
    CHECK_OK(odc_gather(t.shard, gathered, NUMEL, gpu_stream(2)));
    CHECK_OK(odc_gather_start(t.shard, again, NUMEL, gpu_stream(3), &operation));
    CHECK_OK(odc_scatter_add(t.shard, added, NUMEL, gpu_stream(1)));
    CHECK_ERROR(odc_gather(t.shard, &slice, NUMEL, NULL), ODC_ERROR_ARGUMENT, "host memory"); /* is not counted */
    CHECK_OK(odc_minibatch_sync(context));
    odc_stats stats = stats_of(context);
    CHECK_EQUAL(stats.gather_calls, 2);
    CHECK_EQUAL(stats.gather_bytes, 2 * NUMEL * 2);
    CHECK_EQUAL(stats.scatter_add_calls, 1);
    CHECK_EQUAL(stats.scatter_add_bytes, NUMEL * 4);
    CHECK_EQUAL(stats.syncs, 1);
    CHECK_EQUAL(stats.lock_wait_ns, 0);
    if (odc_rank(context) == 0) {
        odc_peer_stats peer = {.struct_size = sizeof peer};
        CHECK_OK(odc_get_peer_stats(context, 1, &peer));
        CHECK(stats.publish_wait_ns > 0 && peer.publish_wait_ns == stats.publish_wait_ns);
    }
    CHECK_OK(odc_release_shard(t.shard));
    CHECK_EQUAL(stats_of(context).slice_bytes, 0);
    gpu_free(gathered);
    gpu_free(again);
    gpu_free(added);
}

static void what_is_done_on_gpus_is_counted(void **state) {
    (void)state;
    run_ranks(2, is_counted, share(sizeof(atomic_int)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_on_one_gpu_are_direct),
        cmocka_unit_test(ranks_on_two_gpus_are_direct_where_they_can),
        cmocka_unit_test(gpus_without_peer_to_peer_access_go_through_host_memory),
        cmocka_unit_test(gpus_without_native_atomics_go_through_host_memory),
        cmocka_unit_test(staged_shards_may_come_and_go),
        cmocka_unit_test(full_bounce_buffers_are_told),
        cmocka_unit_test(a_gpu_that_the_other_rank_does_not_see_is_reached_through_host_memory),
        cmocka_unit_test(a_rank_without_a_gpu_has_no_path),
        cmocka_unit_test(copies_between_gpus_go_in_batches_that_overlap_with_kernels),
        cmocka_unit_test(additions_begin_with_another_owner_on_each_rank),
        cmocka_unit_test(additions_take_no_more_blocks_than_allowed),
        cmocka_unit_test(what_is_done_on_gpus_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
