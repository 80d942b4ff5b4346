/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input of one rank: a status and one clear sentence, nothing changes and nothing sticks. */
#include "model.h"
#include "rendezvous.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* After all the failed calls the job works as if they had not been made. */
static void check_still_works(odc_context *context, tensor t) {
    write_parameters(t, 4);
    CHECK_OK(odc_publish_all(context, NULL));
    check_gather(t, 4);
    add_gradients(t, 5);
    CHECK_OK(odc_minibatch_sync(context));
    uint64_t salts[8] = {5, 5, 5, 5, 5, 5, 5, 5};
    check_sums(t, salts, (size_t)odc_size(context));
}

static tensor plain(odc_context *context, const char *name) {
    return make_tensor(context, name, 100, ODC_F32, ODC_F32);
}

/* ---- Joining ---- */

#define CHECK_INIT_FAILS(config, status, ...)                          \
    do {                                                               \
        odc_context *context_ = (odc_context *)1;                      \
        CHECK_ERROR(odc_init(config, &context_), status, __VA_ARGS__); \
        CHECK(context_ == NULL);                                       \
    } while (0)

static void bad_configs(int rank, int size, const char *job, void *arg) {
    (void)arg;
    (void)rank;
    (void)size;
    odc_config config = config_of(0, 1, job);
    CHECK_ERROR(odc_init(&config, NULL), ODC_ERROR_ARGUMENT, "NULL");
    config = config_of(0, -1, job);
    CHECK_INIT_FAILS(&config, ODC_ERROR_ARGUMENT, "size", "-1");
    config = config_of(2, 2, job);
    CHECK_INIT_FAILS(&config, ODC_ERROR_ARGUMENT, "rank", "2");
    config = config_of(7, 2, job);
    CHECK_INIT_FAILS(&config, ODC_ERROR_ARGUMENT, "rank", "7");
    config = config_of(-1, 2, job);
    CHECK_INIT_FAILS(&config, ODC_ERROR_ARGUMENT, "rank", "-1");
    config = config_of(0, 1, job);
    config.timeout_ms = -5;
    CHECK_INIT_FAILS(&config, ODC_ERROR_ARGUMENT, "timeout", "-5");
    config = config_of(1, 0, job); /* zero ranks, and no launcher's environment */
    CHECK_INIT_FAILS(&config, ODC_ERROR_ARGUMENT, "rank", "size");
    config = config_of(0, 0, job);
    CHECK_INIT_FAILS(&config, ODC_ERROR_RENDEZVOUS, "odc run", "config");
    CHECK_INIT_FAILS(NULL, ODC_ERROR_RENDEZVOUS, "odc run", "config");
}

static void no_driver(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_shard *shard = NULL;
    odc_shard_desc desc = describe("on a GPU", 100, ODC_F32, ODC_F32);
    odc_config config = config_of(rank, size, job);
    (void)arg;
    config.device = "cuda:0";
    CHECK_INIT_FAILS(&config, ODC_ERROR_UNSUPPORTED, "cuda:0 cannot be used", "libcuda.so.1 not found");
    config.device = "gpu 0";
    CHECK_INIT_FAILS(&config, ODC_ERROR_ARGUMENT, "\"gpu 0\"", "cuda:0");
    context = join(rank, size, job);
    desc.memory = ODC_GPU_MEMORY;
    CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_UNSUPPORTED, "\"on a GPU\"", "rank 0 has no GPU",
                "config.device", "ODC_DEVICE");
    check_still_works(context, plain(context, "layer"));
    odc_destroy(context);
}

static void a_gpu_without_a_driver_is_refused(void **state) {
    (void)state;
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != NULL) {
        printf("skipped: this machine has a CUDA driver\n");
        skip();
    }
    run_processes(1, no_driver, NULL);
}

static void a_bad_config_is_refused(void **state) {
    (void)state;
    run_processes(1, bad_configs, NULL);
}

