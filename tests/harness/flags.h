/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a test tell each other outside the library, and the time. Relaxed atomics throughout, so that they do not
 * hide a missing order of the library from a race detector. */
#ifndef ODC_TESTS_FLAGS_H
#define ODC_TESTS_FLAGS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

void *share(size_t bytes); /* zeroed memory for all ranks of later runs */
void raise_flag(atomic_int *flag);
void set_flag(atomic_int *flag, int value);
int read_flag(atomic_int *flag);
void await_flag(atomic_int *flag, int at_least); /* fails the test after 30 s */

/* Threads that are about to wait in a call. */
typedef struct waiting_threads {
    atomic_int count;
    atomic_int tids[64];
} waiting_threads;

void add_waiter(waiting_threads *all); /* the calling thread */
/* Until so many have been added and each of them has been asleep for a while; likewise fails after 30 s. */
void await_waiters(waiting_threads *all, int count);
void await_asleep(int tid);
/* Sends SIGSTOP and returns when each of its threads has stopped. */
void stop_process(pid_t pid);

int64_t now_ns(void);
void sleep_ms(int ms);
void sleep_us(int us);

#endif
