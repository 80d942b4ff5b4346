/* SPDX-License-Identifier: Apache-2.0 */
/* Job errors other than death (stuck, aborted, left), and the calls of a forked child: which ranks read which error, and for
 * how long. */
#include "model.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_MS = 2000 };

typedef struct flags {
    atomic_int a;
    atomic_int b;
} flags;

static tensor plain(odc_context *context, const char *name) {
    return make_tensor(context, name, 1000, ODC_F32, ODC_F32);
}

/* Every later call that waits returns the same error. */
static void check_sticks(odc_context *context, odc_status status) {
    char sentence[2048];
    odc_shard_desc desc = describe("another", 10, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    snprintf(sentence, sizeof sentence, "%s", odc_last_error());
    CHECK_KEPT(odc_minibatch_sync(context), status, sentence);
    CHECK_KEPT(odc_register_shard(context, &desc, &shard), status, sentence);
    CHECK_KEPT(odc_minibatch_sync(context), status, sentence);
}

/* ---- Alive but stuck ---- */

typedef enum stuck_in { STUCK_IN_SYNC, STUCK_IN_GATHER, STUCK_IN_WAIT, STUCK_IN_REDUCTION, STUCK_STOPPED } stuck_in;

typedef struct stuck {
    stuck_in kind;
    atomic_int joined;
    atomic_int told;
} stuck;

static void one_minibatch(odc_context *context, tensor t) {
    CHECK_OK(odc_publish_all(context, NULL));
    check_gather(t, 1);
    CHECK_OK(odc_minibatch_sync(context));
}

static void be_stuck(stuck *what, odc_context *context, tensor t) {
    if (what->kind == STUCK_STOPPED) {
        await_flag(&what->joined, 3);
        raise(SIGSTOP);
    }
    if (what->kind == STUCK_IN_SYNC) {
        CHECK_OK(odc_publish_all(context, NULL));
        check_gather(t, 1);
    }
    await_flag(&what->told, 2); /* its program computes on; it gets the error when it waits for the others */
    odc_status status = ODC_OK;
    for (int i = 0; i < 2 && status == ODC_OK; ++i) {
        if (what->kind != STUCK_IN_SYNC || i > 0) {
            CHECK_OK(odc_publish_all(context, NULL));
        }
        status = odc_minibatch_sync(context);
    }
    CHECK_EQUAL(status, ODC_ERROR_TIMEOUT);
    CHECK_SENTENCE(odc_last_error(), "rank 1");
    check_sticks(context, ODC_ERROR_TIMEOUT);
}

/* Waits for the stuck rank until the deadline; the error reports its last call. */
static void wait_for_stuck(stuck_in kind, odc_context *context, tensor t) {
    float full[1000];
    uint64_t operation = 0;
    if (kind != STUCK_IN_REDUCTION) {
        CHECK_OK(odc_publish_all(context, NULL));
    }
    switch (kind) {
        case STUCK_IN_GATHER:
            CHECK_ERROR(odc_gather(t.shard, full, 1000, NULL), ODC_ERROR_TIMEOUT, "rank 1", "layer.7", "minibatch 1",
                        "publish", "sync");
            break;
        case STUCK_IN_WAIT:
            CHECK_OK(odc_gather_start(t.shard, full, 1000, NULL, &operation));
            CHECK_ERROR(odc_wait(context, operation), ODC_ERROR_TIMEOUT, "rank 1", "layer.7", "minibatch 1", "publish");
            break;
        case STUCK_IN_REDUCTION:
            CHECK_ERROR(odc_all_reduce(context, &(double){1}, 1, ODC_SUM), ODC_ERROR_TIMEOUT, "rank 1",
                        "odc_all_reduce", "minibatch 1", "sync");
            break;
        case STUCK_IN_SYNC: /* in which rank 1 has gathered */
            CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_TIMEOUT, "rank 1", "layer.7", "minibatch 1", "gather",
                        "sync");
            break;
        default:
            if (several_hosts()) { /* silence is noticed before the deadline */
                CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1", "is lost", "minibatch", "sync");
            } else {
                CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_TIMEOUT, "rank 1", "minibatch", "sync");
            }
    }
}

static void someone_is_stuck(int rank, int size, const char *job, void *arg) {
    stuck *what = arg;
    odc_context *context = join_within(rank, size, job, DEADLINE_MS);
    tensor t = plain(context, "layer.7");
    write_parameters(t, 1);
    one_minibatch(context, t);
    raise_flag(&what->joined);
    if (rank == 1) {
        be_stuck(what, context, t);
    } else {
        int64_t begin = now_ns();
        wait_for_stuck(what->kind, context, t);
        int64_t waited = (now_ns() - begin) / 1000000;
        int is_lost = what->kind == STUCK_STOPPED && several_hosts();
        CHECK((is_lost || waited > DEADLINE_MS / 2) && waited < 20 * DEADLINE_MS);
        raise_flag(&what->told);
        check_sticks(context, is_lost ? ODC_ERROR_PEER_LOST : ODC_ERROR_TIMEOUT);
    }
    odc_destroy(context);
}

