/* SPDX-License-Identifier: Apache-2.0 */
/* What the library reports about itself, and an ABI that cannot change unnoticed. */
#include "model.h"

#include <pthread.h>
#include <stdio.h>

#define PINNED(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has changed its size")
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field " has moved")
#define VALUE(name, number) _Static_assert((name) == (number), #name " has changed its value")

PINNED(odc_config, 128);
AT(odc_config, rank, 8);
AT(odc_config, size, 12);
AT(odc_config, job, 16);
AT(odc_config, group, 24);
AT(odc_config, rendezvous, 32);
AT(odc_config, secret, 40);
AT(odc_config, timeout_ms, 48);
AT(odc_config, all_gather, 56);
AT(odc_config, all_gather_arg, 64);
AT(odc_config, interrupted, 72);
AT(odc_config, interrupted_arg, 80);
AT(odc_config, host, 88);
AT(odc_config, device, 96);
AT(odc_config, log, 104);
AT(odc_config, log_arg, 112);
AT(odc_config, log_level, 120);

PINNED(odc_shard_desc, 72);
AT(odc_shard_desc, name, 8);
AT(odc_shard_desc, numel, 16);
AT(odc_shard_desc, parameter_type, 24);
AT(odc_shard_desc, gradient_type, 28);
AT(odc_shard_desc, ranks, 32);
AT(odc_shard_desc, slices, 40);
AT(odc_shard_desc, rank_count, 48);
AT(odc_shard_desc, memory, 56);
AT(odc_shard_desc, sum, 64);
AT(odc_shard_desc, largest, 68);

PINNED(odc_slice, 64);
AT(odc_slice, parameters, 8);
AT(odc_slice, gradients, 16);
AT(odc_slice, offset, 24);
AT(odc_slice, numel, 32);
AT(odc_slice, parameter_type, 40);
AT(odc_slice, accumulator_type, 44);
AT(odc_slice, memory, 48);
AT(odc_slice, sum, 56);
AT(odc_slice, largest, 60);

PINNED(odc_stats, 136);
AT(odc_stats, gather_calls, 8);
AT(odc_stats, gather_bytes, 16);
AT(odc_stats, scatter_add_calls, 24);
AT(odc_stats, scatter_add_bytes, 32);
AT(odc_stats, syncs, 40);
AT(odc_stats, publish_wait_ns, 48);
AT(odc_stats, sync_wait_ns, 56);
AT(odc_stats, lock_wait_ns, 64);
AT(odc_stats, slice_bytes, 72);
AT(odc_stats, packets_sent, 80);
AT(odc_stats, pinned_bytes, 88);
AT(odc_stats, clamped_addends, 96);
AT(odc_stats, sync_last_rank, 104);
AT(odc_stats, fetched_bytes, 112);
AT(odc_stats, served_bytes, 120);
AT(odc_stats, sent_bytes, 128);

PINNED(odc_route, 64);
AT(odc_route, transport, 8);
AT(odc_route, provider, 16);
AT(odc_route, nic, 24);
AT(odc_route, peer_nic, 32);
AT(odc_route, why, 40);
AT(odc_route, why_not, 48);
AT(odc_route, access, 56);

PINNED(odc_peer_stats, 32);
AT(odc_peer_stats, publish_wait_ns, 8);
AT(odc_peer_stats, sync_late_ns, 16);
AT(odc_peer_stats, sync_last, 24);

PINNED(odc_plan_request, 72);
AT(odc_plan_request, lengths, 8);
AT(odc_plan_request, count, 16);
AT(odc_plan_request, max_tokens, 24);
AT(odc_plan_request, a, 32);
AT(odc_plan_request, b, 40);
AT(odc_plan_request, ranks, 48);
AT(odc_plan_request, policy, 52);
AT(odc_plan_request, speeds, 56);
AT(odc_plan_request, tail, 64);

