/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of a rank, or of the path to it, is noticed on all hosts, whatever they wait for, and the error names it. */
#include "model.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { RANKS = 3, NUMEL = 200003 };

typedef enum moment { IN_GATHER, IN_SCATTER_ADD, IN_WAIT, IN_SYNC, IN_REDUCTION, MOMENTS } moment;

static const char *const calls[MOMENTS] = {"odc_gather", "odc_scatter_add", "odc_wait", "odc_minibatch_sync",
                                           "odc_all_reduce"};

typedef struct scene {
    moment when;
    int victim;
    void (*strike)(void); /* what happens to the victim */
    const char *text;     /* fragments of the reason in the error */
    waiting_threads waiting;
    atomic_int victim_pid;
    _Atomic int64_t struck_at;
    _Atomic int64_t noticed_at[RANKS];
} scene;

static tensor one_minibatch(odc_context *context) {
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 1);
    return t;
}

/* The call in which a rank waits for another that does not publish, sync or reduce. */
static odc_status wait_in(moment when, odc_context *context, tensor t) {
    float *full = new_full(NUMEL, ODC_F32);
    uint64_t operation = 0;
    odc_status status = ODC_OK;
    memset(full, 0, NUMEL * sizeof *full);
    if (when != IN_REDUCTION) {
        CHECK_OK(odc_publish(t.shard, NULL));
    }
    switch (when) {
        case IN_GATHER: status = odc_gather(t.shard, full, NUMEL, NULL); break;
        case IN_SCATTER_ADD: status = odc_scatter_add(t.shard, full, NUMEL, NULL); break;
        case IN_WAIT:
            CHECK_OK(odc_gather_start(t.shard, full, NUMEL, NULL, &operation));
            status = odc_wait(context, operation);
            break;
        case IN_SYNC: status = odc_minibatch_sync(context); break;
        default: status = odc_all_reduce(context, &(double){1}, 1, ODC_SUM); break;
    }
    free(full);
    return status;
}

static void be_struck(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    char name[32];
    char pid[32];
    char sentence[2048];
    odc_shard_desc desc = describe("another", 10, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    odc_context *context = join(rank, size, job);
    tensor t = one_minibatch(context);
    if (rank == what->victim) {
        set_flag(&what->victim_pid, getpid());
        await_waiters(&what->waiting, RANKS - 1);
        atomic_store(&what->struck_at, now_ns());
        what->strike();
        for (;;) {
            pause();
        }
    }
    await_flag(&what->victim_pid, 1);
    add_waiter(&what->waiting);
    CHECK_EQUAL(wait_in(what->when, context, t), ODC_ERROR_PEER_LOST);
    atomic_store(&what->noticed_at[rank], now_ns());
    snprintf(name, sizeof name, "rank %d", what->victim);
    snprintf(pid, sizeof pid, "pid %d", read_flag(&what->victim_pid));
    snprintf(sentence, sizeof sentence, "%s", odc_last_error());
    CHECK_SENTENCE(sentence, name, pid, "is lost", what->text);
    CHECK(strncmp(sentence, name, strlen(name)) == 0); /* no other rank is blamed */
    CHECK_KEPT(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, sentence);
    CHECK_KEPT(odc_register_shard(context, &desc, &shard), ODC_ERROR_PEER_LOST, sentence);
    odc_destroy(context);
}

static void die(void) { raise(SIGKILL); }

static void die_before_a_child(void) {
    leave_child();
    die();
}

static void stop(void) { raise(SIGSTOP); }

/* Prints the others' latencies in milliseconds. */
static void strike_ranks(const char *test, void (*strike)(void), const char *text, int64_t most_ms) {
    needs_processes("it ends, stops or replaces ranks");
    int64_t longest = 0;
    for (int when = 0; when < MOMENTS; ++when) {
        scene *what = share(sizeof *what);
        what->when = (moment)when;
        what->strike = strike;
        what->text = text;
        what->victim = when % RANKS;
        run_processes_of(test, RANKS, (uint64_t)1 << what->victim, be_struck, what);
        printf("%s, %s: noticed after", test, calls[when]);
        for (int rank = 0; rank < RANKS; ++rank) {
            if (rank != what->victim) {
                int64_t took = (atomic_load(&what->noticed_at[rank]) - atomic_load(&what->struck_at)) / 1000000;
                longest = took > longest ? took : longest;
                printf(" %lld ms", (long long)took);
            }
        }
        printf("\n");
    }
    CHECK(longest < most_ms);
}

/* With ODC_SILENCE_MS longer than any call lasts: only the peer's kernel can report it in time. */
static void strike_at_once(const char *test, void (*strike)(void)) {
    char silence[32];
    snprintf(silence, sizeof silence, "%s", getenv("ODC_SILENCE_MS"));
    setenv("ODC_SILENCE_MS", "60000", 1);
    strike_ranks(test, strike, "nobody listens at its port|its connection ended|it cannot be reached", 19000);
    setenv("ODC_SILENCE_MS", silence, 1);
}

static void a_killed_rank_is_named_on_all_hosts_whatever_they_wait_in(void **state) {
    (void)state;
    strike_at_once(__func__, die);
}

static void a_killed_rank_whose_child_lives_on_is_named_on_all_hosts(void **state) {
    (void)state;
    strike_at_once(__func__, die_before_a_child);
}

static void a_rank_that_calls_exec_is_named_on_all_hosts_whatever_they_wait_in(void **state) {
    (void)state;
    strike_at_once(__func__, replace_program);
}

static void a_stopped_rank_is_named_after_its_silence(void **state) {
    (void)state;
    strike_ranks(__func__, stop, "nothing has been heard from it", 19000);
}

/* Rank 1 is stopped right after an addition, the last call it reported: it may be anywhere by now. */
static void stops_after_an_addition(int rank, int size, const char *job, void *arg) {
    (void)arg;
    odc_context *context = join(rank, size, job);
    tensor t = one_minibatch(context);
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 1) {
        add_gradients(t, 1);
        stop();
        for (;;) {
            pause();
        }
    }
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1", "is lost", "it was last heard from",
                "odc_scatter_add of shard \"layer\" in minibatch 1");
    CHECK(strstr(odc_last_error(), "it has been in") == NULL);
    odc_destroy(context);
}

