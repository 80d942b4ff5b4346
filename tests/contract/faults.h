/* SPDX-License-Identifier: Apache-2.0 */
/* Faults during a random job: ranks that share one CPU, signals that interrupt system calls, an `interrupted` callback that
 * returns non-zero, and a killed rank. */
#ifndef ODC_TESTS_FAULTS_H
#define ODC_TESTS_FAULTS_H

#include "ranks.h"

#include <pthread.h>

typedef struct faults {
    int one_cpu;
    int signals;       /* one every SIGNAL_US to each rank's thread, with a handler without SA_RESTART */
    int interruptions; /* the callback returns non-zero in 30 of 100 calls */
    int kills;         /* one rank of each job gets SIGKILL */
} faults;

enum { SIGNAL_US = 100 };

/* For the calling rank, before odc_init. Interruptions begin with allow_interruptions, so odc_init is not interrupted; `asks`
 * counts the callback's calls since then. */
void begin_faults(const faults *what, odc_config *config, _Atomic uint64_t *asks);
/* How often the calling thread is interrupted depends on the seed and on how often its calls ask. */
void allow_interruptions(uint64_t seed);
/* For the calling rank, before its thread ends. */
void end_faults(void);
/* pthread_join without signals: ThreadSanitizer handles one that comes during it at once, also where glibc frees the thread's
 * memory and ThreadSanitizer holds a lock that handling needs. */
void join_thread(pthread_t thread);
/* Sends SIGKILL to this process after so many microseconds, wherever it is then. */
void be_killed_after(int us);
/* Received by the calling thread. */
uint64_t signals_handled(void);

#endif
