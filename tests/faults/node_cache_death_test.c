/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies around a read into the node cache: the reader while it reads and after it, and the owner. Ranks 0 and 2 are one host,
 * 1 and 3 the other. */
#include "hosts.h"
#include "model.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { RANKS = 4, NUMEL = 400000 };

typedef enum moment { BEFORE_THE_READ, WHILE_READING, AFTER_THE_READ } moment;

typedef struct death {
    int victim;
    moment at;
    atomic_int begun;    /* rank 0 has begun to read, or has read all, or will not */
    atomic_int pid;      /* of the victim */
    atomic_int killed;   /* the victim has been sent its signal */
    atomic_int gathered; /* rank 2 has */
} death;

static void check_lost(const death *what, odc_status status) {
    char victim[32];
    snprintf(victim, sizeof victim, "rank %d (", what->victim);
    CHECK_EQUAL(status, ODC_ERROR_PEER_LOST);
    CHECK_SENTENCE(odc_last_error(), victim, "died|is lost");
}

static void kill_victim(death *what) {
    await_flag(&what->begun, 1);
    await_flag(&what->pid, 1);
    CHECK(kill(read_flag(&what->pid), SIGKILL) == 0);
    set_flag(&what->killed, 1);
}

/* After the death, of which others hear only later: what is there is gathered, and what does not come names the victim. */
static void gather_after(const death *what, tensor t, float *full) {
    odc_status status = odc_gather(t.shard, full, NUMEL, NULL);
    if (status == ODC_OK && what->at != WHILE_READING) {
        check_full(t, full, 2);
    } else {
        CHECK(what->at != AFTER_THE_READ);
        check_lost(what, status);
    }
}

/* Rank 0 reads for its host, outside calls. The other host publishes after the death if that comes while it reads. */
static void live_around_a_read(int rank, int size, const char *job, void *arg) {
    death *what = arg;
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    tensor last = make_tensor(context, "published last", RANKS, ODC_F32, 0);
    use_once(context, (tensor[]){t, last}, 2, 1);
    write_parameters(t, 2);
    write_parameters(last, 2);
    float *full = new_full(NUMEL, ODC_F32);
    if (rank == what->victim) {
        set_flag(&what->pid, getpid());
    }
    if (rank % 2 == 1 && what->at == WHILE_READING) {
        await_flag(&what->begun, 1);
        await_flag(&what->killed, 1); /* the victim, too */
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_publish(last.shard, NULL));
    if (rank == 0 && what->at == BEFORE_THE_READ) {
        set_flag(&what->begun, 1);
    } else if (rank == 0) {
        uint64_t operation = 0;
        CHECK_OK(odc_gather_start(t.shard, full, NUMEL, NULL, &operation));
        if (what->at == AFTER_THE_READ) {
            CHECK_OK(odc_wait(context, operation));
        }
        set_flag(&what->begun, 1);
    }
    if (rank == what->victim) {
        pause();
    }
    if (rank == 2) {
        if (what->at != WHILE_READING) {
            check_gather(last, 2); /* it has heard of all publishes */
        }
        kill_victim(what);
        gather_after(what, t, full);
        set_flag(&what->gathered, 1);
    }
    await_flag(&what->gathered, 1);
    odc_status status = odc_minibatch_sync(context);
    check_lost(what, status);
    odc_destroy(context);
    free(full);
}

static void run_death(const char *test, int victim, moment at) {
    death *what = share(sizeof *what);
    what->victim = victim;
    what->at = at;
    run_processes_of(test, RANKS, (uint64_t)1 << victim, live_around_a_read, what);
}

static void a_reader_that_dies_is_named_by_who_waits_for_its_slice(void **state) {
    (void)state;
    needs_processes("it kills ranks");
    run_death(__func__, 0, BEFORE_THE_READ);
    run_death(__func__, 0, WHILE_READING);
}

static void what_a_dead_rank_has_read_is_still_there(void **state) {
    (void)state;
    needs_processes("it kills ranks");
    run_death(__func__, 0, AFTER_THE_READ);
}

static void an_owner_that_dies_is_named_by_who_waits_for_the_cache(void **state) {
    (void)state;
    needs_processes("it kills ranks");
    run_death(__func__, 1, WHILE_READING);
    run_death(__func__, 3, WHILE_READING);
}

int main(void) {
    setenv("ODC_TEST_HOSTS", "2", 1);
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "60000", 0); /* a busy machine must not count as silent */
    setenv("ODC_NODE_CACHE", "auto", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_that_dies_is_named_by_who_waits_for_its_slice),
        cmocka_unit_test(what_a_dead_rank_has_read_is_still_there),
        cmocka_unit_test(an_owner_that_dies_is_named_by_who_waits_for_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
