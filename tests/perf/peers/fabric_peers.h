/* SPDX-License-Identifier: Apache-2.0 */
/* The bare libfabric loop, and what it moves bytes with: endpoints, queues and regions of one libfabric domain. */
#ifndef ODC_TESTS_BENCH_FABRIC_PEERS_H
#define ODC_TESTS_BENCH_FABRIC_PEERS_H

#include "meeting.h"

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <semaphore.h>
#include <stdint.h>

enum { MAX_ENDPOINTS = 4, MAX_NAME = 64, MAX_ROUNDS = 1000 };
enum op { OP_READ, OP_WRITE, OP_SEND };
enum wait { WAIT_SPIN, WAIT_YIELD, WAIT_SLEEP };

struct options {
    const char *provider;
    const char *address; /* of the interface; NULL: the one by which the ranks meet */
    enum op op;
    enum wait wait;
    size_t bytes; /* of the whole tensor */
    size_t chunk;
    int depth; /* chunks in flight, of this rank to all others together */
    int rounds;
    int endpoints;
    int incast; /* all slices go to rank 0 */
    int thread; /* another thread does it all, and the first one waits for it */
};

/* What a rank tells the others. */
struct card {
    char name[MAX_ENDPOINTS][MAX_NAME];
    uint64_t key[MAX_ENDPOINTS];
    uint64_t base;
};

struct endpoint {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_mr *local_mr;
    struct fid_mr *exposed_mr;
    fi_addr_t *peers;
    int wait_fd;
};

/* A chunk in flight; the context comes first, so that its address is the slot's. */
struct slot {
    struct fi_context2 context;
    struct slot *next_free;
    char *message; /* for what is received; NULL for what this rank started */
    struct endpoint *at;
};

struct peers {
    struct options options;
    struct meeting meeting;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct endpoint endpoints[MAX_ENDPOINTS];
    struct card *cards;
    size_t slice;  /* bytes that go from a rank to another */
    size_t inbox;  /* bytes of what messages are received into */
    char *local;   /* the tensor, what is read into, or pushed from; then the inbox */
    char *exposed; /* what is read from, or written to */
    struct slot *slots;
    struct slot *free_slots;
    sem_t begin; /* of a round, for the thread */
    sem_t end;
    size_t to_finish; /* operations of this rank */
    size_t to_receive;
};

/* Ends the process with a sentence when `status` is negative, libfabric's way. */
void check(long status, const char *what);
/* Zeroed, and there: the process ends otherwise. */
char *allocate(size_t bytes);
/* After meet() and parsing; all ranks, which hold each other's addresses and keys afterwards. */
void open_all(struct peers *p);
void close_all(struct peers *p);
/* The meeting's `meanwhile`: others read what this rank exposes, so it must make progress. */
void serve(void *context, const int *sockets, int count);

extern const char *const op_names[];
/* How many messages can arrive at this rank before it looks. */
size_t receives(const struct peers *p);
/* Slots for what this rank starts, and for the posted receives; after open_all. */
void fill_slots(struct peers *p);
/* What a round needs; before the others can start it. */
void arm(struct peers *p);
/* This rank's part of a round: moves its chunks, in the order of the ranks after it. */
void move(struct peers *p);
/* Every float tells whose it is, so that a loop which moves nothing is noticed. */
void mark(struct peers *p);
/* After a round; messages, which land anywhere in the inbox, are counted only. */
void verify(const struct peers *p);
/* Ends the process, with a sentence, unless called again in time: a peer that is gone leaves operations that never end,
 * and more that cannot begin. */
void allow_round(void);
double now(void); /* seconds; ranks share the machine's clock */

#endif