static void a_stuck_rank_is_reported_at_the_deadline_with_what_it_last_did(void **state) {
    (void)state;
    for (int kind = STUCK_IN_SYNC; kind < STUCK_STOPPED; ++kind) {
        stuck *what = share(sizeof *what);
        what->kind = (stuck_in)kind;
        run_processes(3, someone_is_stuck, what);
    }
}

static void a_stopped_rank_is_reported_at_the_deadline(void **state) {
    (void)state;
    needs_processes("it stops a rank");
    stuck *what = share(sizeof *what);
    what->kind = STUCK_STOPPED;
    run_mortals(3, 2, someone_is_stuck, what);
}

/* Between hosts a rank hears of some arrivals by way of others, which the missing rank may be. */
static void one_of_seven_does_not_come(int rank, int size, const char *job, void *arg) {
    atomic_int *told = arg;
    odc_context *context = join_within(rank, size, job, 3 * (int64_t)DEADLINE_MS);
    CHECK_OK(odc_minibatch_sync(context));
    if (rank == 3) {
        await_flag(told, size - 1);
    } else {
        const char *missing = " has not arrived in minibatch 1; it ";
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_TIMEOUT, "rank 3 (", missing);
        const char *first = strstr(odc_last_error(), missing);
        CHECK(first != NULL && strstr(first + 1, missing) == NULL);
        raise_flag(told);
    }
    odc_destroy(context);
}

static void the_ranks_that_have_come_are_not_blamed(void **state) {
    (void)state;
    run_processes(7, one_of_seven_does_not_come, share(sizeof(atomic_int)));
}

static void default_deadline(int rank, int size, const char *job, void *arg) {
    atomic_int *told = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.timeout_ms = 0;
    CHECK_OK(odc_init(&config, &context));
    if (rank == 0) {
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_TIMEOUT, "rank 1");
        raise_flag(told);
    } else {
        await_flag(told, 1);
    }
    odc_destroy(context);
}

static void bad_default_deadline(int rank, int size, const char *job, void *arg) {
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    (void)arg;
    config.timeout_ms = 0;
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_ARGUMENT, "ODC_TIMEOUT_MS");
    config.timeout_ms = 1000; /* the config overrides the environment */
    CHECK_OK(odc_init(&config, &context));
    odc_destroy(context);
}

static void the_deadline_may_come_from_the_environment(void **state) {
    static const char *wrong[5] = {"soon", "-1", "0", "1e3", "99999999999999999999"};
    (void)state;
    setenv("ODC_TIMEOUT_MS", "2500", 1);
    run_processes(2, default_deadline, share(sizeof(atomic_int)));
    for (int i = 0; i < 5; ++i) {
        setenv("ODC_TIMEOUT_MS", wrong[i], 1);
        run_processes(1, bad_default_deadline, NULL);
    }
    unsetenv("ODC_TIMEOUT_MS");
}

/* ---- Kinds of waits ---- */

/* How rank 1 ends the wait of the other three. */
typedef struct ending {
    int in_reduction;
    int destroys;
    waiting_threads waiting;
} ending;

/* Ranks 0, 2 and 3 wait for rank 1: in three kinds of calls, or all in a reduction. */
static odc_status wait_in(odc_context *context, tensor t, ending *how) {
    float full[1000] = {0};
    if (how->in_reduction) {
        add_waiter(&how->waiting);
        return odc_all_reduce(context, &(double){1}, 1, ODC_SUM);
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    add_waiter(&how->waiting);
    switch (odc_rank(context)) {
        case 0: return odc_gather(t.shard, full, 1000, NULL);
        case 2: return odc_scatter_add(t.shard, full, 1000, NULL);
        default: return odc_minibatch_sync(context);
    }
}

static void two_minibatches(odc_context *context, tensor t) {
    write_parameters(t, 1);
    one_minibatch(context, t);
    one_minibatch(context, t);
}

static void aborts(odc_context *context, void *arg) {
    ending *how = arg;
    int rank = odc_rank(context);
    tensor t = plain(context, "layer");
    two_minibatches(context, t);
    if (rank == 1) {
        await_waiters(&how->waiting, 3);
        CHECK_OK(odc_abort(context, "loss is NaN in step 17"));
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_ABORTED, "loss is NaN in step 17");
    } else {
        CHECK_EQUAL(wait_in(context, t, how), ODC_ERROR_ABORTED);
        CHECK_SENTENCE(odc_last_error(), "rank 1", "loss is NaN in step 17");
    }
    check_sticks(context, ODC_ERROR_ABORTED);
}