static void an_error_reports_the_last_known_call_of_a_rank_of_another_host(void **state) {
    (void)state;
    run_mortals(2, UINT64_C(1) << 1, stops_after_an_addition, NULL);
}

/* ---- What reaches other hosts ---- */

static void aborts(odc_context *context, void *arg) {
    atomic_int *published = arg;
    tensor t = one_minibatch(context);
    CHECK_OK(odc_publish(t.shard, NULL));
    raise_flag(published);
    if (odc_rank(context) == 1) {
        await_flag(published, RANKS);
        CHECK_OK(odc_abort(context, "loss is NaN in step 17"));
    }
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_ABORTED, "rank 1", "loss is NaN in step 17");
}

static void the_text_of_an_abort_reaches_other_hosts(void **state) {
    (void)state;
    run_ranks(RANKS, aborts, share(sizeof(atomic_int)));
}

static void leaves_early(odc_context *context, void *arg) {
    (void)arg;
    tensor t = one_minibatch(context);
    if (odc_rank(context) == 1) {
        return; /* run_ranks destroys the context */
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1", "left in minibatch 1");
}

static void who_waits_for_a_rank_that_destroyed_its_context_reads_when_it_left(void **state) {
    (void)state;
    run_ranks(RANKS, leaves_early, NULL);
}

static void releases_after_an_error(odc_context *context, void *arg) {
    atomic_int *published = arg;
    tensor t = one_minibatch(context);
    if (odc_rank(context) == 1) {
        await_flag(published, 1);
        CHECK_OK(odc_abort(context, "enough"));
    }
    float full[10];
    odc_shard_desc desc = describe("another", 10, ODC_F32, ODC_F32);
    odc_shard *another = NULL;
    if (odc_rank(context) == 0) {
        tensor never = make_tensor(context, "never published by rank 1", 10, ODC_F32, ODC_F32);
        CHECK_OK(odc_publish(never.shard, NULL));
        raise_flag(published);
        CHECK_ERROR(odc_gather(never.shard, full, 10, NULL), ODC_ERROR_ABORTED, "enough");
    }
    CHECK_ERROR(odc_register_shard(context, &desc, &another), ODC_ERROR_ABORTED, "enough");
    sleep_ms(1500); /* the connections are closed by now; a release is local */
    CHECK_OK(odc_release_shard(t.shard));
}

static void a_shard_can_be_released_after_the_job_has_failed(void **state) {
    (void)state;
    run_ranks(2, releases_after_an_error, share(sizeof(atomic_int)));
}

/* ---- The end of a job ---- */

static void one_minibatch_at_a_time(int rank, int size, const char *job, void *arg) {
    char name[96];
    uint64_t random = *(uint64_t *)arg + (uint64_t)rank;
    int64_t begin = now_ns();
    int round = 0;
    for (double stop = 0; round < 200 && stop == 0; ++round) { /* or as many as a very busy machine manages */
        snprintf(name, sizeof name, "%s-%d", job, round % 100);
        odc_context *context = join(rank, size, name);
        tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
        stop = now_ns() - begin > 10 * (int64_t)1000000000;
        CHECK_OK(odc_all_reduce(context, &stop, 1, ODC_MAX));
        use_once(context, &t, 1, 1);
        sleep_us((int)random_below(&random, 2000));
        odc_destroy(context);
    }
    if (rank == 0) {
        printf("%d jobs, one after the other\n", round);
    }
}

static void destroying_right_after_the_last_sync_harms_no_slower_rank(void **state) {
    uint64_t seed = test_seed();
    (void)state;
    run_processes(2, one_minibatch_at_a_time, &seed);
}

typedef struct slow {
    atomic_int pid;
    atomic_int arrived;
} slow;

/* Rank 1 is stopped after it has arrived, while rank 0 completes the sync, destroys its context and ends. */
static void stops_in_sync(int rank, int size, const char *job, void *arg) {
    slow *shared = arg;
    odc_context *context = join(rank, size, job);
    tensor t = one_minibatch(context);
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 1) {
        set_flag(&shared->pid, getpid());
        CHECK_OK(odc_minibatch_sync(context));
        CHECK_ERROR(odc_all_reduce(context, &(double){1}, 1, ODC_SUM), ODC_ERROR_PEER_LOST, "rank 0",
                    "left in minibatch 2");
        odc_destroy(context);
        return;
    }
    await_flag(&shared->pid, 1);
    await_asleep(read_flag(&shared->pid)); /* it waits in sync, */
    sleep_ms(100);                         /* and its progress thread has reported that */
    stop_process(read_flag(&shared->pid));
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
    kill(read_flag(&shared->pid), SIGCONT);
}

