/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks meet: over TCP with a secret, by name on one host, through the caller's all-gather; ranks that are missing, come
 * twice or give another size. See launch_info_test.c for launchers, ../faults/foreign_clients_test.c for foreign processes,
 * init_death_test.c for ranks that leave. */
#include "rendezvous.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* ---- Rendezvous ---- */

static void meet_twice(int rank, int size, const char *job, void *arg) {
    odc_config config = scene_config(arg, rank, size, job);
    for (int time = 0; time < 2; ++time) {
        join_and_use(&config);
    }
}

static void test_tcp_and_again(void **state) {
    (void)state;
    over_tcp(meet_twice, 4);
}

static void test_tcp_v6(void **state) {
    (void)state;
    scene *what = new_scene(1);
    what->by_name = 0;
    what->at = hold_place(AF_INET6);
    if (what->at.holder < 0) {
        printf("skipped: this machine has no IPv6\n");
        skip();
    }
    run_processes(3, meet_twice, what);
    end_scene(what);
}

static void meet_at_name(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    char text[64];
    snprintf(text, sizeof text, "localhost:%d", what->at.port);
    odc_config config = scene_config(what, rank, size, job);
    config.rendezvous = text;
    join_and_use(&config);
}

static void test_tcp_by_host_name(void **state) {
    (void)state;
    over_tcp(meet_at_name, 2);
}

static void late_rank_0(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    for (int other = 1; rank == 0 && other < size; ++other) {
        await_flag(&what->looks[other], 5); /* it waits for this rank */
    }
    join_and_use(&config);
}

static void test_late_rank_0(void **state) {
    (void)state;
    both_ways(late_rank_0, 3);
}

static void leave_a_child(int rank, int size, const char *job, void *arg) {
    odc_config config = scene_config(arg, rank, size, job);
    odc_context *context = NULL;
    CHECK_OK(odc_init(&config, &context));
    leave_child();
    odc_destroy(context);
    join_and_use(&config);
}

static void test_again_beside_forked_children(void **state) {
    (void)state;
    needs_processes("a rank forks");
    both_ways(leave_a_child, 3);
}

/* ---- Names ---- */

/* Ranks 0 and 1 are job "x/b"; ranks 2 and 3 are job "x", group "b", and also have ranks 0 and 1. Both are there at once. */
static void meet_by_like_names(int rank, int size, const char *job, void *arg) {
    atomic_int *joined = arg;
    char name[80];
    snprintf(name, sizeof name, rank < 2 ? "%s/b" : "%s", job);
    odc_config config = config_of(rank % 2, size / 2, name);
    config.group = rank < 2 ? NULL : "b";
    odc_context *context = NULL;
    double sum = rank;
    CHECK_OK(odc_init(&config, &context));
    CHECK_OK(odc_minibatch_sync_reduce(context, &sum, 1, ODC_SUM));
    CHECK(sum == (rank < 2 ? 1 : 5));
    raise_flag(joined);
    await_flag(joined, size);
    odc_destroy(context);
}

static void test_a_slash_in_a_job_is_no_group(void **state) {
    (void)state;
    run_processes(4, meet_by_like_names, share(sizeof(atomic_int)));
}

/* ---- Addresses ---- */

static void bad_addresses(int rank, int size, const char *job, void *arg) {
    (void)job;
    static const char *const wrong[] = {"node1",    "node1:",    ":5000",   "node1:port", "node1:0",     "node1:65536",
                                        "::1:5000", "[::1]5000", "[]:5000", "[::1",       "node1:5000x", "1:2:3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        odc_config config = scene_config(arg, rank, size, NULL);
        config.rendezvous = wrong[i];
        odc_context *context = NULL;
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_ARGUMENT, wrong[i], "host:port", "[v6]:port");
    }
    if (rank == 0) {
        odc_config config = scene_config(arg, rank, size, NULL);
        config.rendezvous = "192.0.2.1:5000"; /* an address reserved for documentation, which nobody has */
        FAIL_INIT(&config, "192.0.2.1:5000", "rank 0");
        config.rendezvous = "nowhere.invalid:5000";
        FAIL_INIT(&config, "nowhere.invalid:5000", "rank 0");
    }
}

static void test_bad_addresses(void **state) {
    (void)state;
    over_tcp(bad_addresses, 2);
}

/* ---- Ranks that do not come, come twice, or disagree ---- */

/* Ranks 0, 1 and 2 of 5; the earliest deadline, that of rank 2, counts for all. */
static void some_come(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size + 2, job);
    if (rank == 2) {
        await_met(what, 2);
        config.timeout_ms = DEADLINE_MS;
        FAIL_INIT_LATE(&config, AT_OWN_DEADLINE);
    } else {
        config.timeout_ms = ENDLESS_MS;
        FAIL_INIT(&config, "missing", "rank 3", "rank 4", "3 of 5");
    }
}

static void test_missing_ranks(void **state) {
    (void)state;
    both_ways(some_come, 3);
}

