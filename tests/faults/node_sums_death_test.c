/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies before, while and after a host's sums are sent: the owner that adds them, the holder in whose memory they are, and the
 * rank that sends them. All others are told. Ranks 0 and 2 are one host, 1 and 3 the other. */
#include "hosts.h"
#include "model.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { RANKS = 4, NUMEL = 400000, HOLDER = 0, OWNER = 1, SENDER = 2, KILLER = 3 };

typedef enum moment { BEFORE, WHILE_SENT, AFTER } moment;

typedef struct death {
    int victim;
    moment at;
    atomic_int pid[RANKS];
    atomic_int added;   /* so many ranks have added, and all but the sender have finished */
    atomic_int stopped; /* the owner is */
    atomic_int sent;    /* the sender has finished, too */
    atomic_int killed;
} death;

static uint64_t sent_bytes(odc_context *context) {
    odc_stats stats = {.struct_size = sizeof stats};
    CHECK_OK(odc_get_stats(context, &stats));
    return stats.sent_bytes;
}

static void finish_last(odc_context *context, tensor t, death *what) {
    const uint64_t before = sent_bytes(context);
    await_flag(&what->added, RANKS);
    if (what->at == WHILE_SENT) {
        await_flag(&what->stopped, 1);
    }
    CHECK_OK(odc_finish(t.shard, NULL));
    for (int tries = 0; what->at == AFTER && sent_bytes(context) < before + NUMEL / 2 * sizeof(float); ++tries) {
        CHECK(tries < 30000);
        sleep_ms(1);
    }
    CHECK(what->at == AFTER || sent_bytes(context) < before + NUMEL / 2 * sizeof(float));
    set_flag(&what->sent, 1);
}

static void kill_victim(death *what) {
    await_flag(&what->added, RANKS);
    if (what->at == WHILE_SENT) {
        stop_process(read_flag(&what->pid[OWNER]));
        set_flag(&what->stopped, 1);
    }
    if (what->at != BEFORE) {
        await_flag(&what->sent, 1);
    }
    CHECK(kill(read_flag(&what->pid[what->victim]), SIGKILL) == 0);
    if (what->at == WHILE_SENT && what->victim != OWNER) {
        CHECK(kill(read_flag(&what->pid[OWNER]), SIGCONT) == 0);
    }
    set_flag(&what->killed, 1);
}

static void live_around_a_send(int rank, int size, const char *job, void *arg) {
    char victim[32];
    death *what = arg;
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 1);
    set_flag(&what->pid[rank], getpid());
    CHECK_OK(odc_publish(t.shard, NULL));
    add_gradients(t, 2);
    if (rank != SENDER) {
        CHECK_OK(odc_finish(t.shard, NULL));
    }
    raise_flag(&what->added);
    if (rank == SENDER && what->at != BEFORE) {
        finish_last(context, t, what);
    }
    if (rank == KILLER) {
        kill_victim(what);
    } else if (rank == what->victim) {
        pause();
    }
    await_flag(&what->killed, 1);
    snprintf(victim, sizeof victim, "rank %d (", what->victim);
    CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST);
    CHECK_SENTENCE(odc_last_error(), victim, "died|is lost");
    odc_destroy(context);
}

static void run_deaths(const char *test, int victim) {
    for (moment at = BEFORE; at <= AFTER; ++at) {
        death *what = share(sizeof *what);
        what->victim = victim;
        what->at = at;
        run_processes_of(test, RANKS, (uint64_t)1 << victim, live_around_a_send, what);
    }
}

static void the_death_of_the_owner_is_told(void **state) {
    (void)state;
    needs_processes("it kills ranks");
    run_deaths(__func__, OWNER);
}

static void the_death_of_the_holder_is_told(void **state) {
    (void)state;
    needs_processes("it kills ranks");
    run_deaths(__func__, HOLDER);
}

static void the_death_of_the_sender_is_told(void **state) {
    (void)state;
    needs_processes("it kills ranks");
    run_deaths(__func__, SENDER);
}

int main(void) {
    setenv("ODC_TEST_HOSTS", "2", 1);
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "60000", 0); /* a stopped rank must not count as silent */
    setenv("ODC_NODE_CACHE", "auto", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_death_of_the_owner_is_told),
        cmocka_unit_test(the_death_of_the_holder_is_told),
        cmocka_unit_test(the_death_of_the_sender_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
