/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule.h"

#include "gpu.h"

#include <stdio.h>

enum { FEW = 5000, LARGE = 100000, MANY_MIB = 2000000 };

static int one_in(schedule *plan, uint64_t n) { return random_below(&plan->random, n) == 0; }

static int is_huge(const planned_shard *shard) { return shard->numel > LARGE; }

static uint64_t draw_numel(schedule *plan) {
    const uint64_t smaller = slowdown() > 1 ? 5 : 1;
    if (one_in(plan, 40)) { /* many MiB; comparing more than one at once takes too long */
        return LARGE + 1 + random_below(&plan->random, MANY_MIB / smaller / smaller);
    }
    switch (random_below(&plan->random, 4)) {
        case 0: return random_below(&plan->random, 4);
        case 1: return 1 + random_below(&plan->random, 100);
        case 2: return 1 + random_below(&plan->random, FEW);
        default: return 1 + random_below(&plan->random, LARGE / smaller);
    }
}

static void draw_ranks(schedule *plan, planned_shard *shard) {
    shard->listed = one_in(plan, 2);
    shard->rank_count = shard->listed ? 1 + random_below(&plan->random, (uint64_t)plan->size) : (uint64_t)plan->size;
    for (int i = 0; i < plan->size; ++i) {
        shard->ranks[i] = i;
    }
    for (int i = 0; shard->listed && i < plan->size; ++i) {
        int other = (int)random_below(&plan->random, (uint64_t)plan->size);
        int32_t kept = shard->ranks[i];
        shard->ranks[i] = shard->ranks[other];
        shard->ranks[other] = kept;
    }
}

static void draw_slices(schedule *plan, planned_shard *shard) {
    uint64_t left = shard->numel;
    shard->given = one_in(plan, 2);
    for (uint64_t i = 0; i < shard->rank_count; ++i) {
        uint64_t slice = i + 1 == shard->rank_count ? left : random_below(&plan->random, left + 1);
        if (i + 1 < shard->rank_count && one_in(plan, 4)) {
            slice = 0;
        }
        shard->slices[i] = slice;
        left -= slice;
    }
}

static void draw_types(schedule *plan, planned_shard *shard) {
    static const int gradient_types[5] = {0, ODC_F32, ODC_F64, ODC_BF16, ODC_F16};
    do {
        shard->parameter_type = (int)random_below(&plan->random, 6);
        shard->gradient_type = gradient_types[random_below(&plan->random, 5)];
    } while (shard->parameter_type == 0 && shard->gradient_type == 0);
    shard->memory = tests_gpu() ? ODC_GPU_MEMORY : ODC_HOST_MEMORY;
    if (tests_mixed_memory() && one_in(plan, 2)) {
        shard->memory = ODC_HOST_MEMORY;
    }
    const int may_be_exact = shard->gradient_type != 0 && shard->gradient_type != ODC_F64 && !is_huge(shard);
    shard->sum = may_be_exact && one_in(plan, 2) ? ODC_SUM_EXACT : 0;
}

static void draw_shard(schedule *plan, planned_shard *shard) {
    memset(shard, 0, sizeof *shard);
    snprintf(shard->name, sizeof shard->name, "shard.%d", (int)(shard - plan->shards));
    shard->alive = 1;
    shard->fresh = 1;
    shard->group = (int)random_below(&plan->random, GROUPS);
    shard->numel = draw_numel(plan);
    draw_types(plan, shard);
    draw_ranks(plan, shard);
    draw_slices(plan, shard);
}

/* A released name is used again with another shape. */
static void change_shards(schedule *plan) {
    for (int i = 0; i < MAX_SHARDS; ++i) {
        planned_shard *shard = &plan->shards[i];
        const int may_come = !shard->alive && !shard->released;
        shard->fresh = 0;
        shard->released = 0;
        if (shard->alive && one_in(plan, is_huge(shard) ? 2 : 8)) {
            shard->alive = 0;
            shard->released = 1;
        } else if (!shard->alive && may_come && one_in(plan, 3)) {
            draw_shard(plan, shard);
        }
    }
}

