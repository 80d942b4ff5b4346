/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that is killed, or interrupted, while the ranks meet is noticed by those that wait for the rest, and the error names
 * it. death_test.c kills ranks at any moment of a job. */
#include "rendezvous.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef enum ending { BY_KILL, BY_EXEC } ending;

static const char *const ending_names[] = {"killed", "replaced by exec"};
static const char *const ending_words[] = {"died", "replaced its program (exec)"};

static void end_by(ending how) {
    if (how == BY_KILL) {
        kill(getpid(), SIGKILL);
    }
    replace_program();
}

typedef struct init_end {
    scene *shared;
    ending how;
    int victim;
} init_end;

static int end_when_told(void *arg) {
    init_end *what = arg;
    raise_flag(&what->shared->looks[what->victim]);
    if (read_flag(&what->shared->flag) == 1) {
        end_by(what->how);
    }
    return 0;
}

/* The victim ends once the others wait for the last rank, which never comes. */
static void one_ends(int rank, int size, const char *job, void *arg) {
    init_end *end = arg;
    scene *what = end->shared;
    odc_config config = scene_config(what, rank, size, job);
    config.timeout_ms = ENDLESS_MS;
    if (rank == end->victim) {
        config.interrupted = end_when_told;
        config.interrupted_arg = end;
    }
    if (rank == size - 1) {
        await_met(what, size - 1);
        what->begun_at = now_ns();
        set_flag(&what->flag, 1);
        return;
    }
    char name[16];
    snprintf(name, sizeof name, "rank %d", end->victim);
    FAIL_INIT(&config, name, ending_words[end->how]);
    CHECK(!what->by_name || strstr(odc_last_error(), "gave up") == NULL); /* over TCP nobody can tell */
    what->ended_at[rank] = now_ns();
    CHECK(what->begun_at > 0);
}

static void end_in_init(const char *test, ending how) {
    enum { RANKS = 4 };
    needs_processes("it ends ranks");
    for (int by_name = 0; by_name <= 1; ++by_name) {
        for (int victim = 0; victim <= 1; ++victim) {
            init_end *end = share(sizeof *end);
            *end = (init_end){new_scene(by_name), how, victim};
            run_processes_of(test, RANKS, UINT64_C(1) << victim, one_ends, end);
            printf("%s: rank %d %s %s, noticed after", test, victim, ending_names[how],
                   by_name ? "by name" : "over TCP");
            for (int rank = 0; rank < RANKS - 1; ++rank) {
                if (rank != victim) {
                    printf(" %.2f ms", (double)(end->shared->ended_at[rank] - end->shared->begun_at) * 1e-6);
                }
            }
            printf("\n");
            end_scene(end->shared);
        }
    }
}

static void test_killed_in_init(void **state) {
    (void)state;
    end_in_init(__func__, BY_KILL);
}

static void test_exec_in_init(void **state) {
    (void)state;
    end_in_init(__func__, BY_EXEC);
}

/* ---- Between hosts ---- */

enum { VICTIM = 1, LATE = 2, ON_HOSTS = 3, LAYOUTS = 3 };

/* The host of each rank: the victim's alone, with the rank that leads the local rendezvous, or with the late one. */
static const int layouts[LAYOUTS][ON_HOSTS] = {{0, 1, 0}, {0, 0, 1}, {0, 1, 1}};

typedef struct sudden_end {
    scene *shared;
    ending how;
    const int *hosts;
    int delay_us; /* after the victim has come and the last rank has started */
} sudden_end;

static void *end_soon(void *arg) {
    const sudden_end *what = arg;
    await_flag(&what->shared->flag, 1);
    sleep_us(what->delay_us);
    end_by(what->how);
    return NULL;
}

static void end_or_read_of_it(int rank, int size, const char *job, void *arg) {
    sudden_end *what = arg;
    odc_config config = scene_config(what->shared, rank, size, job);
    odc_context *context = NULL;
    pthread_t thread;
    config.host = what->hosts[rank] == 0 ? "host A" : "host B";
    config.timeout_ms = ENDLESS_MS;
    if (rank == VICTIM) {
        CHECK(pthread_create(&thread, NULL, end_soon, what) == 0);
        odc_init(&config, &context);
        for (;;) {
            pause();
        }
    }
    if (rank == LATE) {
        await_met(what->shared, LATE);
        set_flag(&what->shared->flag, 1);
    }
    odc_status status = odc_init(&config, &context);
    CHECK(status == ODC_OK || status == ODC_ERROR_RENDEZVOUS || status == ODC_ERROR_PEER_LOST);
    if (status == ODC_OK) {
        CHECK_EQUAL(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST);
    }
    CHECK_SENTENCE(odc_last_error(), "rank 1");
    CHECK(strstr(odc_last_error(), "gave up") == NULL || strstr(odc_last_error(), ending_words[what->how]) != NULL);
    odc_destroy(context);
}

static void end_between_hosts(const char *test, ending how) {
    enum { ROUNDS = 4, LONGEST_US = 300000 };
    needs_processes("it ends ranks");
    uint64_t random = test_seed();
    setenv("ODC_INTERFACE", "lo", 1);
    setenv("ODC_SILENCE_MS", "200000", 1); /* beyond the watchdog, as all deadlines here are */
    for (int i = 0; i < LAYOUTS * ROUNDS; ++i) {
        sudden_end *what = share(sizeof *what);
        *what = (sudden_end){new_scene(0), how, layouts[i % LAYOUTS], (int)random_below(&random, LONGEST_US)};
        run_processes_of(test, ON_HOSTS, UINT64_C(1) << VICTIM, end_or_read_of_it, what);
        end_scene(what->shared);
    }
    unsetenv("ODC_SILENCE_MS");
    unsetenv("ODC_INTERFACE");
}

