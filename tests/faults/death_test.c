/* SPDX-License-Identifier: Apache-2.0 */
/* A rank killed at any moment is noticed by all others, whatever they wait for, and the error names it. */
#include "model.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A wait wakes every 20 ms and calls `interrupted` each time: so often at most within 100 ms. */
enum { RANKS = 3, LARGE = 200003, MOST_LOOKS = 5, FEWEST_ROUNDS = 3 };

typedef enum moment {
    IN_GATHER,
    IN_SCATTER_ADD,
    IN_WAIT,
    IN_SYNC,
    IN_REDUCTION,
    ANYWHERE, /* all ranks run minibatches full of contended additions */
    WITH_CHILDREN,
    IN_INIT
} moment;

typedef struct scene {
    moment when;
    int victim;
    int delay_us;
    atomic_int joined;
    atomic_int victim_pid;
    _Atomic int64_t died_at;
    _Atomic int64_t noticed_at[RANKS];
} scene;

/* Calls of `interrupted` after this process itself could see the victim's death: the library's own unit of time, which a busy
 * machine does not stretch. */
typedef struct watch {
    int life; /* the victim's pidfd */
    int looks;
} watch;

static int look_too(void *arg) {
    watch *mine = arg;
    struct pollfd entry = {mine->life, POLLIN, 0};
    mine->looks += mine->life >= 0 && poll(&entry, 1, 0) == 1;
    return 0;
}

static void *kill_self(void *arg) {
    scene *what = arg;
    sleep_us(what->delay_us);
    atomic_store(&what->died_at, now_ns());
    kill(getpid(), SIGKILL);
    return NULL;
}

static void die_soon(scene *what) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, kill_self, what) == 0);
}

static odc_status run_minibatches(odc_context *context, tensor t) {
    void *full = new_full(t.numel, t.gradient_type);
    odc_status status = ODC_OK;
    memset(full, 0, t.numel * type_size(t.gradient_type));
    while (status == ODC_OK) {
        status = odc_publish_all(context, NULL);
        for (int i = 0; i < 4 && status == ODC_OK; ++i) {
            status = odc_scatter_add(t.shard, full, t.numel, NULL);
        }
        if (status == ODC_OK) {
            status = odc_minibatch_sync(context);
        }
    }
    free(full);
    return status;
}

/* The call in which a survivor waits for the victim. */
static odc_status wait_for_victim(const scene *what, odc_context *context, tensor t) {
    double value = 1;
    uint64_t operation = 0;
    odc_status status = ODC_OK;
    void *full = new_full(t.numel, t.gradient_type);
    memset(full, 0, t.numel * type_size(t.gradient_type));
    if (what->when == IN_REDUCTION) {
        status = odc_all_reduce(context, &value, 1, ODC_SUM);
    } else {
        CHECK_OK(odc_publish(t.shard, NULL));
    }
    switch (what->when) {
        case IN_GATHER: status = odc_gather(t.shard, full, t.numel, NULL); break;
        case IN_SCATTER_ADD: status = odc_scatter_add(t.shard, full, t.numel, NULL); break;
        case IN_WAIT:
            status =
                odc_gather_start(t.shard, full, t.numel, NULL, &operation); /* on a busy machine it has died already */
            status = status == ODC_OK ? odc_wait(context, operation) : status;
            break;
        case IN_SYNC:
        case WITH_CHILDREN: status = odc_minibatch_sync(context); break;
        default: break;
    }
    free(full);
    return status;
}