static void a_stopped_rank_receives_what_another_sent_before_it_ended(void **state) {
    (void)state;
    needs_processes("it stops a rank");
    run_processes(2, stops_in_sync, share(sizeof(slow)));
}

/* ---- Interruptions ---- */

typedef enum ending { BY_INTERRUPTION, BY_SHUTDOWN } ending;

typedef struct interruption {
    atomic_int peer; /* its pid */
    atomic_int over;
    atomic_int wanted;
    atomic_int gathered; /* by the rank that may let the peer go on */
    atomic_int stopped;
    int in_addition;
    ending ending;
} interruption;

static int is_wanted(void *arg) {
    interruption *what = arg;
    return read_flag(&what->wanted);
}

enum { LARGE = 8 << 20 };

static void be_interrupted(tensor t, float *full, interruption *what) {
    set_flag(&what->wanted, 1);
    odc_status status =
        what->in_addition ? odc_scatter_add(t.shard, full, LARGE, NULL) : odc_gather(t.shard, full, LARGE, NULL);
    CHECK(status == ODC_ERROR_INTERRUPTED || status == ODC_ERROR_ABORTED || status == ODC_ERROR_PEER_LOST);
}

static void leave_with_an_operation(odc_context *context, tensor t, float *full, interruption *what) {
    uint64_t operation = 0;
    CHECK_OK(what->in_addition ? odc_scatter_add_start(t.shard, full, LARGE, NULL, &operation)
                               : odc_gather_start(t.shard, full, LARGE, NULL, &operation));
    CHECK_OK(odc_shutdown(context));
    CHECK_ERROR(odc_wait(context, operation), ODC_ERROR_PHASE, "odc_shutdown");
    CHECK_ERROR(odc_wait(context, operation), ODC_ERROR_PHASE, "odc_shutdown");
}

/* What the caller writes into its buffer after the call has not been added. */
static void check_nothing_was_read(tensor t) {
    const odc_slice slice = slice_of(t);
    unsigned char later[sizeof(float)];
    memset(later, 0x5a, sizeof later);
    for (uint64_t i = 0; i < slice.numel; ++i) {
        if (memcmp((float *)slice.gradients + i, later, sizeof later) == 0) {
            CHECK(!"the buffer was read after the call had returned");
        }
    }
}

