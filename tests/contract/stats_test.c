/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics: bytes moved, numbers of calls, and which rank was waited for in publish and in sync. */
#include "model.h"

#include <stdio.h>

enum { SLEEP_MS = 100, ROUNDS = 4 };

static odc_stats stats_of(odc_context *context) {
    odc_stats stats;
    memset(&stats, 0xff, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK_OK(odc_get_stats(context, &stats));
    CHECK_EQUAL(stats.struct_size, sizeof stats);
    return stats;
}

static odc_peer_stats peer_stats_of(odc_context *context, int rank) {
    odc_peer_stats stats;
    memset(&stats, 0xff, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK_OK(odc_get_peer_stats(context, rank, &stats));
    return stats;
}

static void counts(odc_context *context, void *arg) {
    (void)arg;
    uint64_t operation = 0;
    odc_stats stats = stats_of(context);
    CHECK(stats.gather_calls == 0 && stats.gather_bytes == 0 && stats.scatter_add_calls == 0);
    CHECK(stats.scatter_add_bytes == 0 && stats.syncs == 0 && stats.publish_wait_ns == 0);
    CHECK(stats.sync_wait_ns == 0 && stats.lock_wait_ns == 0 && stats.slice_bytes == 0);
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_BF16);
    tensor frozen = make_tensor(context, "frozen", 10, ODC_BYTES, 0);
    CHECK_EQUAL(stats_of(context).slice_bytes, 500 * 8 + 5);
    for (int minibatch = 0; minibatch < 4; ++minibatch) {
        char full[4000] = {0};
        CHECK_OK(odc_publish_all(context, NULL));
        CHECK_OK(odc_gather(t.shard, full, 1000, NULL));
        CHECK_OK(odc_gather(frozen.shard, full, 10, NULL));
        CHECK_OK(odc_gather_start(t.shard, full, 1000, NULL, &operation));
        CHECK_OK(odc_wait(context, operation));
        memset(full, 0, sizeof full);
        for (int i = 0; i < minibatch; ++i) {
            CHECK_OK(odc_scatter_add(t.shard, full, 1000, NULL));
        }
        CHECK(odc_gather(t.shard, full, 999, NULL) != ODC_OK); /* not counted */
        CHECK_OK(odc_minibatch_sync(context));
    }
    stats = stats_of(context);
    CHECK_EQUAL(stats.gather_calls, 12);
    CHECK_EQUAL(stats.gather_bytes, 4 * (4000 + 10 + 4000));
    CHECK_EQUAL(stats.scatter_add_calls, 6);
    CHECK_EQUAL(stats.scatter_add_bytes, 6 * 2000);
    CHECK_EQUAL(stats.syncs, 4);
    CHECK_OK(odc_release_shard(t.shard));
    CHECK_EQUAL(stats_of(context).slice_bytes, 5);
    CHECK_OK(odc_shutdown(context));
    CHECK_EQUAL(stats_of(context).gather_calls, 12);
}

static void calls_and_bytes_are_counted(void **state) {
    (void)state;
    run_ranks(2, counts, NULL);
}

/* Ranks 0 and 1 raise a flag before they wait; then rank 2 lets them go on, each time a while later. */
static void be_late(odc_context *context, atomic_int *waiting, int round) {
    if (odc_rank(context) == 2) {
        await_flag(waiting, 2 * round);
        sleep_ms(SLEEP_MS);
    } else {
        raise_flag(waiting);
    }
}

/* A busy machine may delay a rank between its flag and its wait, so half of the sleep must be measured. */
static int is_seen(uint64_t ns) { return ns >= (uint64_t)ROUNDS * SLEEP_MS * 1000000 / 2; }

static void publishes_late(odc_context *context, void *arg) {
    atomic_int *waiting = arg;
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    double unnamed = 1; /* by some rank: a busy machine may delay another publish, too; then rounds follow */
    for (int round = 1; round <= ROUNDS || (unnamed != 0 && round <= 20 * ROUNDS); ++round) {
        float full[1000] = {0};
        if (odc_rank(context) == 2) {
            be_late(context, waiting, round);
        }
        CHECK_OK(odc_publish(t.shard, NULL));
        if (odc_rank(context) != 2) {
            be_late(context, waiting, round);
        }
        CHECK_OK(odc_gather(t.shard, full, 1000, NULL));
        CHECK_OK(odc_minibatch_sync(context));
        unnamed = odc_rank(context) != 2 && peer_stats_of(context, 2).publish_wait_ns <=
                                                peer_stats_of(context, 1 - odc_rank(context)).publish_wait_ns;
        CHECK_OK(odc_all_reduce(context, &unnamed, 1, ODC_MAX));
    }
    odc_stats stats = stats_of(context);
    uint64_t sum = 0;
    for (int rank = 0; rank < 3; ++rank) {
        sum += peer_stats_of(context, rank).publish_wait_ns;
    }
    CHECK_EQUAL(sum, stats.publish_wait_ns);
    CHECK_EQUAL(peer_stats_of(context, odc_rank(context)).publish_wait_ns, 0);
    if (odc_rank(context) != 2) {
        CHECK(is_seen(peer_stats_of(context, 2).publish_wait_ns));
    }
    CHECK(unnamed == 0);
}

static void waits_for_a_publish_name_the_straggler(void **state) {
    (void)state;
    run_ranks(3, publishes_late, share(sizeof(atomic_int)));
}

static void syncs_late(odc_context *context, void *arg) {
    atomic_int *waiting = arg;
    uint64_t last = 0;
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    for (int round = 1; round <= ROUNDS; ++round) {
        CHECK_OK(odc_publish(t.shard, NULL));
        be_late(context, waiting, round);
        uint64_t before[3];
        for (int rank = 0; rank < 3; ++rank) {
            before[rank] = peer_stats_of(context, rank).sync_last;
        }
        CHECK_OK(odc_minibatch_sync(context));
        for (int rank = 0; rank < 3; ++rank) {
            const uint64_t more = rank == (int)stats_of(context).sync_last_rank;
            CHECK_EQUAL(peer_stats_of(context, rank).sync_last, before[rank] + more);
        }
    }
    odc_stats stats = stats_of(context);
    for (int rank = 0; rank < 3; ++rank) {
        last += peer_stats_of(context, rank).sync_last;
    }
    CHECK_EQUAL(last, ROUNDS);
    CHECK(peer_stats_of(context, 2).sync_last >= ROUNDS / 2); /* on every rank, including that one */
    CHECK_EQUAL(peer_stats_of(context, odc_rank(context)).sync_late_ns, 0);
    if (odc_rank(context) != 2) {
        CHECK(is_seen(peer_stats_of(context, 2).sync_late_ns));
        CHECK(is_seen(stats.sync_wait_ns));
        CHECK(peer_stats_of(context, 2).sync_late_ns > peer_stats_of(context, 1 - odc_rank(context)).sync_late_ns);
    } else {
        CHECK(!is_seen(stats.sync_wait_ns));
    }
}

static void waits_in_sync_name_the_straggler(void **state) {
    (void)state;
    run_ranks(3, syncs_late, share(sizeof(atomic_int)));
}

static void reduces_late(odc_context *context, void *arg) {
    atomic_int *waiting = arg;
    for (int round = 1; round <= ROUNDS; ++round) {
        double value = 1;
        be_late(context, waiting, round);
        CHECK_OK(odc_all_reduce(context, &value, 1, ODC_SUM));
    }
    CHECK(odc_rank(context) == 2 || is_seen(stats_of(context).sync_wait_ns));
}

static void waits_in_a_reduction_count_as_waits_for_the_last(void **state) {
    (void)state;
    run_ranks(3, reduces_late, share(sizeof(atomic_int)));
}

static void contends(odc_context *context, void *arg) {
    (void)arg;
    enum { NUMEL = 50000 };
    tensor t = make_tensor(context, "layer", NUMEL, 0, ODC_F64);
    double *full = new_full(NUMEL, ODC_F64);
    fill_gradients(t, full, 1);
    for (int minibatch = 0; minibatch < 20 / (slowdown() > 1 ? 5 : 1); ++minibatch) {
        CHECK_OK(odc_publish(t.shard, NULL));
        for (int i = 0; i < 20; ++i) {
            CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, NULL));
        }
        CHECK_OK(odc_minibatch_sync(context));
    }
    CHECK(stats_of(context).lock_wait_ns < (uint64_t)60 * 1000000000);
    CHECK(odc_size(context) > 1 || stats_of(context).lock_wait_ns == 0);
    free(full);
}

