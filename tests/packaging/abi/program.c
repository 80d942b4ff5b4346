/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every function of the previous header, in a job of any number of ranks (`program alone`: of one). Compiled with that
 * header it must run with today's libodc, compiled with today's header with the previous libodc. */
#include <odc/odc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kNumel = 1000, kGuard = 64 };

static void fail(int line, const char *what) {
    fprintf(stderr, "program.c:%d: %s: %s\n", line, what, odc_last_error());
    exit(1);
}
#define TRY(call) ((call) == ODC_OK ? (void)0 : fail(__LINE__, #call))
#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

/* An output struct, followed by bytes that must not change. */
#define GUARDED(type)                \
    struct {                         \
        type out;                    \
        unsigned char guard[kGuard]; \
    }
#define FILL(guarded, call)                                        \
    do {                                                           \
        memset(&(guarded), 0x5a, sizeof(guarded));                 \
        (guarded).out.struct_size = sizeof((guarded).out);         \
        TRY(call);                                                 \
        CHECK((guarded).out.struct_size == sizeof((guarded).out)); \
        for (int guard_ = 0; guard_ < kGuard; ++guard_)            \
            CHECK((guarded).guard[guard_] == 0x5a);                \
    } while (0)

static int never(void *arg) { return arg != NULL; }

static odc_context *join(int alone) {
    odc_config config = {.struct_size = sizeof config, .timeout_ms = 60000, .interrupted = never};
    config.size = alone; /* otherwise from the launcher */
    config.group = alone ? "alone" : NULL;
    odc_context *context;
    TRY(odc_init(&config, &context));
    return context;
}

static void train(odc_context *context) {
    const int size = odc_size(context);
    odc_shard_desc desc[3];
    memset(desc, 0, sizeof desc);
    const char *names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; ++i) {
        desc[i].struct_size = sizeof desc[i];
        desc[i].name = names[i];
        desc[i].numel = kNumel;
        desc[i].parameter_type = desc[i].gradient_type = ODC_F32;
    }
    odc_shard *shard[3];
    TRY(odc_register_shard(context, &desc[0], &shard[0]));
    TRY(odc_register_shards(context, desc + 1, 2, shard + 1));

    static float full[kNumel], ones[kNumel];
    for (int i = 0; i < kNumel; ++i)
        ones[i] = 1;
    for (int minibatch = 0; minibatch < 3; ++minibatch) {
        CHECK(odc_minibatch(context) == (uint64_t)minibatch);
        TRY(odc_publish(shard[0], NULL));
        TRY(odc_publish_all(context, NULL));
        for (int i = 0; i < 3; ++i) {
            uint64_t operation;
            TRY(odc_gather(shard[i], full, kNumel, NULL));
            CHECK(full[0] == -(float)(2 * size * minibatch) && full[kNumel - 1] == full[0]);
            TRY(odc_gather_start(shard[i], full, kNumel, NULL, &operation));
            TRY(odc_wait(context, operation));
            TRY(odc_scatter_add(shard[i], ones, kNumel, NULL));
            TRY(odc_scatter_add_start(shard[i], ones, kNumel, NULL, &operation));
            TRY(odc_wait(context, operation));
        }
        double value = 1;
        if (minibatch % 2 == 0) {
            TRY(odc_minibatch_sync(context));
            TRY(odc_all_reduce(context, &value, 1, ODC_SUM));
        } else {
            TRY(odc_minibatch_sync_reduce(context, &value, 1, ODC_SUM));
        }
        CHECK(value == size);
        for (int i = 0; i < 3; ++i) {
            GUARDED(odc_slice) slice;
            FILL(slice, odc_get_slice(shard[i], &slice.out));
            CHECK(slice.out.parameter_type == ODC_F32 && slice.out.memory == ODC_HOST_MEMORY);
            for (uint64_t at = 0; at < slice.out.numel; ++at) {
                ((float *)slice.out.parameters)[at] -= ((float *)slice.out.gradients)[at];
            }
        }
    }
    TRY(odc_release_shard(shard[2]));
}

static void look(const odc_context *context) {
    GUARDED(odc_stats) stats;
    FILL(stats, odc_get_stats(context, &stats.out));
    CHECK(stats.out.syncs == 3);
    GUARDED(odc_peer_stats) peer;
    FILL(peer, odc_get_peer_stats(context, 0, &peer.out));
    GUARDED(odc_route) route;
    FILL(route, odc_get_route(context, 0, ODC_HOST_MEMORY, &route.out));
    CHECK(strcmp(route.out.transport, "shm") == 0);
    GUARDED(odc_transport) transport;
    FILL(transport, odc_get_transport(0, &transport.out));
    GUARDED(odc_setting) setting;
    FILL(setting, odc_get_setting(0, &setting.out));
    CHECK(strncmp(setting.out.name, "ODC_", 4) == 0);
    const char *json, *xml;
    TRY(odc_get_topology(NULL, &json, &xml));
    CHECK(json[0] == '{' && xml[0] == '<');
    CHECK(odc_version() >> 16 == ODC_VERSION_MAJOR);
    CHECK(odc_build()[0] != '\0' && odc_status_string(ODC_OK)[0] != '\0' && odc_last_error() != NULL);
}

static void plan(void) {
    const uint64_t lengths[] = {100, 200, 300};
    odc_plan_request request = {.struct_size = sizeof request,
                                .lengths = lengths,
                                .count = 3,
                                .max_tokens = 1000,
                                .ranks = 1,
                                .policy = ODC_LB_MINI};
    TRY(odc_plan_cost("linear", &request.a, &request.b));
    int32_t rank_of[3], microbatch_of[3];
    GUARDED(odc_plan_summary) summary;
    FILL(summary, odc_plan(&request, rank_of, microbatch_of, &summary.out));
    CHECK(rank_of[2] == 0 && summary.out.makespan >= summary.out.lower_bound && summary.out.lower_bound > 0);
}

int main(int argc, char **argv) {
    odc_context *context = join(argc > 1 && strcmp(argv[1], "alone") == 0);
    plan();
    train(context);
    look(context);
    const int rank = odc_rank(context);
    TRY(odc_shutdown(context));
    odc_destroy(context);
    odc_context *other = join(1);
    TRY(odc_abort(other, "the end"));
    odc_destroy(other);
    printf("rank %d ran\n", rank);
    return 0;
}
