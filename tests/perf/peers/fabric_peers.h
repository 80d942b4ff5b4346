/* SPDX-License-Identifier: Apache-2.0 */
/* The bare libfabric loop and its endpoints, queues and registered memory in one libfabric domain. It moves slices, or reads and
 * adds them, as scatter-add does: into buffers for the chunks in flight, from there, under the stripes' locks, to sums. */
#ifndef ODC_TESTS_BENCH_FABRIC_PEERS_H
#define ODC_TESTS_BENCH_FABRIC_PEERS_H

#include "bootstrap.h"

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>

enum { MAX_ENDPOINTS = 4, MAX_NAME = 64, MAX_ROUNDS = 1000, STRIPE_BYTES = 65536 };
enum op { OP_READ, OP_WRITE, OP_SEND, OP_ADD };
enum wait { WAIT_SPIN, WAIT_YIELD, WAIT_SLEEP };

struct options {
    const char *provider;
    const char *address; /* of the interface; NULL: the one by which the ranks meet */
    enum op op;
    enum wait wait;
    size_t bytes; /* of the whole tensor */
    size_t chunk;
    int depth; /* this rank's chunks in flight to all others together */
    int rounds;
    int endpoints;
    int incast; /* all slices go to rank 0 */
    int alone;  /* with OP_ADD and incast: the one rank whose slice goes there; 0: all */
    int thread; /* another thread does all the work, and the first one waits for it */
};

/* What a rank sends to the others. */
struct peer_info {
    char name[MAX_ENDPOINTS][MAX_NAME];
    uint64_t key[MAX_ENDPOINTS];
    uint64_t base;
};

struct endpoint {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_mr *local_mr;
    struct fid_mr *remote_mr;
    fi_addr_t *peers;
    int wait_fd;
};

/* A chunk in flight; the context is its first member, so that their addresses are equal. */
struct slot {
    struct fi_context2 context;
    struct slot *next_free;
    char *message; /* of a posted receive; NULL for operations that this rank started */
    char *buffer;  /* with OP_ADD: what is read, for `offset` of the slice */
    size_t offset;
    size_t length;
    struct endpoint *at;
};

struct peers {
    struct options options;
    struct bootstrap bootstrap;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct endpoint endpoints[MAX_ENDPOINTS];
    struct peer_info *infos;
    size_t slice;          /* bytes that go from a rank to another */
    size_t receive_buffer; /* bytes */
    char *local;           /* the tensor, read into or pushed from; then the receive buffer, or those of OP_ADD */
    char *shared;          /* read from, or written to, by peers */
    struct slot *slots;
    struct slot *free_slots;
    struct slot *arrived; /* and not added yet, the latest first */
    float *sums;
    atomic_flag *locks; /* of the sums' stripes */
    sem_t begin;        /* of a round, for the thread */
    sem_t end;
    size_t to_finish; /* operations of this rank */
    size_t to_receive;
};

/* If `status` is negative, ends the process with libfabric's error text. */
void check(long status, const char *what);
/* Zeroed memory in large pages, as slices are; ends the process if there is none. */
char *allocate(size_t bytes);
/* Called by all ranks after meet() and parsing; exchanges their addresses and keys. */
void open_all(struct peers *p);
void close_all(struct peers *p);
/* The `meanwhile` of all_gather: peers read this rank's memory, so it must make progress. */
void serve(void *context, const int *sockets, int count);

extern const char *const op_names[];
/* How many messages can arrive at this rank before it polls. */
size_t receives(const struct peers *p);
/* Allocates the contexts of this rank's operations and of its posted receives; after open_all. */
void fill_slots(struct peers *p);
/* Prepares a round; before any rank starts it. */
void arm(struct peers *p);
/* This rank's part of a round: moves its chunks, in the order of the ranks after it. */
void move(struct peers *p);
/* Starts the thread of move_in_thread. */
void start_thread(struct peers *p);
/* The thread moves, while this one does `own`, unless that is NULL. */
void move_in_thread(struct peers *p, void (*own)(struct peers *));
/* The part of a gather, or with OP_ADD a scatter-add, that no network is needed for. */
void copy_own(struct peers *p);
void add_own(struct peers *p);
/* Writes each rank's number into its floats, so that a loop that moves nothing is noticed. */
void mark(struct peers *p);
/* Checks a round; messages, which arrive anywhere in the receive buffer, are only counted, and sums are not checked. */
void verify(const struct peers *p);
/* Ends the process unless called again in time: operations to a peer that is gone never complete, and block later ones. */
void allow_round(void);
double now(void); /* seconds; ranks share the machine's clock */

#endif
