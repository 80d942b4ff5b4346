/* SPDX-License-Identifier: Apache-2.0 */
/* What a random job has to stand besides its calls: ranks that share one CPU, signals that interrupt system calls,
 * an `interrupted` callback that says so, and a rank that is killed. */
#ifndef ODC_TESTS_FAULTS_H
#define ODC_TESTS_FAULTS_H

#include "ranks.h"

typedef struct faults {
    int one_cpu;
    int signals;       /* one every SIGNAL_US to each rank's thread, its handler without SA_RESTART */
    int interruptions; /* the callback returns non-zero in 30 of 100 asks */
    int kills;         /* one rank of each job, by SIGKILL */
} faults;

enum { SIGNAL_US = 100 };

/* For the calling rank, before odc_init. Interruptions begin with allow_interruptions, so not in odc_init; `asks` counts how
 * often waits ask since then. */
void begin_faults(const faults *what, odc_config *config, _Atomic uint64_t *asks);
/* How often the calling thread's calls are interrupted depends on the seed and on how often they ask. */
void allow_interruptions(uint64_t seed);
/* For the calling rank, before its thread ends. */
void end_faults(void);
/* SIGKILL to this process, after so many microseconds, whatever it does then. */
void be_killed_after(int us);
/* By the calling thread. */
uint64_t signals_handled(void);

#endif