/* Rank 0's call ends while data is in flight; its buffer is its own from then on, although the peer goes on. */
static void ends_a_call(int rank, int size, const char *job, void *arg) {
    interruption *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.interrupted = is_wanted;
    config.interrupted_arg = what;
    if (rank == 1) {
        config.interrupted = NULL;
    }
    CHECK_OK(odc_init(&config, &context));
    odc_shard_desc desc = describe("layer", LARGE, ODC_F32, ODC_F32);
    desc.slices = (uint64_t[]){0, LARGE};
    tensor t = make_described(context, &desc);
    CHECK_OK(odc_publish_all(context, NULL));
    if (rank == 1) {
        set_flag(&what->peer, getpid());
        await_flag(&what->over, 1);
        check_nothing_was_read(t);
        odc_destroy(context);
        return;
    }
    float *full = new_full(LARGE, ODC_F32);
    CHECK_OK(odc_gather(t.shard, full, LARGE, NULL));
    await_flag(&what->peer, 1);
    stop_process(read_flag(&what->peer));
    if (what->ending == BY_SHUTDOWN) {
        leave_with_an_operation(context, t, full, what);
    } else {
        be_interrupted(t, full, what);
    }
    memset(full, 0x5a, LARGE * sizeof *full);
    kill(read_flag(&what->peer), SIGCONT);
    sleep_ms(300); /* requested data would arrive now */
    for (size_t i = 0; i < LARGE * sizeof *full; ++i) {
        if (((unsigned char *)full)[i] != 0x5a) {
            CHECK(!"the buffer was written after the call had returned");
        }
    }
    set_flag(&what->over, 1);
    free(full);
    odc_destroy(context);
}

static void end_calls(const char *test, ending how) {
    needs_processes("it stops a rank");
    for (int call = 0; call < 2; ++call) {
        interruption *what = share(sizeof *what);
        what->in_addition = call;
        what->ending = how;
        run_processes_of(test, 2, 0, ends_a_call, what);
    }
}

static void an_interrupted_call_leaves_the_buffer_alone(void **state) {
    (void)state;
    end_calls(__func__, BY_INTERRUPTION);
}

static void after_shutdown_a_wait_ends_and_leaves_the_buffer_alone(void **state) {
    (void)state;
    end_calls(__func__, BY_SHUTDOWN);
}

/* Three ranks, one of which may be silent without being lost. */
static void run_with_a_silent_rank(const char *test, rank_fn fn, void *arg) {
    char silence[32];
    snprintf(silence, sizeof silence, "%s", getenv("ODC_SILENCE_MS"));
    setenv("ODC_SILENCE_MS", "60000", 1);
    run_processes_of(test, 3, 0, fn, arg);
    setenv("ODC_SILENCE_MS", silence, 1);
}

static tensor make_owned(odc_context *context, const char *name, uint64_t numel, int owner) {
    uint64_t slices[RANKS] = {0};
    odc_shard_desc desc = describe(name, numel, ODC_F32, ODC_F32);
    slices[owner] = numel;
    desc.slices = slices;
    return make_described(context, &desc);
}

/* Rank 0 leaves with an addition to rank 1, which is stopped, and cancels it at its deadline together with its connections. */
static void fails_after_it_left(int rank, int size, const char *job, void *arg) {
    interruption *what = arg;
    odc_context *context = rank == 0 ? join_within(rank, size, job, 5000 * time_scale()) : join(rank, size, job);
    tensor of_0 = make_owned(context, "of rank 0", 1000, 0);
    tensor of_1 = make_owned(context, "of rank 1", LARGE, 1);
    float *full = new_full(LARGE, ODC_F32);
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_gather(of_0.shard, full, 1000, NULL));
    if (rank == 1) {
        set_flag(&what->peer, getpid());
        await_flag(&what->over, 1);
    } else if (rank == 0) {
        CHECK_OK(odc_gather(of_1.shard, full, LARGE, NULL));
        await_flag(&what->peer, 1);
        await_flag(&what->gathered, 1);
        stop_process(read_flag(&what->peer));
        leave_with_an_operation(context, of_1, full, what);
        set_flag(&what->stopped, 1);
        await_flag(&what->over, 1);
    } else {
        odc_status status = ODC_OK;
        set_flag(&what->gathered, 1);
        await_flag(&what->stopped, 1);
        while (status == ODC_OK) { /* until it has received that */
            status = odc_gather(of_0.shard, full, 1000, NULL);
        }
        kill(read_flag(&what->peer), SIGCONT);
        set_flag(&what->over, 1);
        CHECK_EQUAL(status, ODC_ERROR_PEER_LOST);
        CHECK_SENTENCE(odc_last_error(), "rank 0", "left in minibatch 0");
    }
    free(full);
    odc_destroy(context);
}

