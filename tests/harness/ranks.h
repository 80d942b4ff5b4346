/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the ranks of a test as processes (or, with ODC_TEST_RANKS=threads, as threads of one process) under a watchdog,
 * and checks that end a rank with file, line and rank and fail the test. */
#ifndef ODC_TESTS_RANKS_H
#define ODC_TESTS_RANKS_H

#include "flags.h"

#include <odc/odc.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

/* ---- Running ---- */

typedef void (*context_fn)(odc_context *context, void *arg);
typedef void (*rank_fn)(int rank, int size, const char *job, void *arg);

/* Each rank joins a job with a random name, calls `fn` and destroys its context. */
#define run_ranks(n, fn, arg) run_ranks_of(__func__, n, fn, arg)
/* Without a context: `fn` may join by itself. */
#define run_processes(n, fn, arg) run_processes_of(__func__, n, 0, fn, arg)
/* Always processes; those whose bit is set in `mortal` may end by a signal, and may still be stopped or asleep when the others
 * have ended (they are killed then). */
#define run_mortals(n, mortal, fn, arg) run_processes_of(__func__, n, mortal, fn, arg)

void run_ranks_of(const char *test, int n, context_fn fn, void *arg);
void run_processes_of(const char *test, int n, uint64_t mortal, rank_fn fn, void *arg);

int ranks_are_threads(void);
/* Skips the test and says why where ranks are threads. */
void needs_processes(const char *why);
/* Whether ranks are on several hosts (hosts.h): then odc_init's waits are not interrupted. */
int several_hosts(void);
/* Skips the test and says why where ranks are on several hosts. */
void needs_one_host(const char *why);
/* Skips the test and says why under a sanitizer. */
void needs_no_sanitizer(const char *why);
/* How many times slower this build is than a release build: scales counts, not results. */
int slowdown(void);
/* ODC_TEST_TIME_SCALE (default 1): multiplies the ranks' timeouts and the run's, where CUDA takes long to start. */
int time_scale(void);

/* For a child that a rank forks and does not wait for: it is killed when the run ends. */
void kill_at_end(pid_t pid);
/* Starts a child that outlives its rank until the run ends. */
void leave_child(void);
/* The same by the raw system call: it runs no pthread_atfork handlers, so the child keeps all open descriptors. */
void leave_cloned_child(void);
/* Replaces this process's program by one that sleeps until the run ends it. */
void replace_program(void);

/* The config of a rank: its host (hosts.h) and a timeout of 20 s times time_scale(). */
odc_config config_of(int rank, int size, const char *job);
/* odc_init with that config; the test fails if it fails. */
odc_context *join(int rank, int size, const char *job);
/* odc_init with that config and another timeout. */
odc_context *join_within(int rank, int size, const char *job, int64_t timeout_ms);

/* ---- Randomness ---- */

/* ODC_TEST_SEED, or a random seed; printed. */
uint64_t test_seed(void);
uint64_t next_random(uint64_t *state);
uint64_t random_below(uint64_t *state, uint64_t bound);

/* ---- Checks ---- */

#define CHECK(condition) check_that((condition) ? 1 : 0, #condition, __FILE__, __LINE__)
#define CHECK_EQUAL(left, right) \
    check_equal((long long)(left), (long long)(right), #left " == " #right, __FILE__, __LINE__)
#define CHECK_OK(call) check_status(call, ODC_OK, #call, __FILE__, __LINE__)
/* The call must fail with this status and one clear sentence that contains these texts (ignoring case; "a|b" is either). */
#define CHECK_ERROR(call, status, ...) \
    check_error(call, status, #call, __FILE__, __LINE__, (const char *[]){__VA_ARGS__, NULL})
/* The call must fail with this status and exactly the text of an earlier error. */
#define CHECK_KEPT(call, status, sentence) check_kept(call, status, sentence, #call, __FILE__, __LINE__)
#define CHECK_SENTENCE(sentence, ...) \
    check_sentence(sentence, #sentence, __FILE__, __LINE__, (const char *[]){__VA_ARGS__, NULL})

void check_that(int holds, const char *what, const char *file, int line);
void check_equal(long long left, long long right, const char *what, const char *file, int line);
void check_status(odc_status got, odc_status wanted, const char *call, const char *file, int line);
void check_error(odc_status got, odc_status wanted, const char *call, const char *file, int line, const char **text);
void check_kept(odc_status got, odc_status wanted, const char *sentence, const char *call, const char *file, int line);
void check_sentence(const char *sentence, const char *what, const char *file, int line, const char **text);

#endif