static void the_text_of_an_abort_ends_every_ranks_waits(void **state) {
    (void)state;
    for (int in_reduction = 0; in_reduction < 2; ++in_reduction) {
        ending *how = share(sizeof *how);
        how->in_reduction = in_reduction;
        run_ranks(4, aborts, how);
    }
}

static void aborts_oddly(odc_context *context, void *arg) {
    const char *text = arg;
    if (odc_rank(context) == 0) {
        CHECK_OK(odc_abort(context, text));
        odc_abort(context, "a second reason"); /* the first wins */
    }
    CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_ABORTED);
    CHECK(strstr(odc_last_error(), "rank 0") != NULL);
    CHECK(strstr(odc_last_error(), "a second reason") == NULL);
}

static void an_abort_may_have_no_text_or_a_very_long_one_and_the_first_wins(void **state) {
    char *text = malloc(100001);
    (void)state;
    memset(text, 'x', 100000);
    text[100000] = 0;
    run_ranks(2, aborts_oddly, NULL);
    run_ranks(2, aborts_oddly, "");
    run_ranks(2, aborts_oddly, text);
    free(text);
}

enum { MOST_BYTES = 2043 };

/* It ends after a whole two-byte character, and "...". */
static void check_cut(const char *sentence) {
    const char *at = strstr(sentence, "\xc3\xa9");
    size_t length = strlen(sentence);
    CHECK(at != NULL && length <= MOST_BYTES && length >= MOST_BYTES - 1);
    for (; strncmp(at, "\xc3\xa9", 2) == 0; at += 2) {
    }
    CHECK(strcmp(at, "...") == 0);
}

static void aborts_at_length(odc_context *context, void *arg) {
    if (odc_rank(context) == 1) {
        CHECK_OK(odc_abort(context, arg));
    }
    CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_ABORTED);
    check_cut(odc_last_error());
}

static void long_texts_are_cut_between_characters_and_marked(void **state) {
    (void)state;
    for (size_t ahead = 0; ahead <= 1; ++ahead) { /* a cut by bytes would split a character in one of the two cases */
        char text[4002] = "x";
        for (size_t i = ahead; i + 2 < sizeof text; i += 2) {
            memcpy(text + i, "\xc3\xa9", 2);
        }
        text[ahead + 4000 - 2] = 0;
        run_ranks(3, aborts_at_length, text);
    }
}

static void everybody_aborts(odc_context *context, void *arg) {
    atomic_int *told = arg;
    char text[64];
    snprintf(text, sizeof text, "reason of rank %d", odc_rank(context));
    odc_abort(context, text);
    CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_ABORTED);
    CHECK_SENTENCE(odc_last_error(), "reason of rank");
    check_sticks(context, ODC_ERROR_ABORTED);
    raise_flag(told);
    await_flag(told, odc_size(context));
    check_sticks(context, ODC_ERROR_ABORTED);
}

static void ranks_may_abort_at_once(void **state) {
    (void)state;
    run_ranks(3, everybody_aborts, share(sizeof(atomic_int)));
}

static void leaves(odc_context *context, void *arg) {
    ending *how = arg;
    int rank = odc_rank(context);
    tensor t = plain(context, "layer");
    two_minibatches(context, t);
    if (rank == 1) {
        await_waiters(&how->waiting, 3);
        if (how->destroys) {
            return; /* run_ranks destroys the context, which leaves, too */
        }
        CHECK_OK(odc_shutdown(context));
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PHASE, "shutdown");
        return;
    }
    CHECK_EQUAL(wait_in(context, t, how), ODC_ERROR_PEER_LOST);
    CHECK_SENTENCE(odc_last_error(), "rank 1", "left in minibatch 2");
    check_sticks(context, ODC_ERROR_PEER_LOST);
}

static void who_waits_for_a_rank_that_has_left_reads_when_it_left(void **state) {
    (void)state;
    for (int i = 0; i < 4; ++i) {
        ending *how = share(sizeof *how);
        how->destroys = i % 2;
        how->in_reduction = i / 2;
        run_ranks(4, leaves, how);
    }
}

