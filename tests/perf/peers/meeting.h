/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a bare loop meet: over TCP, all at rank 0. Every failure ends the process with a sentence. */
#ifndef ODC_TESTS_BENCH_MEETING_H
#define ODC_TESTS_BENCH_MEETING_H

#include <stddef.h>

enum { MAX_RANKS = 64 };

struct meeting {
    int rank;
    int size;
    int sockets[MAX_RANKS]; /* rank 0: [r] leads to rank r; the others: [0] leads to rank 0 */
    char address[64];       /* this rank's, on the interface by which it meets */
};

/* Reads ODC_RANK, ODC_SIZE and ODC_RENDEZVOUS (address:port or [v6]:port). */
void meet(struct meeting *out);

/* Called while messages are awaited on these sockets; returns when there may be one. */
typedef void meanwhile(void *context, const int *sockets, int count);

/* Each rank gives `bytes`; all get the size * bytes in rank order. At most a few KB. */
void all_gather(struct meeting *m, const void *mine, size_t bytes, void *all, meanwhile *fn, void *context);

#endif
