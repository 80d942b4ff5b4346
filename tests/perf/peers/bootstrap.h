/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a bare loop meet: over TCP, all at rank 0. Every failure ends the process with an error. */
#ifndef ODC_TESTS_PERF_BOOTSTRAP_H
#define ODC_TESTS_PERF_BOOTSTRAP_H

#include <stddef.h>

enum { MAX_RANKS = 64 };

struct bootstrap {
    int rank;
    int size;
    int sockets[MAX_RANKS]; /* rank 0: [r] leads to rank r; the others: [0] leads to rank 0 */
    char address[64];       /* this rank's, on the interface by which it meets */
};

/* Reads ODC_RANK, ODC_SIZE and ODC_RENDEZVOUS (address:port or [v6]:port). */
void meet(struct bootstrap *out);

/* Called while messages are awaited on these sockets; returns when there may be one. */
typedef void meanwhile(void *context, const int *sockets, int count);

/* Each rank passes `bytes`; all get the size * bytes in rank order. At most a few KB. */
void all_gather(struct bootstrap *m, const void *mine, size_t bytes, void *all, meanwhile *fn, void *context);

#endif
