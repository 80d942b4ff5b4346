/* SPDX-License-Identifier: Apache-2.0 */
/* Signals belong to the program: a job on several hosts, which loads libraries, changes no disposition, and a signal that is to
 * end a joining rank does what the program wants. */
#include "hosts.h"
#include "model.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, TRIES = 12, LONGEST_US = 300000, EXIT_CODE = 7 };

static void first_handler(int signal) { (void)signal; }
static void second_handler(int signal, siginfo_t *info, void *context) { (void)signal, (void)info, (void)context; }

/* 0: its disposition cannot be set (SIGKILL, SIGSTOP, those of the C library), or the run needs it. */
static int dispose(int number, int how, struct sigaction *action) {
    memset(action, 0, sizeof *action);
    sigemptyset(&action->sa_mask);
    switch (how) {
        case 0: action->sa_handler = SIG_DFL; break;
        case 1: action->sa_handler = SIG_IGN; break;
        case 2:
            action->sa_handler = first_handler;
            action->sa_flags = SA_RESTART;
            sigaddset(&action->sa_mask, SIGUSR1);
            break;
        default: action->sa_sigaction = second_handler; action->sa_flags = SA_SIGINFO;
    }
    return number != SIGCHLD && sigaction(number, action, NULL) == 0;
}

static void check_dispositions(const struct sigaction *wanted, const int *set) {
    for (int number = 1; number < NSIG; ++number) {
        struct sigaction now;
        if (!set[number]) {
            continue;
        }
        CHECK_EQUAL(sigaction(number, NULL, &now), 0);
        if (now.sa_sigaction != wanted[number].sa_sigaction) {
            printf("signal %d is handled by another\n", number);
        }
        CHECK(now.sa_sigaction == wanted[number].sa_sigaction);
        CHECK_EQUAL(now.sa_flags & (SA_SIGINFO | SA_RESTART), wanted[number].sa_flags);
        CHECK_EQUAL(sigismember(&now.sa_mask, SIGUSR1), sigismember(&wanted[number].sa_mask, SIGUSR1));
    }
}

static void keeps_its_signals(int rank, int size, const char *job, void *arg) {
    (void)arg;
    struct sigaction wanted[NSIG];
    int set[NSIG] = {0};
    sigset_t before;
    sigset_t after;
    for (int number = 1; number < NSIG; ++number) {
        set[number] = dispose(number, (number + 2 * rank) % 4, &wanted[number]); /* one of the ranks catches it */
    }
    CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, NULL, &before), 0);
    odc_context *context = join(rank, size, job);
    check_dispositions(wanted, set);
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 1);
    odc_destroy(context);
    check_dispositions(wanted, set);
    CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, NULL, &after), 0);
    for (int number = 1; number < NSIG; ++number) { /* the rest of a set is never written */
        CHECK_EQUAL(sigismember(&after, number), sigismember(&before, number));
    }
}

static void a_job_leaves_the_dispositions_of_signals_as_they_were(void **state) {
    (void)state;
    needs_processes("libfabric must not be loaded yet");
    run_processes(RANKS, keeps_its_signals, NULL);
}

/* ---- SIGTERM while ranks join ---- */

static void ends(int signal) {
    (void)signal;
    _exit(EXIT_CODE);
}

/* Odd ranks catch the signal, even ones do not. */
static pid_t start_joining(int rank, const char *job) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct sigaction action = {.sa_handler = rank % 2 == 0 ? SIG_DFL : ends};
        sigaction(SIGTERM, &action, NULL);
        join(rank, RANKS, job);
        for (;;) {
            pause();
        }
    }
    return pid;
}

static int ended_within(pid_t pid, int seconds, int *how) {
    for (int64_t end = now_ns() + seconds * (int64_t)1000000000; now_ns() < end; sleep_ms(1)) {
        if (waitpid(pid, how, WNOHANG) == pid) {
            return 1;
        }
    }
    return 0;
}

static void are_sent_sigterm(int rank, int size, const char *job, void *arg) {
    uint64_t random = *(uint64_t *)arg;
    (void)rank, (void)size;
    for (int try = 0; try < TRIES; ++try) {
        char name[96];
        pid_t pids[RANKS];
        snprintf(name, sizeof name, "%s-%d", job, try);
        for (int i = 0; i < RANKS; ++i) {
            pids[i] = start_joining(i, name);
        }
        sleep_us((int)random_below(&random, LONGEST_US));
        for (int i = 0; i < RANKS; ++i) {
            kill(pids[i], SIGTERM);
        }
        for (int i = 0; i < RANKS; ++i) {
            int how = 0;
            CHECK(ended_within(pids[i], 20, &how));
            if (i % 2 == 0) {
                CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
            } else { /* or before it installed its handler */
                CHECK((WIFEXITED(how) && WEXITSTATUS(how) == EXIT_CODE) || WIFSIGNALED(how));
            }
        }
    }
}

static void a_signal_ends_joining_ranks(void **state) {
    uint64_t seed = test_seed();
    (void)state;
    needs_processes("it ends ranks by a signal");
    run_processes(1, are_sent_sigterm, &seed);
}

int main(void) {
    let_ranks_load_libfabric();
    setenv("ODC_TEST_HOSTS", "99", 0);
    setenv("ODC_INTERFACE", "lo", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_leaves_the_dispositions_of_signals_as_they_were),
        cmocka_unit_test(a_signal_ends_joining_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