static void a_rank_that_fails_after_it_left_serves_no_more(void **state) {
    (void)state;
    needs_processes("it stops a rank");
    interruption *what = share(sizeof *what);
    what->in_addition = 1;
    run_with_a_silent_rank(__func__, fails_after_it_left, what);
}

/* Rank 1, the owner, is stopped until rank 2 lets it go on; meanwhile rank 0's gather is interrupted. */
static void is_interrupted_by_a_slow_owner(int rank, int size, const char *job, void *arg) {
    interruption *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.interrupted = rank == 0 ? is_wanted : NULL;
    config.interrupted_arg = what;
    CHECK_OK(odc_init(&config, &context));
    odc_shard_desc desc = describe("layer", LARGE, ODC_F32, ODC_F32);
    desc.slices = (uint64_t[]){0, LARGE, 0};
    tensor t = make_described(context, &desc);
    CHECK_OK(odc_publish_all(context, NULL));
    float *full = new_full(LARGE, ODC_F32);
    CHECK_OK(odc_gather(t.shard, full, LARGE, NULL));
    if (rank == 1) {
        set_flag(&what->peer, getpid());
    } else if (rank == 2) {
        set_flag(&what->gathered, 1);
        await_flag(&what->stopped, 1);
        sleep_ms(1500);
        kill(read_flag(&what->peer), SIGCONT);
    } else {
        await_flag(&what->peer, 1);
        await_flag(&what->gathered, 1);
        stop_process(read_flag(&what->peer));
        set_flag(&what->stopped, 1);
        set_flag(&what->wanted, 1);
        CHECK_EQUAL(odc_gather(t.shard, full, LARGE, NULL), ODC_ERROR_INTERRUPTED);
        set_flag(&what->wanted, 0);
        CHECK_OK(odc_gather(t.shard, full, LARGE, NULL));
    }
    CHECK_OK(odc_minibatch_sync(context));
    free(full);
    odc_destroy(context);
}

static void a_gather_from_a_slow_owner_that_is_interrupted_can_be_made_again(void **state) {
    (void)state;
    needs_processes("it stops a rank");
    run_with_a_silent_rank(__func__, is_interrupted_by_a_slow_owner, share(sizeof(interruption)));
}

int main(void) {
    setenv("ODC_TEST_HOSTS", "99", 0);
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "3000", 1); /* not less: on a busy machine a live rank may be silent, too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_on_all_hosts_whatever_they_wait_in),
        cmocka_unit_test(a_killed_rank_whose_child_lives_on_is_named_on_all_hosts),
        cmocka_unit_test(a_rank_that_calls_exec_is_named_on_all_hosts_whatever_they_wait_in),
        cmocka_unit_test(a_stopped_rank_is_named_after_its_silence),
        cmocka_unit_test(an_error_reports_the_last_known_call_of_a_rank_of_another_host),
        cmocka_unit_test(the_text_of_an_abort_reaches_other_hosts),
        cmocka_unit_test(who_waits_for_a_rank_that_destroyed_its_context_reads_when_it_left),
        cmocka_unit_test(a_shard_can_be_released_after_the_job_has_failed),
        cmocka_unit_test(destroying_right_after_the_last_sync_harms_no_slower_rank),
        cmocka_unit_test(a_stopped_rank_receives_what_another_sent_before_it_ended),
        cmocka_unit_test(an_interrupted_call_leaves_the_buffer_alone),
        cmocka_unit_test(after_shutdown_a_wait_ends_and_leaves_the_buffer_alone),
        cmocka_unit_test(a_rank_that_fails_after_it_left_serves_no_more),
        cmocka_unit_test(a_gather_from_a_slow_owner_that_is_interrupted_can_be_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