static void test_killed_in_init_between_hosts(void **state) {
    (void)state;
    end_between_hosts(__func__, BY_KILL);
}

static void test_exec_in_init_between_hosts(void **state) {
    (void)state;
    end_between_hosts(__func__, BY_EXEC);
}

/* ---- Late ranks ---- */

/* Returns once it is dead: a process that is sent SIGKILL runs until it is scheduled. */
static void kill_now(pid_t process) {
    struct pollfd life = {.fd = (int)syscall(SYS_pidfd_open, process, 0), .events = POLLIN};
    CHECK(life.fd >= 0);
    kill(process, SIGKILL);
    CHECK(poll(&life, 1, -1) == 1); /* the watchdog ends it */
    close(life.fd);
}

/* Ranks 0 to 2 have met when one of them is killed; ranks 3 and 4 come later and read of it, too. Deadlines are beyond the
 * watchdog, so none may be waited for. */
static void some_come_late(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    char name[16];
    config.timeout_ms = ENDLESS_MS;
    set_flag(&what->pids[rank], getpid());
    snprintf(name, sizeof name, "rank %d", what->variant);
    if (rank == 3) {
        await_met(what, 3);
        kill_now(read_flag(&what->pids[what->variant]));
        set_flag(&what->flag, 1);
    } else if (rank == 4) {
        await_flag(&what->flag, 1);
    }
    FAIL_INIT(&config, name, "died|gave up");
}

static void test_late_ranks_read_who_died(void **state) {
    (void)state;
    needs_processes("it kills a rank");
    for (int by_name = 0; by_name <= 1; ++by_name) {
        for (int victim = 1; victim <= 2; ++victim) { /* not rank 0: the late ones connect to it */
            scene *what = new_scene(by_name);
            what->variant = victim;
            run_mortals(5, UINT64_C(1) << victim, some_come_late, what);
            end_scene(what);
        }
    }
}

static int stop_at_once(void *arg) {
    scene *what = arg;
    raise_flag(&what->looks[2]);
    return read_flag(&what->flag) == 1;
}

/* The same with a rank that gives up: rank 2, and then rank 3 comes. */
static void one_gives_up(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    config.timeout_ms = ENDLESS_MS;
    if (rank == 2) {
        odc_context *context = NULL;
        config.interrupted = stop_at_once;
        config.interrupted_arg = what;
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_INTERRUPTED, "interrupted");
        set_flag(&what->flag, 2);
        return;
    }
    if (rank == 3) {
        await_met(what, 3);
        set_flag(&what->flag, 1);
        await_flag(&what->flag, 2);
    }
    FAIL_INIT(&config, "rank 2", "gave up");
    CHECK(!what->by_name || strstr(odc_last_error(), "died") == NULL); /* over TCP nobody can tell */
}

static void test_late_ranks_read_who_gave_up(void **state) {
    (void)state;
    both_ways(one_gives_up, 4);
}

enum { PAUSES = 40 };

/* When one rank's `interrupted` was called, and the intervals of the last PAUSES calls. */
typedef struct asked {
    scene *what;
    int rank;
    int64_t last;
    int count;
    int in_time; /* of them, at most 100 ms long */
    int64_t longest;
} asked;

static int stop_on_request(void *arg) {
    asked *seen = arg;
    int64_t now = now_ns();
    int64_t pause = now - seen->last;
    raise_flag(&seen->what->looks[seen->rank]);
    seen->last = now;
    if (read_flag(&seen->what->flag) == 0) {
        return 0;
    }
    ++seen->count;
    seen->in_time += pause <= 100000000;
    seen->longest = pause > seen->longest ? pause : seen->longest;
    return seen->count == PAUSES;
}

/* The last rank, which does not come, signals when the others have met; then one of them is interrupted. */
static void interrupted(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    if (rank == size - 1) {
        await_met(what, size - 1);
        set_flag(&what->flag, 1);
    } else if (rank == what->variant) {
        asked seen = {what, rank, now_ns(), 0, 0, 0};
        odc_context *context = NULL;
        config.interrupted = stop_on_request;
        config.interrupted_arg = &seen;
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_INTERRUPTED, "interrupted", "odc_init");
        CHECK(context == NULL);
        CHECK(seen.in_time >= PAUSES / 10); /* a busy machine makes many of them longer */
        what->ended_at[rank] = seen.longest;
    } else {
        char name[16];
        snprintf(name, sizeof name, "rank %d", what->variant);
        FAIL_INIT(&config, name, "died|gave up|left");
    }
}

static void test_interrupted(void **state) {
    (void)state;
    for (int by_name = 0; by_name <= 1; ++by_name) {
        for (int who = 0; who <= 1; ++who) {
            scene *what = new_scene(by_name);
            what->variant = who;
            run_processes(3, interrupted, what);
            printf("%s: rank %d %s was asked after %.2f ms at most\n", __func__, who, by_name ? "by name" : "over TCP",
                   (double)what->ended_at[who] * 1e-6);
            end_scene(what);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_in_init),
        cmocka_unit_test(test_exec_in_init),
        cmocka_unit_test(test_killed_in_init_between_hosts),
        cmocka_unit_test(test_exec_in_init_between_hosts),
        cmocka_unit_test(test_late_ranks_read_who_died),
        cmocka_unit_test(test_late_ranks_read_who_gave_up),
        cmocka_unit_test(test_interrupted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
