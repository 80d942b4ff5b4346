/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of a random job: every rank draws the same from one seed, so each knows what all others add and publish. */
#ifndef ODC_TESTS_SCHEDULE_H
#define ODC_TESTS_SCHEDULE_H

#include "model.h"

enum {
    MAX_SHARDS = 16,
    MAX_SIZE = 8,
    GROUPS = 3,
    MOST_ADDS = 4,
    MOST_REDUCTIONS = 2,
    MOST_VALUES = 64,
    MOST_ITEMS = 60
};

typedef struct planned_shard {
    char name[32];
    int alive;    /* registered, or to be registered in this minibatch */
    int fresh;    /* from this minibatch on */
    int released; /* in this minibatch: the name may be used again in the next */
    int parameter_type;
    int gradient_type;
    int memory;
    int sum; /* odc_summation */
    uint64_t numel;
    int group;  /* published and used after the groups before it */
    int listed; /* 0: all ranks in order */
    int given;  /* 0: equal slices */
    uint64_t rank_count;
    int32_t ranks[MAX_SIZE];
    uint64_t slices[MAX_SIZE];
    uint64_t adds[MAX_SIZE][MOST_ADDS]; /* salts of this minibatch, by rank */
    int add_count[MAX_SIZE];
} planned_shard;

typedef struct schedule {
    uint64_t random;
    int size; /* ranks */
    int minibatch;
    planned_shard shards[MAX_SHARDS];
    int idle[MAX_SIZE]; /* without a microbatch in this minibatch */
    int reductions;     /* odc_all_reduce calls before anything is published */
    int reduced_values;
    int reduced_by;  /* odc_reduction */
    int sync_values; /* reduced by the sync */
    int sync_by;
    uint64_t items; /* to be claimed */
    int item_shard; /* exact sums of all ranks, to which whoever claims an item adds its gradient; -1: none */
} schedule;

void begin_schedule(schedule *plan, uint64_t seed, int size);
/* Draws the next minibatch: what is released, registered, added and reduced in it. */
void draw_minibatch(schedule *plan);

int lists_rank(const planned_shard *shard, int rank);
odc_shard_desc describe_planned(const planned_shard *shard);
/* The parameters that the owners publish in this minibatch. */
uint64_t parameter_salt(const schedule *plan, const planned_shard *shard);
/* The sum of all additions of this minibatch; returns how many there are. */
size_t added_salts(const planned_shard *shard, uint64_t salts[MAX_SIZE * MOST_ADDS]);

/* The salt of an item's gradient. */
uint64_t item_salt(const schedule *plan, uint64_t item);

/* Value `index` that a rank passes, and the result for all ranks: small integers, so that it is exact. */
double reduced_value(const schedule *plan, int rank, int index);
double combined_value(const schedule *plan, int by, int index);

#endif