/* ---- struct_size ---- */

/* A struct of a future version: today's with one more field. */
typedef struct future_config {
    odc_config today;
    uint64_t more;
} future_config;
typedef struct future_desc {
    odc_shard_desc today;
    uint64_t more;
} future_desc;
typedef struct future_slice {
    odc_slice today;
    uint64_t more;
} future_slice;

static void future_structs(int rank, int size, const char *job, void *arg) {
    (void)arg;
    odc_context *context = NULL;
    future_config config = {config_of(rank, size, job), 1};
    future_desc desc = {describe("layer", 100, ODC_F32, ODC_F32), 1};
    future_slice slice = {{.struct_size = sizeof slice}, 7};
    tensor t = {NULL, 100, ODC_F32, ODC_F32, ODC_HOST_MEMORY, 0};
    config.today.struct_size = sizeof config;
    desc.today.struct_size = sizeof desc;
    CHECK_ERROR(odc_init(&config.today, &context), ODC_ERROR_UNSUPPORTED, "odc_config", "newer");
    CHECK(context == NULL);
    config.more = 0; /* an unknown field that is zero is accepted */
    CHECK_OK(odc_init(&config.today, &context));
    CHECK_ERROR(odc_register_shard(context, &desc.today, &t.shard), ODC_ERROR_UNSUPPORTED, "odc_shard_desc", "newer");
    desc.more = 0;
    CHECK_OK(odc_register_shard(context, &desc.today, &t.shard));
    CHECK_OK(odc_get_slice(t.shard, &slice.today));
    CHECK_EQUAL(slice.today.numel, slice_of(t).numel);
    check_still_works(context, t);
    odc_destroy(context);
}

static void a_struct_of_the_future_is_refused_if_its_unknown_bytes_are_not_zero(void **state) {
    (void)state;
    run_processes(2, future_structs, NULL);
}

static void future_descs(odc_context *context, void *arg) {
    (void)arg;
    future_desc descs[2] = {{describe("first", 100, ODC_F32, ODC_F32), 0}, {describe("second", 50, 0, ODC_F32), 3}};
    odc_shard *shards[2] = {NULL, NULL};
    descs[0].today.struct_size = descs[1].today.struct_size = sizeof *descs;
    CHECK_ERROR(odc_register_shards(context, &descs[0].today, 2, shards), ODC_ERROR_UNSUPPORTED, "odc_shard_desc");
    descs[1].more = 0;
    CHECK_OK(odc_register_shards(context, &descs[0].today, 2, shards));
    CHECK_EQUAL(slice_of((tensor){shards[1], 50, 0, ODC_F32, ODC_HOST_MEMORY, 0}).numel, 25);
    odc_shard *none[2] = {NULL, NULL};
    descs[0].today.name = "third";
    descs[1].today.name = "fourth";
    descs[1].today.struct_size = sizeof(odc_shard_desc); /* one struct_size for all */
    CHECK_ERROR(odc_register_shards(context, &descs[0].today, 2, none), ODC_ERROR_ARGUMENT, "struct_size");
    check_still_works(context, (tensor){shards[0], 100, ODC_F32, ODC_F32, ODC_HOST_MEMORY, 0});
}

static void an_array_of_structs_has_one_struct_size(void **state) {
    (void)state;
    run_ranks(2, future_descs, NULL);
}

/* Sizes below the first release's, far above, or no multiple of 8 are refused; the error has the size, the expected one and the
 * call. */