static void nobody_is_rank_0(int rank, int size, const char *job, void *arg) {
    odc_config config = scene_config(arg, rank + 1, size + 1, job);
    config.timeout_ms = 500;
    FAIL_INIT_LATE(&config, "missing", "rank 0");
}

static void test_missing_rank_0(void **state) {
    (void)state;
    both_ways(nobody_is_rank_0, 2);
}

static void twice_rank_1(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank == 0 ? 0 : 1, size + 1, job);
    config.timeout_ms = ENDLESS_MS;
    if (rank == 2) {
        await_met(what, 2);
    }
    FAIL_INIT(&config, "two processes", "rank 1", "pid");
}

static void test_one_number_twice(void **state) {
    (void)state;
    needs_processes("the error names two processes");
    both_ways(twice_rank_1, 3);
}

static void twice_rank_0(int rank, int size, const char *job, void *arg) {
    (void)rank, (void)size;
    odc_config config = scene_config(arg, 0, 3, job);
    config.timeout_ms = ENDLESS_MS;
    FAIL_INIT(&config, "two processes", "rank 0", "pid");
}

static void test_rank_0_twice(void **state) {
    (void)state;
    needs_processes("the error names two processes");
    both_ways(twice_rank_0, 2);
}

static void other_sizes(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, rank == 2 ? size + 1 : size + 2, job);
    config.timeout_ms = ENDLESS_MS;
    if (rank == 2) { /* the others have met when it comes */
        await_met(what, 2);
    }
    FAIL_INIT(&config, "rank 2", "rank 0", "4 ranks|4 of", "5");
}

static void test_different_sizes(void **state) {
    (void)state;
    both_ways(other_sizes, 3);
}

/* ---- The caller's all-gather ---- */

static void meet_by_callback(int rank, int size, const char *job, void *arg) {
    (void)job;
    gatherer self = {arg, rank, size, 0, 0};
    odc_config config = gather_config(&self);
    join_and_use(&config);
    CHECK_EQUAL(self.calls, 1);
}

static void test_callback(void **state) {
    (void)state;
    scene *what = new_scene(1);
    run_processes(4, meet_by_callback, what);
}

/* Ranks 0 and 2 are one host, 1 and 3 another: one more call each for their NICs, for unreachable peers, for their endpoints,
 * and for readiness. */
static void callback_of_two_hosts(int rank, int size, const char *job, void *arg) {
    (void)job;
    gatherer self = {arg, rank, size, 0, 0};
    odc_config config = gather_config(&self);
    config.host = rank % 2 == 0 ? "even" : "odd";
    join_and_use(&config);
    CHECK_EQUAL(self.calls, 5);
}

static void test_callback_of_two_hosts(void **state) {
    (void)state;
    setenv("ODC_INTERFACE", "lo", 1);
    run_processes(4, callback_of_two_hosts, new_scene(1));
    unsetenv("ODC_INTERFACE");
}

static void callback_fails(int rank, int size, const char *job, void *arg) {
    (void)job;
    gatherer self = {arg, rank, size, 42, 0};
    odc_config config = gather_config(&self);
    FAIL_INIT(&config, "all_gather", "42");
}

static int gather_nothing(void *arg, const void *mine, void *all, size_t bytes) {
    (void)arg, (void)mine, (void)all, (void)bytes;
    return 0;
}

static void callback_does_nothing(int rank, int size, const char *job, void *arg) {
    (void)arg, (void)job;
    odc_config config = config_of(rank, size, NULL);
    config.all_gather = gather_nothing;
    FAIL_INIT(&config, "all_gather", "rank order");
}

static void test_callback_that_fails(void **state) {
    (void)state;
    scene *what = new_scene(1);
    run_processes(2, callback_fails, what);
    run_processes(2, callback_does_nothing, what);
}

/* Two processes pass the same rank. */
static void callback_disagrees(int rank, int size, const char *job, void *arg) {
    (void)job;
    gatherer self = {arg, rank, size, 0, 0};
    odc_config config = gather_config(&self);
    config.rank = 0;
    FAIL_INIT(&config, "rank 0", "own rank|two processes");
}

static void test_callback_of_two_alike(void **state) {
    (void)state;
    run_processes(2, callback_disagrees, new_scene(1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tcp_and_again),
        cmocka_unit_test(test_tcp_v6),
        cmocka_unit_test(test_tcp_by_host_name),
        cmocka_unit_test(test_late_rank_0),
        cmocka_unit_test(test_again_beside_forked_children),
        cmocka_unit_test(test_a_slash_in_a_job_is_no_group),
        cmocka_unit_test(test_bad_addresses),
        cmocka_unit_test(test_missing_ranks),
        cmocka_unit_test(test_missing_rank_0),
        cmocka_unit_test(test_one_number_twice),
        cmocka_unit_test(test_rank_0_twice),
        cmocka_unit_test(test_different_sizes),
        cmocka_unit_test(test_callback),
        cmocka_unit_test(test_callback_of_two_hosts),
        cmocka_unit_test(test_callback_that_fails),
        cmocka_unit_test(test_callback_of_two_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