static void waits_for_locks_are_counted(void **state) {
    (void)state;
    run_ranks(1, contends, NULL); /* nobody to wait for */
    run_ranks(4, contends, NULL);
}

/* Waits until one packet per peer has been sent since there were `before`, and a while for more, which would be too many. The
 * least of all tries counts: heartbeats interfere. */
static void count_packets(odc_context *context, uint64_t before, uint64_t peers, uint64_t *least) {
    int64_t end = now_ns() + 30 * (int64_t)1000000000;
    while (stats_of(context).packets_sent - before < peers) {
        CHECK(now_ns() < end);
        sleep_us(100);
    }
    sleep_ms(10);
    uint64_t took = stats_of(context).packets_sent - before;
    *least = took < *least ? took : *least;
}

/* Messages between hosts that a rank sends in a sync or a reduction: it tells, of log2(hosts) hosts, the ranks of its own index
 * there, and those of higher indices that its host has no rank for. Ranks are dealt out to hosts one by one (hosts.h). */
static uint64_t messages_of_a_call(int rank, int ranks, int hosts) {
    int index = rank / hosts;
    int here = ranks / hosts + (rank % hosts < ranks % hosts);
    uint64_t messages = 0;
    for (int distance = 1; distance < hosts; distance *= 2) {
        int host = (rank + distance) % hosts;
        int there = ranks / hosts + (host < ranks % hosts);
        for (int other = index; other < there; other += here) {
            ++messages;
        }
    }
    return messages;
}