#define CHECK_SIZES(type, variable, first, call)                                                              \
    do {                                                                                                      \
        char found_[64], wanted_[64], here_[96];                                                              \
        snprintf(wanted_, sizeof wanted_, "first libodc's %zu ", (size_t)(first));                            \
        snprintf(here_, sizeof here_, "sizeof(" #type "), here %zu (this libodc, %d.%d.%d of ", sizeof(type), \
                 ODC_VERSION_MAJOR, ODC_VERSION_MINOR, ODC_VERSION_PATCH);                                    \
        memset(&(variable), 0, sizeof(variable));                                                             \
        for (uint64_t bytes_ = 0; bytes_ < (first) + 8; ++bytes_) {                                           \
            (variable).struct_size = bytes_ == (first) ? (1 << 20) + 8 : bytes_;                              \
            snprintf(found_, sizeof found_, #type ".struct_size is %d,", (int)(variable).struct_size);        \
            CHECK_ERROR(call, ODC_ERROR_ARGUMENT, found_, wanted_, here_);                                    \
        }                                                                                                     \
    } while (0)

static void past_structs(int rank, int size, const char *job, void *arg) {
    (void)arg;
    odc_context *context = NULL;
    odc_config config;
    odc_shard_desc desc;
    odc_shard *shard = NULL;
    odc_slice slice;
    odc_stats stats;
    odc_peer_stats peer;
    odc_route route;
    odc_plan_request request;
    odc_plan_summary summary;
    odc_window_request window;
    odc_window_summary of_window;
    odc_transport transport;
    odc_setting setting;
    CHECK_SIZES(odc_config, config, offsetof(odc_config, log), odc_init(&config, &context));
    CHECK_SIZES(odc_transport, transport, sizeof transport, odc_get_transport(0, &transport));
    CHECK_SIZES(odc_setting, setting, sizeof setting, odc_get_setting(0, &setting));
    CHECK_SIZES(odc_plan_request, request, offsetof(odc_plan_request, speeds), odc_plan(&request, NULL, NULL, NULL));
    const odc_plan_request one = {.struct_size = sizeof one,
                                  .lengths = (uint64_t[]){1},
                                  .count = 1,
                                  .max_tokens = 1,
                                  .b = 1,
                                  .ranks = 1,
                                  .policy = ODC_LB_MINI};
    int32_t minibatch_of = 77, rank_of = 77, microbatch_of = 77;
    const uint64_t makespans = offsetof(odc_plan_summary, collective_makespan);
    CHECK_SIZES(odc_plan_summary, summary, makespans, odc_plan(&one, &rank_of, &microbatch_of, &summary));
    const odc_window_request few = {
        .struct_size = sizeof few, .samples = &one, .minibatches = 1, .order = ODC_WINDOW_SORTED};
    CHECK_SIZES(odc_window_request, window, sizeof window, odc_plan_window(&window, NULL, NULL, NULL, NULL));
    CHECK_SIZES(odc_window_summary, of_window, sizeof of_window,
                odc_plan_window(&few, &minibatch_of, &rank_of, &microbatch_of, &of_window));
    CHECK(minibatch_of == 77 && rank_of == 77 && microbatch_of == 77);
    config = config_of(rank, size, job);
    CHECK_OK(odc_init(&config, &context));
    CHECK_SIZES(odc_shard_desc, desc, offsetof(odc_shard_desc, sum), odc_register_shard(context, &desc, &shard));
    tensor t = plain(context, "layer");
    CHECK_SIZES(odc_slice, slice, offsetof(odc_slice, sum), odc_get_slice(t.shard, &slice));
    const uint64_t first = offsetof(odc_stats, pinned_bytes);
    CHECK_SIZES(odc_stats, stats, first, odc_get_stats(context, &stats));
    CHECK_SIZES(odc_peer_stats, peer, sizeof peer, odc_get_peer_stats(context, 0, &peer));
    CHECK_SIZES(odc_route, route, sizeof route, odc_get_route(context, 0, ODC_HOST_MEMORY, &route));
    /* An older caller's output is filled up to its size and no further. */
    memset(&stats, 0x5a, sizeof stats);
    stats.struct_size = first;
    CHECK_OK(odc_get_stats(context, &stats));
    CHECK_EQUAL(stats.struct_size, first);
    CHECK(stats.syncs == 0 && stats.slice_bytes > 0);
    CHECK_EQUAL(stats.pinned_bytes, 0x5a5a5a5a5a5a5a5a);
    check_still_works(context, t);
    odc_destroy(context);
}

static void a_struct_that_is_too_small_is_refused_and_an_older_output_not_overrun(void **state) {
    (void)state;
    run_processes(2, past_structs, NULL);
}

/* ---- NULL ---- */

static void nulls(odc_context *context, void *arg) {
    (void)arg;
    tensor t = plain(context, "layer");
    float full[100] = {0};
    double value = 0;
    uint64_t operation = 0;
    odc_route route = {.struct_size = sizeof route};
    odc_shard *shard = NULL;
    odc_shard_desc desc = describe("another", 10, ODC_F32, ODC_F32);
    odc_slice slice = {.struct_size = sizeof slice};
    odc_stats stats = {.struct_size = sizeof stats};
    odc_peer_stats peer = {.struct_size = sizeof peer};
    CHECK_EQUAL(odc_rank(NULL), -1);
    CHECK_EQUAL(odc_size(NULL), -1);
    odc_minibatch(NULL);
    odc_destroy(NULL);
    CHECK_ERROR(odc_shutdown(NULL), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_abort(NULL, "x"), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_register_shard(NULL, &desc, &shard), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_register_shard(context, NULL, &shard), ODC_ERROR_ARGUMENT, "NULL", "desc");
    CHECK_ERROR(odc_register_shard(context, &desc, NULL), ODC_ERROR_ARGUMENT, "NULL", "out");
    CHECK_ERROR(odc_register_shards(NULL, &desc, 1, &shard), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_register_shards(context, NULL, 1, &shard), ODC_ERROR_ARGUMENT, "NULL", "desc");
    CHECK_ERROR(odc_register_shards(context, &desc, 1, NULL), ODC_ERROR_ARGUMENT, "NULL", "out");
    CHECK_ERROR(odc_get_slice(NULL, &slice), ODC_ERROR_ARGUMENT, "NULL", "shard");
    CHECK_ERROR(odc_get_slice(t.shard, NULL), ODC_ERROR_ARGUMENT, "NULL", "out");
    CHECK_ERROR(odc_release_shard(NULL), ODC_ERROR_ARGUMENT, "NULL", "shard");
    CHECK_ERROR(odc_publish(NULL, NULL), ODC_ERROR_ARGUMENT, "NULL", "shard");
    CHECK_ERROR(odc_publish_all(NULL, NULL), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_all_reduce(NULL, &value, 1, ODC_SUM), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_all_reduce(context, NULL, 1, ODC_SUM), ODC_ERROR_ARGUMENT, "NULL", "values");
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_ERROR(odc_gather(NULL, full, 100, NULL), ODC_ERROR_ARGUMENT, "NULL", "shard");
    CHECK_ERROR(odc_gather(t.shard, NULL, 100, NULL), ODC_ERROR_ARGUMENT, "NULL", "buffer");
    CHECK_ERROR(odc_scatter_add(NULL, full, 100, NULL), ODC_ERROR_ARGUMENT, "NULL", "shard");
    CHECK_ERROR(odc_scatter_add(t.shard, NULL, 100, NULL), ODC_ERROR_ARGUMENT, "NULL", "buffer");
    CHECK_ERROR(odc_gather_start(NULL, full, 100, NULL, &operation), ODC_ERROR_ARGUMENT, "NULL", "shard");
    CHECK_ERROR(odc_gather_start(t.shard, full, 100, NULL, NULL), ODC_ERROR_ARGUMENT, "NULL", "operation");
    CHECK_ERROR(odc_scatter_add_start(t.shard, NULL, 100, NULL, &operation), ODC_ERROR_ARGUMENT, "NULL", "buffer");
    CHECK_ERROR(odc_scatter_add_start(t.shard, full, 100, NULL, NULL), ODC_ERROR_ARGUMENT, "NULL", "operation");
    CHECK_ERROR(odc_wait(NULL, 1), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_minibatch_sync(NULL), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_minibatch_sync_reduce(NULL, &value, 1, ODC_SUM), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_minibatch_sync_reduce(context, NULL, 1, ODC_SUM), ODC_ERROR_ARGUMENT, "NULL", "values");
    CHECK_ERROR(odc_get_stats(NULL, &stats), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_get_stats(context, NULL), ODC_ERROR_ARGUMENT, "NULL", "out");
    CHECK_ERROR(odc_get_peer_stats(NULL, 0, &peer), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_get_peer_stats(context, 0, NULL), ODC_ERROR_ARGUMENT, "NULL", "out");
    CHECK_ERROR(odc_get_peer_stats(context, 2, &peer), ODC_ERROR_ARGUMENT, "rank", "2");
    CHECK_ERROR(odc_get_peer_stats(context, -1, &peer), ODC_ERROR_ARGUMENT, "rank", "-1");
    CHECK_ERROR(odc_get_route(NULL, 0, ODC_HOST_MEMORY, &route), ODC_ERROR_ARGUMENT, "NULL", "context");
    CHECK_ERROR(odc_get_route(context, 0, ODC_HOST_MEMORY, NULL), ODC_ERROR_ARGUMENT, "NULL", "out");
    CHECK_ERROR(odc_get_route(context, 9, ODC_HOST_MEMORY, &route), ODC_ERROR_ARGUMENT, "rank", "9");
    CHECK_ERROR(odc_get_route(context, 0, 3, &route), ODC_ERROR_ARGUMENT, "memory 3", "ODC_GPU_MEMORY");
    CHECK_OK(odc_minibatch_sync(context));
    check_still_works(context, t);
}

static void null_is_refused_everywhere(void **state) {
    (void)state;
    run_ranks(2, nulls, NULL);
}

/* ---- Descriptions ---- */

static odc_shard_desc good(void) { return describe("wrong", 100, ODC_F32, ODC_F32); }

#define CHECK_REFUSED(context, desc, status, ...)                                     \
    do {                                                                              \
        odc_shard *shard_ = (odc_shard *)1;                                           \
        CHECK_ERROR(odc_register_shard(context, desc, &shard_), status, __VA_ARGS__); \
        CHECK(shard_ == NULL);                                                        \
    } while (0)

static void bad_names_and_types(odc_context *context) {
    char name[300];
    odc_shard_desc desc = good();
    desc.name = NULL;
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "name", "NULL");
    desc.name = "";
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "name", "empty");
    memset(name, 'n', 256);
    name[256] = 0;
    desc.name = name;
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "name", "255");
    desc.name = "taken";
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "taken", "already");
    static const int types[4][2] = {{6, ODC_F32}, {-1, ODC_F32}, {ODC_F32, 99}, {ODC_F32, -1}};
    for (int i = 0; i < 4; ++i) {
        desc = describe("wrong", 100, types[i][0], types[i][1]);
        CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", i < 2 ? "parameter_type" : "gradient_type");
    }
    desc = describe("wrong", 100, ODC_F32, ODC_BYTES);
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", "bytes", "gradient");
    desc = describe("wrong", 100, 0, 0);
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", "neither|no ");
}