PINNED(odc_plan_summary, 40);
AT(odc_plan_summary, makespan, 8);
AT(odc_plan_summary, lower_bound, 16);
AT(odc_plan_summary, collective_makespan, 24);
AT(odc_plan_summary, items, 32);
PINNED(odc_window_request, 48);
AT(odc_window_request, samples, 8);
AT(odc_window_request, counts, 16);
AT(odc_window_request, most_moved, 24);
AT(odc_window_request, most_displacement, 32);
AT(odc_window_request, minibatches, 40);
AT(odc_window_request, order, 44);
PINNED(odc_window_summary, 88);
AT(odc_window_summary, makespan, 8);
AT(odc_window_summary, makespan_before, 16);
AT(odc_window_summary, collective_makespan, 24);
AT(odc_window_summary, collective_makespan_before, 32);
AT(odc_window_summary, lower_bound, 40);
AT(odc_window_summary, moved, 48);
AT(odc_window_summary, displacement, 56);
AT(odc_window_summary, token_variation, 64);
AT(odc_window_summary, token_variation_before, 72);
AT(odc_window_summary, tokens, 80);

PINNED(odc_transport, 24);
AT(odc_transport, name, 8);
AT(odc_transport, why_not, 16);

PINNED(odc_setting, 32);
AT(odc_setting, name, 8);
AT(odc_setting, fallback, 16);
AT(odc_setting, help, 24);

VALUE(ODC_OK, 0);
VALUE(ODC_ERROR_ARGUMENT, -1);
VALUE(ODC_ERROR_PHASE, -2);
VALUE(ODC_ERROR_NO_MEMORY, -3);
VALUE(ODC_ERROR_UNSUPPORTED, -4);
VALUE(ODC_ERROR_SYSTEM, -5);
VALUE(ODC_ERROR_INTERRUPTED, -6);
VALUE(ODC_ERROR_RENDEZVOUS, -7);
VALUE(ODC_ERROR_INTERNAL, -8);
VALUE(ODC_ERROR_PEER_LOST, -9);
VALUE(ODC_ERROR_ABORTED, -10);
VALUE(ODC_ERROR_TIMEOUT, -11);
VALUE(ODC_ERROR_MISMATCH, -12);
VALUE(ODC_F32, 1);
VALUE(ODC_F64, 2);
VALUE(ODC_BF16, 3);
VALUE(ODC_F16, 4);
VALUE(ODC_BYTES, 5);
VALUE(ODC_SUM, 1);
VALUE(ODC_MAX, 2);
VALUE(ODC_SUM_EXACT, 1);
VALUE(ODC_LOCAL_SORT, 1);
VALUE(ODC_LB_MICRO, 2);
VALUE(ODC_LB_MINI, 3);
VALUE(ODC_SORTED_ROWS, 4);
VALUE(ODC_WINDOW_EXCHANGED, 1);
VALUE(ODC_WINDOW_SORTED, 2);

static void the_version_is_the_headers(void **state) {
    char version[32];
    (void)state;
    CHECK_EQUAL(odc_version(), ODC_VERSION_MAJOR << 16 | ODC_VERSION_MINOR << 8 | ODC_VERSION_PATCH);
    snprintf(version, sizeof version, "%d.%d.%d", ODC_VERSION_MAJOR, ODC_VERSION_MINOR, ODC_VERSION_PATCH);
    CHECK(strstr(odc_build(), version) != NULL);
    CHECK(strstr(odc_build(), ", layout ") != NULL);
}

static void every_status_has_its_own_text(void **state) {
    (void)state;
    for (int left = -12; left <= 0; ++left) {
        CHECK(strlen(odc_status_string((odc_status)left)) > 1);
        for (int right = left + 1; right <= 1; ++right) { /* 1 is not a status, but has a text, too */
            CHECK(strcmp(odc_status_string((odc_status)left), odc_status_string((odc_status)right)) != 0);
        }
    }
    CHECK(strlen(odc_status_string((odc_status)-12345)) > 1);
}

static void *fail_in_thread(void *arg) {
    (void)arg;
    CHECK(odc_last_error() != NULL);
    CHECK_EQUAL(strlen(odc_last_error()), 0); /* no call has failed in this thread */
    CHECK_ERROR(odc_publish(NULL, NULL), ODC_ERROR_ARGUMENT, "shard");
    return NULL;
}

static void the_last_error_is_never_null_and_each_threads_own(void **state) {
    pthread_t thread;
    char sentence[512];
    odc_config config = config_of(5, 2, "nobody");
    odc_context *context = NULL;
    (void)state;
    CHECK(odc_last_error() != NULL);
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_ARGUMENT, "rank 5"); /* after a failed init, too */
    snprintf(sentence, sizeof sentence, "%s", odc_last_error());
    CHECK(pthread_create(&thread, NULL, fail_in_thread, NULL) == 0);
    pthread_join(thread, NULL);
    CHECK(strcmp(odc_last_error(), sentence) == 0);
}

