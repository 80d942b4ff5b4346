/* SPDX-License-Identifier: Apache-2.0 */
/* A link to other hosts that stalls after a number of bytes, so that a test can act in the middle of a transfer: the process's TCP
 * sockets have no room then, as on a network that carries nothing. */
#ifndef ODC_TESTS_STALLING_LINK_H
#define ODC_TESTS_STALLING_LINK_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct stalling_link {
    _Atomic int64_t left; /* bytes that it still carries; the send that exceeds them passes as a whole */
    atomic_int stalled;   /* it has refused some */
} stalling_link;

/* Limits what this process sends from now on. `shared` is in memory of all ranks, any of which may restore it. */
void limit_link(stalling_link *shared, int64_t bytes);
void restore_link(stalling_link *shared);

#endif