static void bad_divisions(odc_context *context) {
    static const uint64_t slices[5][2] = {{50, 51}, {50, 49}, {0, 0}, {UINT64_MAX, 101}, {100, UINT64_MAX}};
    static const int32_t ranks[5][3] = {{0, 0, 1}, {0, 2, 1}, {-1, 0, 1}, {0, 1, 1}, {0, 1, 0}};
    odc_shard_desc desc = good();
    for (int i = 0; i < 5; ++i) { /* the last two wrap around to 100 or nearly so */
        desc.slices = slices[i];
        CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", "add up", "100");
    }
    desc = good();
    for (int i = 0; i < 5; ++i) {
        desc.ranks = ranks[i];
        desc.rank_count = i == 4 ? 3 : i == 3 ? 3 : 2;
        CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", "rank");
    }
    desc.ranks = ranks[0];
    desc.rank_count = 0;
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", "rank_count");
    desc.ranks = NULL;
    desc.rank_count = 1;
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", "rank_count");
    int32_t other = 1 - odc_rank(context);
    desc.ranks = &other;
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", "rank 0|rank 1", "not");
}

static long peak_kib(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_maxrss;
}

static void bad_sizes(odc_context *context) {
    odc_shard_desc desc = good();
    desc.numel = UINT64_MAX;
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", "larger");
    desc.numel = (uint64_t)1 << 62;
    CHECK_REFUSED(context, &desc, ODC_ERROR_ARGUMENT, "wrong", "larger");
    check_overflows(context);
    /* Larger than the machine: refused before a page is touched; the error has the needed and the available bytes. */
    odc_shard_desc many[3] = {describe("a", (uint64_t)1 << 44, ODC_F64, ODC_F64), describe("b", 10, ODC_F32, 0),
                              describe("c", (uint64_t)1 << 44, ODC_BYTES, 0)};
    odc_shard *shards[3] = {NULL, NULL, NULL};
    long peak_before_kib = peak_kib();
    int64_t begin = now_ns();
    CHECK_REFUSED(context, &many[0], ODC_ERROR_NO_MEMORY, "need", "available", "1407");
    CHECK_ERROR(odc_register_shards(context, many, 3, shards), ODC_ERROR_NO_MEMORY, "need", "available");
    int64_t took_ns = now_ns() - begin;
    printf("refused twice in %.3f ms\n", (double)took_ns * 1e-6);
    CHECK(peak_kib() - peak_before_kib < 1 << 20); /* of 384 TiB */
    for (int i = 0; i < 3; ++i) {                  /* the refused ones reserved no name */
        many[i].numel = 10;
    }
    CHECK_OK(odc_register_shards(context, many, 3, shards));
}

