/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies before, while and after a host's sums are sent: the owner that adds them, the holder in whose memory they are, the rank
 * that sends them, and one of their host that has no part in it. All others are told. Ranks 0, 2 and 4 are one host, 1 and 3 the
 * other; rank 2 sends what its host has added to the slice of rank 1, the only long one, and rank 0 holds. */
#include "hosts.h"
#include "model.h"
#include "stalling_link.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { HOLDER, OWNER, SENDER, KILLER, PEER, RANKS };
enum { TIMEOUT_MS = 120000 }; /* ODC_SILENCE_MS counts up to half of it */
enum { SMALL = 1000, LARGE = 1 << 20, NUMEL = LARGE + (RANKS - 1) * SMALL };
enum { SUMS = (LARGE + SMALL) * 4, LINK_BYTES = LARGE }; /* bytes of the other host's slices; a quarter of them */

typedef enum moment {
    UNSENT,    /* all have added, and all but the sender finished */
    HALF_SENT, /* the sender's link has stalled */
    SENT       /* the owner has applied the sums */
} moment;

typedef struct death {
    int victim;
    moment at;
    stalling_link link; /* of the sender */
    atomic_int pid[RANKS];
    atomic_int finished;     /* so many ranks have, in the end all but the sender */
    atomic_int begun;        /* the sender has come as far as `at` says */
    waiting_threads waiting; /* in the sync */
    atomic_int killed;
} death;

static uint64_t sent_bytes(odc_context *context) {
    odc_stats stats = {.struct_size = sizeof stats};
    CHECK_OK(odc_get_stats(context, &stats));
    return stats.sent_bytes;
}

static void finish_last(odc_context *context, tensor t, death *what) {
    const uint64_t before = sent_bytes(context);
    await_flag(&what->finished, RANKS - 1);
    if (what->at == HALF_SENT) {
        limit_link(&what->link, LINK_BYTES);
    }
    CHECK_OK(odc_finish(t.shard, NULL));
    if (what->at == HALF_SENT) {
        await_flag(&what->link.stalled, 1);
        CHECK(sent_bytes(context) < before + SUMS);
        return;
    }
    for (int tries = 0; sent_bytes(context) < before + SUMS; ++tries) {
        CHECK(tries < 30000);
        sleep_ms(1);
    }
}

/* The sync of a job whose ranks have all arrived succeeds, so a victim is in it only where the sender cannot arrive. */
static int waits_in_sync(const death *what, int rank) {
    if (rank == KILLER || (rank == SENDER && what->at == UNSENT)) {
        return 0;
    }
    return rank != what->victim || what->at == HALF_SENT;
}

static void kill_victim(death *what) {
    int waiting = 0;
    for (int rank = 0; rank < RANKS; ++rank) {
        waiting += waits_in_sync(what, rank);
    }
    await_flag(&what->begun, 1);
    await_waiters(&what->waiting, waiting);
    CHECK(kill(read_flag(&what->pid[what->victim]), SIGKILL) == 0);
    set_flag(&what->killed, 1);
}

static void live_around_a_send(int rank, int size, const char *job, void *arg) {
    char victim[32];
    death *what = arg;
    odc_context *context = join_within(rank, size, job, TIMEOUT_MS);
    odc_shard_desc desc = describe("layer", NUMEL, 0, ODC_F32);
    desc.slices = (uint64_t[]){SMALL, LARGE, SMALL, SMALL, SMALL};
    tensor t = make_described(context, &desc);
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    set_flag(&what->pid[rank], getpid());
    CHECK_OK(odc_publish(t.shard, NULL));
    add_gradients(t, 2);
    if (rank != SENDER) {
        CHECK_OK(odc_finish(t.shard, NULL));
        raise_flag(&what->finished);
    } else {
        if (what->at != UNSENT) {
            finish_last(context, t, what);
        }
        set_flag(&what->begun, 1);
    }
    if (rank == KILLER) {
        kill_victim(what);
    } else if (waits_in_sync(what, rank)) {
        add_waiter(&what->waiting);
    } else {
        await_flag(&what->killed, 1);
    }
    if (rank == what->victim && what->at != HALF_SENT) {
        pause();
    }
    snprintf(victim, sizeof victim, "rank %d (", what->victim);
    CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST);
    CHECK_SENTENCE(odc_last_error(), victim, "died|is lost");
    odc_destroy(context);
}

static void run_deaths(const char *test, int victim) {
    needs_processes("it kills ranks");
    for (moment at = UNSENT; at <= SENT; ++at) {
        death *what = share(sizeof *what);
        what->victim = victim;
        what->at = at;
        run_processes_of(test, RANKS, (uint64_t)1 << victim, live_around_a_send, what);
    }
}

static void the_death_of_the_owner_is_told(void **state) {
    (void)state;
    run_deaths(__func__, OWNER);
}

static void the_death_of_the_holder_is_told(void **state) {
    (void)state;
    run_deaths(__func__, HOLDER);
}

static void the_death_of_the_sender_is_told(void **state) {
    (void)state;
    run_deaths(__func__, SENDER);
}

static void the_death_of_a_rank_without_a_part_is_told(void **state) {
    (void)state;
    run_deaths(__func__, PEER);
}

int main(void) {
    setenv("ODC_TEST_HOSTS", "2", 1);
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "60000", 0); /* neither a busy machine nor a stalled link counts as silent */
    setenv("ODC_NODE_CACHE", "auto", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_death_of_the_owner_is_told),
        cmocka_unit_test(the_death_of_the_holder_is_told),
        cmocka_unit_test(the_death_of_the_sender_is_told),
        cmocka_unit_test(the_death_of_a_rank_without_a_part_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
