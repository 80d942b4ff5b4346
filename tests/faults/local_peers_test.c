/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank knows of itself and of its local peers reaches other hosts: its errors, deaths that only its host sees, and what
 * it has published, in few packets. */
#include "model.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { LOCAL_PEER, OBSERVER, VICTIM, RANKS }; /* by ODC_TEST_HOSTS=2 the first and the last are on one host */

typedef struct scene {
    int exec; /* the victim calls exec instead of dying */
    atomic_int waiting;
    atomic_int over;
} scene;

static tensor one_minibatch(odc_context *context) {
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 1);
    return t;
}

/* The victim's child keeps all its open descriptors, so its port still accepts connections. */
static void end_and_leave_a_child(scene *what) {
    leave_cloned_child();
    if (what->exec) {
        replace_program();
    }
    raise(SIGKILL);
}

static void ends_and_leaves_a_child(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_context *context = join(rank, size, job);
    tensor t = one_minibatch(context);
    float full[1000];
    if (rank == VICTIM) {
        await_flag(&what->waiting, 1);
        end_and_leave_a_child(what);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == LOCAL_PEER) {
        await_flag(&what->over, 1); /* computes and waits for nobody */
    } else {
        raise_flag(&what->waiting);
        CHECK_ERROR(odc_gather(t.shard, full, 1000, NULL), ODC_ERROR_PEER_LOST, "rank 2", "is lost",
                    what->exec ? "it replaced its program (exec), as rank 0 of its host has seen"
                               : "it died, as rank 0 of its host has seen");
        raise_flag(&what->over);
    }
    odc_destroy(context);
}

static void a_death_is_reported_to_other_hosts_by_local_peers_that_wait_for_nobody(void **state) {
    (void)state;
    needs_processes("it ends a rank by a signal");
    run_mortals(RANKS, (uint64_t)1 << VICTIM, ends_and_leaves_a_child, share(sizeof(scene)));
}

static void an_exec_is_reported_to_other_hosts_by_local_peers_that_wait_for_nobody(void **state) {
    (void)state;
    needs_processes("it replaces a rank's program");
    scene *what = share(sizeof *what);
    what->exec = 1;
    run_mortals(RANKS, (uint64_t)1 << VICTIM, ends_and_leaves_a_child, what);
}

/* From now on they run on one core, and the others do not preempt the caller when they wake up. */
static void let_threads_wait_for_the_caller(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks)) {
        pid_t thread = atoi(task->d_name);
        if (thread > 0) {
            CHECK(sched_setaffinity(thread, sizeof one, &one) == 0);
        }
        if (thread > 0 && thread != getpid()) {
            CHECK(sched_setscheduler(thread, SCHED_BATCH, &(struct sched_param){0}) == 0);
        }
    }
    closedir(tasks);
}

/* Rank 0 uses a shard that rank 1 has released, which is a job error, and ends. */
static void fails_and_ends(int rank, int size, const char *job, void *arg) {
    (void)arg;
    odc_context *context = join(rank, size, job);
    tensor t = one_minibatch(context);
    float full[1000];
    if (rank == 1) {
        CHECK_OK(odc_release_shard(t.shard));
    }
    CHECK_OK(odc_all_reduce(context, &(double){1}, 1, ODC_SUM)); /* returns when it has */
    if (rank == 0) {
        CHECK_OK(odc_publish(t.shard, NULL));
        let_threads_wait_for_the_caller();
        CHECK_EQUAL(odc_gather(t.shard, full, 1000, NULL), ODC_ERROR_MISMATCH);
        _exit(0);
    }
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_MISMATCH, "rank 1", "released", "rank 0", "uses it");
    odc_destroy(context);
}

static void a_program_that_ends_after_its_error_has_reported_it(void **state) {
    (void)state;
    needs_processes("it ends a process");
    for (int round = 0; round < 5; ++round) {
        run_processes(2, fails_and_ends, NULL);
    }
}

static uint64_t packets_of(odc_context *context) {
    odc_stats stats = {.struct_size = sizeof stats};
    CHECK_OK(odc_get_stats(context, &stats));
    return stats.packets_sent;
}

/* Heartbeats are packets, too, so the least of many tries counts. */
static void publishes_many_shards(odc_context *context, void *arg) {
    enum { SHARDS = 500, TRIES = 20 };
    (void)arg;
    char names[SHARDS][24];
    odc_shard_desc descs[SHARDS];
    odc_shard *shards[SHARDS];
    uint64_t fewest = UINT64_MAX;
    for (int i = 0; i < SHARDS; ++i) {
        snprintf(names[i], sizeof names[i], "layer %d", i);
        descs[i] = describe(names[i], 100, ODC_F32, ODC_F32);
    }
    CHECK_OK(odc_register_shards(context, descs, SHARDS, shards));
    for (int i = 0; i < TRIES; ++i) {
        float full[100];
        CHECK_OK(odc_all_reduce(context, &(double){1}, 1, ODC_SUM)); /* earlier messages have been sent */
        sleep_ms(5);
        uint64_t before = packets_of(context);
        CHECK_OK(odc_publish_all(context, NULL));
        CHECK_OK(odc_gather(shards[SHARDS - 1], full, 100, NULL)); /* returns when all have published */
        uint64_t sent = packets_of(context) - before;
        fewest = sent < fewest ? sent : fewest;
        CHECK_OK(odc_minibatch_sync(context));
    }
    printf("packets of odc_publish_all of %d shards to %d ranks of other hosts: %d\n", SHARDS,
           (odc_size(context) + 1) / 2, (int)fewest);
    CHECK(fewest <= (uint64_t)(odc_size(context) + 1) / 2);
}

static void publishing_all_shards_costs_at_most_one_packet_a_peer(void **state) {
    (void)state;
    run_ranks(4, publishes_many_shards, NULL);
}

int main(void) {
    setenv("ODC_TEST_HOSTS", "2", 1);
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "60000", 1); /* so that only messages count */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_reported_to_other_hosts_by_local_peers_that_wait_for_nobody),
        cmocka_unit_test(an_exec_is_reported_to_other_hosts_by_local_peers_that_wait_for_nobody),
        cmocka_unit_test(a_program_that_ends_after_its_error_has_reported_it),
        cmocka_unit_test(publishing_all_shards_costs_at_most_one_packet_a_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