static void bad_descriptions(odc_context *context, void *arg) {
    (void)arg;
    tensor t = plain(context, "taken");
    odc_shard_desc twins[2] = {good(), good()};
    odc_shard *shards[2] = {NULL, NULL};
    bad_names_and_types(context);
    bad_divisions(context);
    bad_sizes(context);
    CHECK_ERROR(odc_register_shards(context, twins, 2, shards), ODC_ERROR_ARGUMENT, "wrong", "already|twice");
    check_still_works(context, t);
    CHECK_OK(odc_publish(t.shard, NULL)); /* in the middle of a minibatch, too */
    bad_names_and_types(context);
    bad_divisions(context);
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    check_still_works(context, t);
}

static void a_bad_description_is_refused(void **state) {
    (void)state;
    run_ranks(2, bad_descriptions, NULL);
}

/* ---- Few descriptors ---- */

static void few_descriptors(int rank, int size, const char *job, void *arg) {
    enum { COUNT = 1000 };
    struct rlimit limit = {32, 32};
    tensor *tensors = calloc(COUNT, sizeof *tensors);
    (void)arg;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    odc_context *context = join(rank, size, job);
    for (int i = 0; i < COUNT; ++i) { /* one call each; every hundredth has a mapping of its own */
        char name[32];
        snprintf(name, sizeof name, "layer.%d", i);
        tensors[i] = make_tensor(context, name, i % 100 == 0 ? 100000 : 13, ODC_F32, ODC_F32);
        write_parameters(tensors[i], (uint64_t)i);
    }
    CHECK_OK(odc_publish_all(context, NULL));
    for (int i = 0; i < COUNT; ++i) {
        check_gather(tensors[i], (uint64_t)i);
        add_gradients(tensors[i], 1);
    }
    CHECK_OK(odc_minibatch_sync(context));
    for (int i = 0; i < COUNT; ++i) {
        check_sums(tensors[i], (uint64_t[]){1, 1, 1, 1}, 4);
    }
    free(tensors);
    odc_destroy(context);
}