static void check_says_died(scene *what, odc_context *context) {
    char rank[32];
    char pid[32];
    char sentence[2048];
    odc_shard_desc desc = describe("another", 10, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    snprintf(rank, sizeof rank, "rank %d", what->victim);
    snprintf(pid, sizeof pid, "%d", read_flag(&what->victim_pid));
    snprintf(sentence, sizeof sentence, "%s", odc_last_error());
    CHECK_SENTENCE(sentence, rank, "host", pid, "died");
    if (context != NULL) { /* the error is permanent and keeps its text */
        CHECK_KEPT(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, sentence);
        CHECK_KEPT(odc_register_shard(context, &desc, &shard), ODC_ERROR_PEER_LOST, sentence);
    }
}

static void be_killed(scene *what, odc_context *context, tensor t) {
    if (what->when == WITH_CHILDREN) {
        leave_cloned_child();
        leave_cloned_child();
    }
    die_soon(what);
    if (what->when == ANYWHERE) {
        run_minibatches(context, t);
    }
    for (;;) {
        pause();
    }
}

static void survive_or_die(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    watch mine = {-1, 0};
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.interrupted = look_too;
    config.interrupted_arg = &mine;
    if (rank == what->victim) {
        set_flag(&what->victim_pid, getpid());
    }
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_tensor(context, "layer", LARGE, ODC_F32, ODC_F32);
    if (rank != what->victim) {
        mine.life = (int)syscall(SYS_pidfd_open, read_flag(&what->victim_pid), 0);
        CHECK(mine.life >= 0);
    }
    raise_flag(&what->joined);
    if (rank == what->victim) {
        await_flag(&what->joined, RANKS);
        be_killed(what, context, t);
    }
    odc_status status = what->when == ANYWHERE ? run_minibatches(context, t) : wait_for_victim(what, context, t);
    atomic_store(&what->noticed_at[rank], now_ns());
    CHECK_EQUAL(status, ODC_ERROR_PEER_LOST);
    CHECK(mine.looks <= MOST_LOOKS);
    check_says_died(what, context);
    odc_destroy(context);
    close(mine.life);
}

/* Killed before it has met the others, while it meets them, or after. */
static void meet_or_die(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    char name[64];
    config.timeout_ms = 3000;
    if (rank == what->victim) {
        set_flag(&what->victim_pid, getpid());
        sleep_ms(3); /* so that the others are often there before it */
        die_soon(what);
        odc_init(&config, &context);
        for (;;) {
            pause();
        }
    }
    odc_status status = odc_init(&config, &context);
    if (status == ODC_OK) {
        status = odc_minibatch_sync(context);
        CHECK_EQUAL(status, ODC_ERROR_PEER_LOST);
    } else {
        CHECK(context == NULL);
        CHECK(status == ODC_ERROR_RENDEZVOUS || status == ODC_ERROR_PEER_LOST);
    }
    atomic_store(&what->noticed_at[rank], now_ns());
    snprintf(name, sizeof name, "rank %d", what->victim);
    CHECK_SENTENCE(odc_last_error(), name);
    odc_destroy(context);
}

static int earlier(const void *left, const void *right) {
    double x = *(const double *)left;
    double y = *(const double *)right;
    return (x > y) - (x < y);
}

/* Kills each rank in turn, so many times or until `seconds` have passed. Prints the others' latencies. */
static void kill_many_times(const char *name, moment when, int rounds, int seconds, int longest_delay_us) {
    enum { MOST = 128 };
    double latencies[RANKS * MOST];
    size_t count = 0;
    needs_processes("it kills ranks");
    uint64_t random = test_seed();
    scene *what = share(sizeof *what);
    int64_t end = now_ns() + seconds * (int64_t)1000000000;
    for (int round = 0; round < rounds && round < MOST && (round < FEWEST_ROUNDS || now_ns() < end); ++round) {
        memset(what, 0, sizeof *what);
        what->when = when;
        what->victim = round % RANKS;
        what->delay_us = (int)random_below(&random, (uint64_t)longest_delay_us);
        run_processes_of(name, RANKS, (uint64_t)1 << what->victim, when == IN_INIT ? meet_or_die : survive_or_die,
                         what);
        for (int rank = 0; rank < RANKS; ++rank) {
            if (rank != what->victim) {
                latencies[count] = (double)(atomic_load(&what->noticed_at[rank]) - atomic_load(&what->died_at)) * 1e-6;
                ++count;
            }
        }
    }
    qsort(latencies, count, sizeof *latencies, earlier);
    printf("%s: noticed after %.2f ms (median of %zu), %.2f ms at most\n", name, latencies[count / 2], count,
           latencies[count - 1]);
}

static void a_death_is_noticed_in_gather(void **state) {
    (void)state;
    kill_many_times(__func__, IN_GATHER, 12, 6, 10000);
}

static void a_death_is_noticed_in_scatter_add(void **state) {
    (void)state;
    kill_many_times(__func__, IN_SCATTER_ADD, 12, 6, 10000);
}

static void a_death_is_noticed_in_wait(void **state) {
    (void)state;
    kill_many_times(__func__, IN_WAIT, 12, 6, 10000);
}

static void a_death_is_noticed_in_sync(void **state) {
    (void)state;
    kill_many_times(__func__, IN_SYNC, 12, 6, 10000);
}

static void a_death_is_noticed_in_a_reduction(void **state) {
    (void)state;
    kill_many_times(__func__, IN_REDUCTION, 12, 6, 10000);
}

static void a_death_is_noticed_at_any_moment_also_while_it_holds_a_lock(void **state) {
    (void)state;
    kill_many_times(__func__, ANYWHERE, 90, 25, 25000);
}

static void a_death_is_noticed_though_its_children_keep_its_descriptors_open(void **state) {
    (void)state;
    kill_many_times(__func__, WITH_CHILDREN, 9, 6, 5000);
}

static void a_death_is_noticed_in_init(void **state) {
    (void)state;
    kill_many_times(__func__, IN_INIT, 12, 15, 60000);
}

/* ---- exec ---- */

typedef struct replaced {
    int children;
    atomic_int joined;
    atomic_int pid;
} replaced;

static void one_execs(int rank, int size, const char *job, void *arg) {
    replaced *what = arg;
    char sentence[2048];
    char pid[32];
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.timeout_ms = 600000; /* beyond the watchdog: the deadline must not end the wait */
    if (rank == 1) {
        set_flag(&what->pid, getpid());
    }
    CHECK_OK(odc_init(&config, &context));
    raise_flag(&what->joined);
    await_flag(&what->joined, size);
    if (rank == 1) {
        if (what->children) {
            leave_cloned_child();
            leave_cloned_child();
        }
        replace_program();
    }
    CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST);
    snprintf(sentence, sizeof sentence, "%s", odc_last_error());
    snprintf(pid, sizeof pid, "pid %d", read_flag(&what->pid));
    CHECK_SENTENCE(sentence, "rank 1", pid, several_hosts() ? "is lost|exec" : "replaced its program (exec)");
    CHECK_KEPT(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, sentence);
    odc_destroy(context);
}