static void draw_additions(schedule *plan) {
    for (int i = 0; i < MAX_SHARDS; ++i) {
        planned_shard *shard = &plan->shards[i];
        const int quiet = shard->gradient_type == 0 || one_in(plan, 4);
        for (uint64_t k = 0; k < shard->rank_count; ++k) {
            int rank = shard->ranks[k];
            uint64_t count = random_below(&plan->random, is_huge(shard) ? 2 : MOST_ADDS + 1);
            shard->add_count[rank] = 0;
            for (uint64_t j = 0; !quiet && !plan->idle[rank] && j < count; ++j) {
                shard->adds[rank][shard->add_count[rank]++] = next_random(&plan->random) >> 20;
            }
        }
    }
}

/* Chooses from the first group, which all ranks have published before any claims. */
static void choose_item_shard(schedule *plan) {
    plan->item_shard = -1;
    for (int i = 0; i < MAX_SHARDS; ++i) {
        const planned_shard *shard = &plan->shards[i];
        if (shard->alive && shard->sum == ODC_SUM_EXACT && shard->group == 0 && shard->numel <= FEW &&
            shard->rank_count == (uint64_t)plan->size) {
            plan->item_shard = i;
        }
    }
}

void begin_schedule(schedule *plan, uint64_t seed, int size) {
    memset(plan, 0, sizeof *plan);
    plan->random = seed;
    plan->size = size;
    plan->minibatch = -1;
}

void draw_minibatch(schedule *plan) {
    ++plan->minibatch;
    for (int rank = 0; rank < plan->size; ++rank) {
        plan->idle[rank] = one_in(plan, 8);
    }
    change_shards(plan);
    draw_additions(plan);
    plan->reductions = (int)random_below(&plan->random, MOST_REDUCTIONS + 1);
    plan->reduced_values = 1 + (int)random_below(&plan->random, MOST_VALUES);
    plan->reduced_by = one_in(plan, 2) ? ODC_SUM : ODC_MAX;
    plan->sync_values = one_in(plan, 3) ? 0 : 1 + (int)random_below(&plan->random, MOST_VALUES);
    plan->sync_by = one_in(plan, 2) ? ODC_SUM : ODC_MAX;
    plan->items = random_below(&plan->random, MOST_ITEMS + 1);
    choose_item_shard(plan);
}

int lists_rank(const planned_shard *shard, int rank) {
    for (uint64_t i = 0; i < shard->rank_count; ++i) {
        if (shard->ranks[i] == rank) {
            return 1;
        }
    }
    return 0;
}

odc_shard_desc describe_planned(const planned_shard *shard) {
    odc_shard_desc desc = describe(shard->name, shard->numel, shard->parameter_type, shard->gradient_type);
    desc.memory = shard->memory;
    desc.sum = shard->sum;
    if (shard->listed) {
        desc.ranks = shard->ranks;
        desc.rank_count = shard->rank_count;
    }
    if (shard->given) {
        desc.slices = shard->slices;
    }
    return desc;
}

uint64_t parameter_salt(const schedule *plan, const planned_shard *shard) {
    return (uint64_t)(plan->minibatch * 100 + (int)(shard - plan->shards));
}

size_t added_salts(const planned_shard *shard, uint64_t salts[MAX_SIZE * MOST_ADDS]) {
    size_t count = 0;
    for (uint64_t k = 0; k < shard->rank_count; ++k) {
        int rank = shard->ranks[k];
        memcpy(&salts[count], shard->adds[rank], (size_t)shard->add_count[rank] * sizeof *salts);
        count += (size_t)shard->add_count[rank];
    }
    return count;
}

uint64_t item_salt(const schedule *plan, uint64_t item) {
    return ((uint64_t)(plan->minibatch + 1) * MOST_ITEMS + item) * 7919;
}

double reduced_value(const schedule *plan, int rank, int index) {
    return small_value((uint64_t)(plan->minibatch * MAX_SIZE + rank), (uint64_t)index);
}

double combined_value(const schedule *plan, int by, int index) {
    double combined = reduced_value(plan, 0, index);
    for (int rank = 1; rank < plan->size; ++rank) {
        double other = reduced_value(plan, rank, index);
        combined = by == ODC_SUM ? combined + other : other > combined ? other : combined;
    }
    return combined;
}