static void a_thousand_shards_need_no_more_than_32_descriptors(void **state) {
    (void)state;
    needs_processes("it limits the process's descriptors");
    run_processes(4, few_descriptors, NULL);
}

static void no_descriptors(int rank, int size, const char *job, void *arg) {
    struct rlimit limit = {(rlim_t) * (int *)arg, 4096};
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.timeout_ms = 3000;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (odc_init(&config, &context) != ODC_OK) {
        CHECK_SENTENCE(odc_last_error(), "files|descriptor|rank");
    }
    odc_destroy(context);
}

static void too_few_descriptors_are_an_error(void **state) {
    (void)state;
    needs_processes("it limits the process's descriptors");
    needs_no_sanitizer("it needs descriptors itself");
    for (int limit = 4; limit < 16; limit += 3) {
        run_processes(2, no_descriptors, &limit);
    }
}

typedef struct host_limit {
    const place *at;    /* NULL: rendezvous by name */
    rlim_t descriptors; /* beside those that are open */
} host_limit;

/* Rank 0 has no descriptors for all ranks; whether accept or a later call fails, it reports that at once. */
static void few_descriptors_of_rank_0(int rank, int size, const char *job, void *arg) {
    const host_limit *what = arg;
    odc_config config = config_of(rank, size, what->at != NULL ? NULL : job);
    odc_context *context = NULL;
    if (what->at != NULL) {
        config.rendezvous = what->at->text;
        config.secret = "a secret of these tests";
    }
    if (rank == 0) {
        int first = dup(0);
        struct rlimit limit = {(rlim_t)first + what->descriptors, (rlim_t)first + what->descriptors};
        CHECK(first >= 0 && close(first) == 0 && setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    config.timeout_ms = ENDLESS_MS; /* beyond the watchdog: the deadline must not end it */
    if (odc_init(&config, &context) == ODC_OK) {
        odc_destroy(context);
    } else if (rank == 0 || what->at == NULL) {
        CHECK_SENTENCE(odc_last_error(), "raise the limit (ulimit -n)");
    } else { /* after TCP, before it listens for the ranks of its host, rank 0 can only close the connections */
        CHECK_SENTENCE(odc_last_error(), "raise the limit (ulimit -n)|rank 0 of job");
    }
}

static void rank_0_without_descriptors_fails_at_once(void **state) {
    (void)state;
    needs_processes("it limits the process's descriptors");
    needs_no_sanitizer("it needs descriptors itself");
    /* A rank takes 4 of rank 0's descriptors: with this step the limit is met at each of them. */
    for (int descriptors = 9; descriptors <= 45; descriptors += 3) {
        host_limit limit = {NULL, (rlim_t)descriptors};
        place at = hold_place(AF_INET);
        CHECK(at.holder >= 0);
        run_processes(12, few_descriptors_of_rank_0, &limit);
        limit.at = &at;
        run_processes(12, few_descriptors_of_rank_0, &limit);
        close(at.holder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_config_is_refused),
        cmocka_unit_test(a_gpu_without_a_driver_is_refused),
        cmocka_unit_test(a_struct_of_the_future_is_refused_if_its_unknown_bytes_are_not_zero),
        cmocka_unit_test(an_array_of_structs_has_one_struct_size),
        cmocka_unit_test(a_struct_that_is_too_small_is_refused_and_an_older_output_not_overrun),
        cmocka_unit_test(null_is_refused_everywhere),
        cmocka_unit_test(a_bad_description_is_refused),
        cmocka_unit_test(a_thousand_shards_need_no_more_than_32_descriptors),
        cmocka_unit_test(too_few_descriptors_are_an_error),
        cmocka_unit_test(rank_0_without_descriptors_fails_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