static void sends_few_packets(odc_context *context, void *arg) {
    enum { TRIES = 20 };
    atomic_int *arrived = arg;
    int hosts = several_hosts() ? atoi(getenv("ODC_TEST_HOSTS")) : 1;
    hosts = hosts < odc_size(context) ? hosts : odc_size(context);
    uint64_t of_reduction = UINT64_MAX;
    uint64_t of_publish = UINT64_MAX;
    uint64_t of_sync = UINT64_MAX;
    uint64_t peers = 0; /* on other hosts */
    for (int rank = 0; rank < odc_size(context); ++rank) {
        peers += rank % hosts != odc_rank(context) % hosts;
    }
    uint64_t told = messages_of_a_call(odc_rank(context), odc_size(context), hosts);
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    double value = 1;
    for (int i = 0; i < TRIES; ++i) {
        uint64_t before = stats_of(context).packets_sent;
        CHECK_OK(odc_all_reduce(context, &value, 1, ODC_MAX));
        count_packets(context, before, told, &of_reduction);
        raise_flag(arrived);
        await_flag(arrived, (2 * i + 1) * odc_size(context));
        before = stats_of(context).packets_sent;
        CHECK_OK(odc_publish(t.shard, NULL));
        count_packets(context, before, peers, &of_publish);
        raise_flag(arrived);
        await_flag(arrived, (2 * i + 2) * odc_size(context));
        before = stats_of(context).packets_sent;
        CHECK_OK(odc_minibatch_sync(context));
        count_packets(context, before, told, &of_sync);
    }
    printf("rank %d of %d on %d hosts: %llu packets a reduction, %llu a publish, %llu a sync\n", odc_rank(context),
           odc_size(context), hosts, (unsigned long long)of_reduction, (unsigned long long)of_publish,
           (unsigned long long)of_sync);
    CHECK_EQUAL(of_reduction, told);
    CHECK_EQUAL(of_publish, peers);
    CHECK_EQUAL(of_sync, told);
}

static void a_collective_call_takes_a_packet_for_each_doubling_of_hosts_a_publish_one_for_each_peer(void **state) {
    (void)state;
    for (int ranks = 3; ranks <= 9; ranks += 3) {
        run_ranks(ranks, sends_few_packets, share(sizeof(atomic_int)));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_and_bytes_are_counted),
        cmocka_unit_test(waits_for_a_publish_name_the_straggler),
        cmocka_unit_test(waits_in_sync_name_the_straggler),
        cmocka_unit_test(waits_in_a_reduction_count_as_waits_for_the_last),
        cmocka_unit_test(waits_for_locks_are_counted),
        cmocka_unit_test(a_collective_call_takes_a_packet_for_each_doubling_of_hosts_a_publish_one_for_each_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
