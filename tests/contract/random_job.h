/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a random job: it follows the schedule, repeats interrupted calls, and compares every element that it can read
 * with the model. */
#ifndef ODC_TESTS_RANDOM_JOB_H
#define ODC_TESTS_RANDOM_JOB_H

#include "exact_model.h"
#include "faults.h"
#include "schedule.h"

enum { MAX_STARTED = 64, MINIBATCHES = 25, HANDS = 2, PARITIES = 2 };

/* A rank's counters, in memory shared with the test. */
typedef struct tally {
    _Atomic uint64_t calls;
    _Atomic uint64_t elements; /* compared with the model */
    _Atomic uint64_t asks;     /* calls of `interrupted` */
    _Atomic uint64_t interruptions;
    _Atomic uint64_t claims;         /* items */
    _Atomic uint64_t exact;          /* elements added to exact sums */
    _Atomic uint64_t item_additions; /* of claimed items to exact sums */
    _Atomic uint64_t refusals;       /* illegal calls that failed */
    _Atomic uint64_t signals;
    _Atomic uint64_t ahead;     /* operations done while another rank was still in the previous minibatch */
    _Atomic uint64_t survivors; /* 1: the rank has read that the victim died */
    atomic_int minibatch;
} __attribute__((aligned(64))) tally;

typedef struct scene {
    faults faults;
    uint64_t seed;
    int victim;            /* the rank to kill; -1: none */
    uint64_t victim_calls; /* it dies after so many calls, within victim_us */
    int victim_us;
    atomic_int joined;
    atomic_int given[PARITIES][MOST_ITEMS]; /* the last minibatch, counted from 1, in which the item was claimed */
    tally ranks[MAX_SIZE];
} scene;

void draw_scene(scene *what, const faults *with, uint64_t seed, int size);
/* A rank_fn; arg is the scene. */
void live_randomly(int rank, int size, const char *job, void *arg);

/* ---- Used by faults and illegal calls ---- */

typedef struct own_shard {
    odc_shard *handle;
    tensor t;
    exact_model *model; /* of exact sums; NULL: others */
    uint64_t numel;     /* of this rank's slice */
    int registered;
    int opened;   /* published in this minibatch */
    int released; /* in this minibatch; the handle is that of a released shard */
} own_shard;

typedef struct started_operation {
    uint64_t operation;
    tensor t;
    void *buffer;
    uint64_t salt; /* of a gather */
    void *stream;
    int is_gather;
} started_operation;

/* Gathers and adds: a rank has one, and sometimes a second in another thread. */
typedef struct hand {
    struct world *world;
    uint64_t random;
    started_operation started[MAX_STARTED];
    int started_count;
    uint64_t awaited; /* the operation in odc_wait; 0: none */
    int claimed;      /* items of this minibatch */
    int saw_the_end;  /* of the minibatch's items */
} hand;

typedef struct world {
    odc_context *context;
    scene *scene;
    tally *tally;
    int rank;
    uint64_t calls; /* made by the victim */
    uint64_t local; /* random numbers of this rank alone: delays, orders, which operations are started */
    schedule plan;
    own_shard own[MAX_SHARDS];
    hand hands[HANDS];
} world;

/* Makes the call, repeats it when it is interrupted, until it returns `wanted`. In a job whose victim has died it does not
 * return once the call reports that. */
#define CALL_GIVES(w, wanted, call)                                       \
    do {                                                                  \
        odc_status status_of_call;                                        \
        do {                                                              \
            status_of_call = (call);                                      \
        } while (is_to_be_made_again(w, status_of_call));                 \
        check_call(w, status_of_call, wanted, #call, __FILE__, __LINE__); \
    } while (0)
#define CALL(w, call) CALL_GIVES(w, ODC_OK, call)

int is_to_be_made_again(world *w, odc_status status);
void check_call(world *w, odc_status status, odc_status wanted, const char *call, const char *file, int line);

#endif