static void a_rank_that_calls_exec_is_noticed(void **state) {
    (void)state;
    needs_processes("it replaces a rank's program");
    for (int children = 0; children <= 1; ++children) {
        replaced *what = share(sizeof *what);
        what->children = children;
        run_mortals(RANKS, 2, one_execs, what);
    }
}

/* ---- What a death does not break ---- */

typedef struct after {
    atomic_int joined;
    atomic_int pid;
} after;

static void await_death(after *shared) {
    await_flag(&shared->pid, 1);
    for (int i = 0; i < 20000 && kill(read_flag(&shared->pid), 0) == 0; ++i) { /* until its parent has reaped it */
        sleep_ms(1);
    }
    sleep_ms(50);
}

static void dies_after_publishing(int rank, int size, const char *job, void *arg) {
    after *shared = arg;
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", 5000, ODC_F32, ODC_F32);
    char name[] = "rank 1";
    odc_shard_desc late = describe("late", 10, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    write_parameters(t, 6);
    CHECK_OK(odc_publish(t.shard, NULL));
    raise_flag(&shared->joined);
    if (rank == 1) {
        await_flag(&shared->joined, 2);
        set_flag(&shared->pid, getpid());
        raise(SIGKILL);
    }
    await_death(shared);
    check_gather(t, 6);
    add_gradients(t, 7);
    check_gather(t, 6);
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, name, "died");
    CHECK_ERROR(odc_register_shard(context, &late, &shard), ODC_ERROR_PEER_LOST, name, "died");
    odc_destroy(context);
}

