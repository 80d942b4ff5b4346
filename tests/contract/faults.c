/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static _Thread_local uint64_t interruption_seed; /* 0: none yet */
static _Thread_local timer_t timer;
static _Thread_local int has_timer;
static _Thread_local volatile sig_atomic_t handled;

static void count_signal(int signal) {
    (void)signal;
    handled = handled + 1;
}

uint64_t signals_handled(void) { return (uint64_t)handled; }

static int is_interrupted(void *arg) {
    if (interruption_seed == 0) {
        return 0;
    }
    atomic_fetch_add_explicit((_Atomic uint64_t *)arg, 1, memory_order_relaxed);
    return random_below(&interruption_seed, 100) < 30;
}

/* The first CPU that this process may use: the same for all ranks. */
static void pin_to_one_cpu(void) {
    cpu_set_t may;
    cpu_set_t one;
    int cpu = 0;
    CHECK(sched_getaffinity(0, sizeof may, &may) == 0);
    while (!CPU_ISSET(cpu, &may)) {
        ++cpu;
    }
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

/* Directed at the calling thread; the process's own timer is the watchdog's alarm(). */
static void start_signals(void) {
    struct sigaction action = {.sa_handler = count_signal};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    struct itimerspec every = {{0, SIGNAL_US * 1000}, {0, SIGNAL_US * 1000}};
    event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(timer_settime(timer, 0, &every, NULL) == 0);
    has_timer = 1;
}

void begin_faults(const faults *what, odc_config *config, _Atomic uint64_t *asks) {
    if (what->one_cpu) {
        pin_to_one_cpu();
    }
    if (what->signals) {
        start_signals();
    }
    if (what->interruptions) {
        config->interrupted = is_interrupted;
        config->interrupted_arg = asks;
    }
}

void allow_interruptions(uint64_t seed) { interruption_seed = seed | 1; }

void end_faults(void) {
    interruption_seed = 0;
    if (has_timer) {
        timer_delete(timer);
        has_timer = 0;
    }
}

void join_thread(pthread_t thread) {
    sigset_t signals;
    sigset_t before;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &signals, &before) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
}

static void *kill_this(void *us) {
    sleep_us((int)(intptr_t)us);
    kill(getpid(), SIGKILL);
    return NULL;
}

void be_killed_after(int us) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, kill_this, (void *)(intptr_t)us) == 0);
    pthread_detach(thread);
}
