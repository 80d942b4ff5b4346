/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies before, while and after a slice comes to the node cache: its owner, the holder of its entry, its reader, and a rank of
 * their host that has no part in it. Ranks 0, 2 and 4 are one host, 1 and 3 the other; rank 2 reads the slice of rank 1, which is the
 * only long one, into the entry that rank 0 holds. */
#include "hosts.h"
#include "model.h"
#include "stalling_link.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { HOLDER, OWNER, READER, KILLER, PEER, RANKS, OF_READERS_HOST = 3 };
enum { TIMEOUT_MS = 120000 }; /* ODC_SILENCE_MS counts up to half of it */
enum { SMALL = 1000, LARGE = 1 << 20, NUMEL = LARGE + (RANKS - 1) * SMALL };
enum { LONG_SLICE = LARGE * 4, LINK_BYTES = LONG_SLICE / 4, CHUNK = 512 << 10 };

typedef enum moment {
    UNPUBLISHED,   /* the reader waits for the owner's host to publish, which it does after the death */
    UNREAD,        /* all have published */
    HALF_READ,     /* the owner's link has stalled */
    LINK_RESTORED, /* likewise, but it goes on after the death */
    READ
} moment;

typedef struct death {
    int victim;
    moment at;
    stalling_link link; /* of the owner */
    atomic_int pid[RANKS];
    atomic_int published;    /* so many ranks have */
    atomic_int begun;        /* the reader has come as far as `at` says */
    waiting_threads waiting; /* in a gather */
    atomic_int killed;
    atomic_int gathered; /* so many survivors of the reader's host have, or cannot */
} death;

static int on_readers_host(int rank) { return rank % 2 == READER % 2; }

/* Whether ranks wait in a gather when the victim dies. */
static int dies_in_a_gather(const death *what) { return what->at != UNREAD && what->at != READ; }

static int stalls(const death *what) { return what->at == HALF_READ || what->at == LINK_RESTORED; }

static uint64_t fetched_bytes(odc_context *context) {
    odc_stats stats = {.struct_size = sizeof stats};
    CHECK_OK(odc_get_stats(context, &stats));
    return stats.fetched_bytes;
}

static void check_lost(const death *what, odc_status status) {
    char victim[32];
    snprintf(victim, sizeof victim, "rank %d (", what->victim);
    CHECK_EQUAL(status, ODC_ERROR_PEER_LOST);
    CHECK_SENTENCE(odc_last_error(), victim, "died|is lost");
}

/* After the death, of which others hear only later: what is there is gathered, and what does not come names the victim. */
static void check_gathered(death *what, tensor t, const float *full, odc_status status) {
    if (status == ODC_OK) {
        CHECK(what->at != HALF_READ);
        check_full(t, full, 2);
    } else {
        CHECK(what->at != READ || !on_readers_host(what->victim));
        check_lost(what, status);
    }
    raise_flag(&what->gathered);
}

static uint64_t begin_to_read(odc_context *context, death *what, tensor t, float *full) {
    const uint64_t before = fetched_bytes(context);
    uint64_t operation = 0;
    CHECK_OK(odc_gather_start(t.shard, full, NUMEL, NULL, &operation));
    if (what->at == READ) {
        CHECK_OK(odc_wait(context, operation));
    } else if (stalls(what)) {
        await_flag(&what->link.stalled, 1);
        for (int tries = 0; fetched_bytes(context) < before + CHUNK; ++tries) {
            CHECK(tries < 30000);
            sleep_ms(1);
        }
        CHECK(fetched_bytes(context) < before + LONG_SLICE);
    }
    return operation;
}

static void live_on_readers_host(int rank, odc_context *context, death *what, tensor t) {
    float *full = new_full(NUMEL, ODC_F32);
    uint64_t operation = 0;
    if (rank == READER) {
        await_flag(&what->published, what->at == UNPUBLISHED ? OF_READERS_HOST : RANKS);
        operation = what->at != UNREAD ? begin_to_read(context, what, t, full) : 0;
        set_flag(&what->begun, 1);
    }
    await_flag(&what->begun, 1);
    if (dies_in_a_gather(what)) {
        add_waiter(&what->waiting);
    } else if (rank == what->victim) {
        pause();
    } else {
        await_flag(&what->killed, 1);
    }
    const int waits = rank == READER && dies_in_a_gather(what);
    const odc_status status = waits ? odc_wait(context, operation) : odc_gather(t.shard, full, NUMEL, NULL);
    if (rank == what->victim) {
        pause();
    }
    check_gathered(what, t, full, status);
    free(full);
}

static void kill_victim(death *what) {
    await_flag(&what->begun, 1);
    if (dies_in_a_gather(what)) {
        await_waiters(&what->waiting, OF_READERS_HOST);
    }
    await_flag(&what->pid[what->victim], 1);
    CHECK(kill(read_flag(&what->pid[what->victim]), SIGKILL) == 0);
    set_flag(&what->killed, 1);
    if (what->at == LINK_RESTORED) {
        restore_link(&what->link);
    }
}

static void live_on_owners_host(int rank, death *what) {
    if (rank == KILLER) {
        kill_victim(what);
    } else if (rank == what->victim) {
        pause();
    }
}

static void live_around_a_read(int rank, int size, const char *job, void *arg) {
    death *what = arg;
    odc_context *context = join_within(rank, size, job, TIMEOUT_MS);
    odc_shard_desc desc = describe("layer", NUMEL, ODC_F32, 0);
    desc.slices = (uint64_t[]){SMALL, LARGE, SMALL, SMALL, SMALL};
    tensor t = make_described(context, &desc);
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    write_parameters(t, 2);
    set_flag(&what->pid[rank], getpid());
    if (rank == OWNER && stalls(what)) {
        limit_link(&what->link, LINK_BYTES);
    }
    if (what->at == UNPUBLISHED && !on_readers_host(rank)) {
        live_on_owners_host(rank, what);
        await_flag(&what->killed, 1);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    raise_flag(&what->published);
    if (on_readers_host(rank)) {
        live_on_readers_host(rank, context, what, t);
    } else if (what->at != UNPUBLISHED) {
        live_on_owners_host(rank, what);
    }
    await_flag(&what->gathered, OF_READERS_HOST - on_readers_host(what->victim));
    odc_status status = odc_minibatch_sync(context);
    check_lost(what, status);
    odc_destroy(context);
}

static void run_death(const char *test, int victim, moment at) {
    death *what = share(sizeof *what);
    what->victim = victim;
    what->at = at;
    run_processes_of(test, RANKS, (uint64_t)1 << victim, live_around_a_read, what);
}

static void run_deaths(const char *test, int victim) {
    needs_processes("it kills ranks");
    for (moment at = UNPUBLISHED; at <= READ; ++at) {
        if (victim != OWNER || at != LINK_RESTORED) { /* whose link is */
            run_death(test, victim, at);
        }
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

static void the_death_of_the_reader_is_told(void **state) {
    (void)state;
    run_deaths(__func__, READER);
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
        cmocka_unit_test(the_death_of_the_reader_is_told),
        cmocka_unit_test(the_death_of_a_rank_without_a_part_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