static void a_wait_whose_condition_holds_succeeds_even_if_a_peer_has_died_since(void **state) {
    (void)state;
    needs_processes("it kills a rank");
    run_mortals(2, 2, dies_after_publishing, share(sizeof(after)));
}

static void *kill_in_sync(void *arg) {
    after *shared = arg;
    await_asleep(getpid()); /* the other thread, in sync */
    set_flag(&shared->pid, getpid());
    raise(SIGKILL);
    return NULL;
}

static void dies_in_sync(int rank, int size, const char *job, void *arg) {
    after *shared = arg;
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", 5000, ODC_F32, ODC_F32);
    pthread_t thread;
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 1) {
        add_gradients(t, 3);
        CHECK(pthread_create(&thread, NULL, kill_in_sync, shared) == 0);
    } else {
        await_death(shared);
    }
    CHECK_OK(odc_minibatch_sync(context)); /* every rank has arrived, also the dead one */
    check_sums(t, (uint64_t[]){3}, 1);
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1", "died");
    odc_destroy(context);
}

static void a_sync_in_which_all_have_arrived_succeeds_even_if_a_peer_has_died_since(void **state) {
    (void)state;
    needs_processes("it kills a rank");
    run_mortals(2, 2, dies_in_sync, share(sizeof(after)));
}

/* ---- Ctrl-C ---- */

typedef struct crowd {
    atomic_int pids[RANKS];
    int missing; /* this rank does not call odc_init */
} crowd;

static void be_interrupted(int rank, int size, const char *job, void *arg) {
    crowd *all = arg;
    odc_context *context = NULL;
    set_flag(&all->pids[rank], getpid());
    if (rank == RANKS - 1) { /* acts as the terminal */
        for (int i = 0; i < RANKS - 1; ++i) {
            await_flag(&all->pids[i], 1);
        }
        if (!all->missing) {
            context = join(rank, size, job);
            make_tensor(context, "layer", LARGE, ODC_F32, ODC_F32);
        }
        for (int i = 0; i < RANKS - 1; ++i) { /* in odc_init, or in the minibatch */
            await_asleep(read_flag(&all->pids[i]));
        }
        for (int i = 0; i < RANKS; ++i) {
            kill(read_flag(&all->pids[i]), SIGINT);
        }
        pause();
    }
    odc_config config = config_of(rank, size, job);
    if (odc_init(&config, &context) != ODC_OK) {
        pause(); /* another rank got the signal first */
    }
    run_minibatches(context, make_tensor(context, "layer", LARGE, ODC_F32, ODC_F32));
    odc_destroy(context);
}

static void ctrl_c_leaves_no_socket_and_no_process(void **state) {
    (void)state;
    needs_processes("it ends ranks by a signal");
    for (int missing = 0; missing < 2; ++missing) {
        crowd *all = share(sizeof *all);
        all->missing = missing;
        run_mortals(RANKS, 7, be_interrupted, all); /* also looks for sockets named after the job */
        for (int i = 0; i < RANKS; ++i) {
            CHECK(kill(read_flag(&all->pids[i]), 0) != 0);
        }
    }
    CHECK(waitpid(-1, NULL, WNOHANG) < 0); /* no process is left */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_noticed_in_gather),
        cmocka_unit_test(a_death_is_noticed_in_scatter_add),
        cmocka_unit_test(a_death_is_noticed_in_wait),
        cmocka_unit_test(a_death_is_noticed_in_sync),
        cmocka_unit_test(a_death_is_noticed_in_a_reduction),
        cmocka_unit_test(a_death_is_noticed_at_any_moment_also_while_it_holds_a_lock),
        cmocka_unit_test(a_death_is_noticed_though_its_children_keep_its_descriptors_open),
        cmocka_unit_test(a_death_is_noticed_in_init),
        cmocka_unit_test(a_rank_that_calls_exec_is_noticed),
        cmocka_unit_test(a_wait_whose_condition_holds_succeeds_even_if_a_peer_has_died_since),
        cmocka_unit_test(a_sync_in_which_all_have_arrived_succeeds_even_if_a_peer_has_died_since),
        cmocka_unit_test(ctrl_c_leaves_no_socket_and_no_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