static void transports_are_listed_with_what_is_wrong_with_them(void **state) {
    odc_transport row = {.struct_size = sizeof row};
    size_t count = 0;
    int ready = 0;
    (void)state;
    for (; odc_get_transport(count, &row) == ODC_OK; ++count) {
        CHECK(row.name != NULL && strlen(row.name) > 1);
        CHECK(row.why_not == NULL || strlen(row.why_not) > 10);
        ready |= strcmp(row.name, "shm") == 0 && row.why_not == NULL;
    }
    CHECK(ready);
    CHECK_ERROR(odc_get_transport(count, &row), ODC_ERROR_ARGUMENT, "transport");
    CHECK_ERROR(odc_get_transport(SIZE_MAX, &row), ODC_ERROR_ARGUMENT, "transport");
    CHECK_ERROR(odc_get_transport(0, NULL), ODC_ERROR_ARGUMENT, "NULL");
}

static void settings_are_listed_with_their_help(void **state) {
    odc_setting row = {.struct_size = sizeof row};
    const char *names[64];
    size_t count = 0;
    int found = 0;
    (void)state;
    for (; count < 64 && odc_get_setting(count, &row) == ODC_OK; ++count) {
        CHECK(strncmp(row.name, "ODC_", 4) == 0);
        CHECK(row.fallback != NULL);
        CHECK(row.help != NULL && strlen(row.help) > 10);
        for (size_t i = 0; i < count; ++i) {
            CHECK(strcmp(names[i], row.name) != 0);
        }
        names[count] = row.name; /* static */
        found |= strcmp(row.name, "ODC_TIMEOUT_MS") == 0;
    }
    CHECK(found);
    CHECK_ERROR(odc_get_setting(count, &row), ODC_ERROR_ARGUMENT, "setting");
    CHECK_ERROR(odc_get_setting(0, NULL), ODC_ERROR_ARGUMENT, "NULL");
}

/* To other ranks of this host; ODC_TEST_TRANSPORT: where not shm is allowed, but this one. */
static const char *wanted_transport(void) {
    const char *given = getenv("ODC_TEST_TRANSPORT");
    return given != NULL ? given : "shm";
}

static void routes(odc_context *context, void *arg) {
    odc_route routes_to[3];
    (void)arg;
    CHECK_EQUAL(odc_size(context), 3);
    for (int rank = 0; rank < 3; ++rank) {
        routes_to[rank].struct_size = sizeof(odc_route);
        CHECK_OK(odc_get_route(context, rank, ODC_HOST_MEMORY, &routes_to[rank]));
    }
    CHECK_OK(odc_minibatch_sync(context));
    for (int rank = 0; rank < 3; ++rank) { /* they live as long as the context */
        CHECK(strcmp(routes_to[rank].transport, rank == odc_rank(context) ? "shm" : wanted_transport()) == 0);
        CHECK(strcmp(routes_to[rank].why, rank == odc_rank(context) ? "this rank" : "the same host") == 0);
        CHECK(strstr(routes_to[rank].why_not, "fabric: never inside a host") != NULL);
        CHECK(routes_to[rank].provider == NULL && routes_to[rank].nic == NULL && routes_to[rank].peer_nic == NULL);
        CHECK(strcmp(routes_to[rank].access, "direct") == 0);
        CHECK_OK(odc_get_route(context, rank, ODC_GPU_MEMORY, &routes_to[rank]));
        CHECK(routes_to[rank].transport == NULL && strcmp(routes_to[rank].access, "none") == 0);
        CHECK(strstr(routes_to[rank].why, "has no GPU (config.device or ODC_DEVICE names it)") != NULL);
        CHECK(strstr(routes_to[rank].why_not, "shm: ") != NULL && strstr(routes_to[rank].why_not, "fabric: ") != NULL);
    }
}

static void each_route_and_its_reason_can_be_asked_for(void **state) {
    (void)state;
    run_ranks(3, routes, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_version_is_the_headers),
        cmocka_unit_test(every_status_has_its_own_text),
        cmocka_unit_test(the_last_error_is_never_null_and_each_threads_own),
        cmocka_unit_test(transports_are_listed_with_what_is_wrong_with_them),
        cmocka_unit_test(settings_are_listed_with_their_help),
        cmocka_unit_test(each_route_and_its_reason_can_be_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