static void leaves_late(odc_context *context, void *arg) {
    flags *shared = arg;
    tensor t = plain(context, "layer");
    write_parameters(t, 1);
    CHECK_OK(odc_publish(t.shard, NULL));
    if (odc_rank(context) == 1) {
        CHECK_OK(odc_shutdown(context));
        raise_flag(&shared->a);
        if (several_hosts()) { /* odc_destroy frees the slices */
            await_flag(&shared->b, 1);
        }
    } else {
        await_flag(&shared->a, 1);
        check_gather(t, 1); /* it had published, and slices stay */
        add_gradients(t, 2);
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1", "left in minibatch 0");
        raise_flag(&shared->b);
    }
}

static void leaving_waits_for_nobody_and_what_was_published_can_still_be_gathered(void **state) {
    (void)state;
    run_ranks(2, leaves_late, share(sizeof(flags)));
}

static void leaves_in_peace(odc_context *context, void *arg) {
    (void)arg;
    tensor t = plain(context, "layer");
    two_minibatches(context, t);
    sleep_ms(5 * odc_rank(context));
    CHECK_OK(odc_shutdown(context)); /* nobody waits after the last sync, so nobody reads an error */
}

static void a_job_ends_with_shutdown_in_any_order(void **state) {
    (void)state;
    run_ranks(3, leaves_in_peace, NULL);
}

/* ---- Forked children ---- */

static void touch_everything(odc_context *context, tensor t) {
    float full[1000] = {0};
    double value = 1;
    uint64_t operation = 0;
    odc_shard *shard = NULL;
    odc_shard_desc desc = describe("of the child", 10, ODC_F32, ODC_F32);
    odc_slice slice = {.struct_size = sizeof slice};
    odc_stats stats = {.struct_size = sizeof stats};
    CHECK_ERROR(odc_register_shard(context, &desc, &shard), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_publish(t.shard, NULL), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_publish_all(context, NULL), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_gather(t.shard, full, 1000, NULL), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_scatter_add(t.shard, full, 1000, NULL), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_gather_start(t.shard, full, 1000, NULL, &operation), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_scatter_add_start(t.shard, full, 1000, NULL, &operation), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_wait(context, 1), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_minibatch_sync_reduce(context, &value, 1, ODC_SUM), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_all_reduce(context, &value, 1, ODC_SUM), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_abort(context, "from the child"), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_shutdown(context), ODC_ERROR_PHASE, "fork");
    CHECK_ERROR(odc_release_shard(t.shard), ODC_ERROR_PHASE, "fork");
    odc_get_slice(t.shard, &slice); /* any result is allowed, but no harm to the parents */
    odc_get_stats(context, &stats);
    odc_rank(context);
    odc_size(context);
    odc_minibatch(context);
    odc_destroy(context);
}

/* A child may join a job of its own. */
static void join_as_child(int rank, const char *parents_job) {
    char job[96];
    snprintf(job, sizeof job, "%s-children", parents_job);
    odc_context *context = join(rank, 2, job);
    tensor t = plain(context, "layer");
    two_minibatches(context, t);
    odc_destroy(context);
}

static void forks(int rank, int size, const char *job, void *arg) {
    odc_context *context = join(rank, size, job);
    tensor t = plain(context, "layer");
    (void)arg;
    two_minibatches(context, t);
    for (int round = 0; round < 3; ++round) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60);
            touch_everything(context, t);
            join_as_child(rank, job);
            _exit(0);
        }
        two_minibatches(context, t); /* undisturbed */
        int status = -1;
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        CHECK_EQUAL(status, 0);
    }
    two_minibatches(context, t);
    odc_destroy(context);
}

static void a_forked_child_gets_an_error_and_harms_nothing_and_may_join_its_own_job(void **state) {
    (void)state;
    needs_processes("it forks ranks");
    run_processes(2, forks, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stuck_rank_is_reported_at_the_deadline_with_what_it_last_did),
        cmocka_unit_test(a_stopped_rank_is_reported_at_the_deadline),
        cmocka_unit_test(the_ranks_that_have_come_are_not_blamed),
        cmocka_unit_test(the_deadline_may_come_from_the_environment),
        cmocka_unit_test(the_text_of_an_abort_ends_every_ranks_waits),
        cmocka_unit_test(an_abort_may_have_no_text_or_a_very_long_one_and_the_first_wins),
        cmocka_unit_test(long_texts_are_cut_between_characters_and_marked),
        cmocka_unit_test(ranks_may_abort_at_once),
        cmocka_unit_test(who_waits_for_a_rank_that_has_left_reads_when_it_left),
        cmocka_unit_test(leaving_waits_for_nobody_and_what_was_published_can_still_be_gathered),
        cmocka_unit_test(a_job_ends_with_shutdown_in_any_order),
        cmocka_unit_test(a_forked_child_gets_an_error_and_harms_nothing_and_may_join_its_own_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
