/* SPDX-License-Identifier: Apache-2.0 */
/* Random jobs (shards, halves, types, slices, subsets, counts, delays, releases, started operations) against a model
 * that each rank computes for itself: all ranks draw the same plan from one seed, so each knows what all others do. */
#include "gpu.h"
#include "model.h"

#include <stdio.h>

enum { MAX_SHARDS = 12, MAX_SIZE = 8, DRAWN_SIZES = 5, MAX_STARTED = 64, MINIBATCHES = 25 };

typedef struct planned_shard {
    int alive; /* 0: not registered now */
    int generation;
    int parameter_type;
    int gradient_type;
    int memory;
    uint64_t numel;
    int late;   /* published after the others are in use */
    int listed; /* 0: all ranks in order */
    int given;  /* 0: equal slices */
    uint64_t rank_count;
    int32_t ranks[MAX_SIZE];
    uint64_t slices[MAX_SIZE];
    uint64_t adds[MAX_SIZE][8]; /* salts of this minibatch, by rank */
    int add_count[MAX_SIZE];
    tensor t;
    int released_at; /* its name may be used again after this minibatch */
} planned_shard;

typedef struct started_operation {
    uint64_t operation;
    planned_shard *shard;
    void *buffer;
    uint64_t salt; /* of a gather; of an addition it is 0 */
    void *stream;
    int is_gather;
} started_operation;

typedef struct world {
    odc_context *context;
    int rank;
    int size;
    uint64_t plan;  /* random numbers that all ranks draw alike */
    uint64_t local; /* and this rank alone: delays, order, which half is started */
    int minibatch;
    planned_shard shards[MAX_SHARDS];
    started_operation started[MAX_STARTED];
    int started_count;
} world;

static int is_mine(const world *w, const planned_shard *shard) {
    for (uint64_t i = 0; i < shard->rank_count; ++i) {
        if (shard->ranks[i] == w->rank) {
            return 1;
        }
    }
    return 0;
}

static uint64_t random_numel(uint64_t *state) {
    switch (random_below(state, 4)) {
        case 0: return random_below(state, 4);
        case 1: return 1 + random_below(state, 100);
        case 2: return 1 + random_below(state, 5000);
        default: return 1 + random_below(state, slowdown() > 1 ? 20000 : 100000);
    }
}

static void draw_ranks(world *w, planned_shard *shard) {
    int32_t order[MAX_SIZE];
    for (int i = 0; i < w->size; ++i) {
        order[i] = i;
    }
    shard->listed = random_below(&w->plan, 2) == 0;
    shard->rank_count = shard->listed ? 1 + random_below(&w->plan, (uint64_t)w->size) : (uint64_t)w->size;
    for (int i = 0; shard->listed && i < w->size; ++i) {
        int other = (int)random_below(&w->plan, (uint64_t)w->size);
        int32_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    memcpy(shard->ranks, order, sizeof order);
}

static void draw_slices(world *w, planned_shard *shard) {
    uint64_t left = shard->numel;
    shard->given = random_below(&w->plan, 2) == 0;
    for (uint64_t i = 0; i < shard->rank_count; ++i) {
        uint64_t slice = i + 1 == shard->rank_count ? left : random_below(&w->plan, left + 1);
        if (i + 1 < shard->rank_count && random_below(&w->plan, 4) == 0) {
            slice = 0;
        }
        shard->slices[i] = slice;
        left -= slice;
    }
}

static void draw_shard(world *w, planned_shard *shard) {
    static const int gradient_types[5] = {0, ODC_F32, ODC_F64, ODC_BF16, ODC_F16};
    int generation = shard->generation + 1;
    int released_at = shard->released_at;
    memset(shard, 0, sizeof *shard);
    shard->alive = 1;
    shard->generation = generation;
    shard->released_at = released_at;
    shard->late = random_below(&w->plan, 2) == 0;
    shard->numel = random_numel(&w->plan);
    do {
        shard->parameter_type = (int)random_below(&w->plan, 6);
        shard->gradient_type = gradient_types[random_below(&w->plan, 5)];
    } while (shard->parameter_type == 0 && shard->gradient_type == 0);
    shard->memory = tests_gpu() ? ODC_GPU_MEMORY : ODC_HOST_MEMORY;
    if (tests_mixed_memory() && random_below(&w->plan, 2) == 0) {
        shard->memory = ODC_HOST_MEMORY;
    }
    draw_ranks(w, shard);
    draw_slices(w, shard);
}

static odc_shard_desc describe_planned(planned_shard *shard, const char *name) {
    odc_shard_desc desc = describe(name, shard->numel, shard->parameter_type, shard->gradient_type);
    desc.memory = shard->memory;
    if (shard->listed) {
        desc.ranks = shard->ranks;
        desc.rank_count = shard->rank_count;
    }
    if (shard->given) {
        desc.slices = shard->slices;
    }
    return desc;
}

static void pause_sometimes(world *w) {
    if (random_below(&w->local, 12) == 0) {
        sleep_us((int)random_below(&w->local, 2000));
    }
}

/* New shards, in an order of this rank's own, some in one call. */
static void register_new(world *w, const int *fresh, int count) {
    odc_shard_desc descs[MAX_SHARDS];
    odc_shard *handles[MAX_SHARDS];
    char names[MAX_SHARDS][32];
    int which[MAX_SHARDS];
    int mine = 0;
    int first = count > 0 ? (int)random_below(&w->local, (uint64_t)count) : 0;
    for (int i = 0; i < count; ++i) {
        planned_shard *shard = &w->shards[fresh[(first + i) % count]];
        if (is_mine(w, shard)) {
            which[mine] = fresh[(first + i) % count];
            snprintf(names[mine], sizeof names[mine], "shard.%d", which[mine]);
            descs[mine] = describe_planned(shard, names[mine]);
            ++mine;
        }
    }
    if (mine > 1 && random_below(&w->local, 2) == 0) {
        CHECK_OK(odc_register_shards(w->context, descs, (size_t)mine, handles));
    } else {
        for (int i = 0; i < mine; ++i) {
            CHECK_OK(odc_register_shard(w->context, &descs[i], &handles[i]));
        }
    }
    for (int i = 0; i < mine; ++i) {
        planned_shard *shard = &w->shards[which[i]];
        shard->t = (tensor){handles[i], shard->numel, shard->parameter_type, shard->gradient_type, shard->memory};
    }
}

static void change_shards(world *w) {
    int fresh[MAX_SHARDS];
    int count = 0;
    for (int i = 0; i < MAX_SHARDS; ++i) {
        planned_shard *shard = &w->shards[i];
        if (shard->alive && random_below(&w->plan, 8) == 0) {
            shard->alive = 0;
            shard->released_at = w->minibatch;
            if (is_mine(w, shard)) {
                CHECK_OK(odc_release_shard(shard->t.shard));
            }
        } else if (!shard->alive && random_below(&w->plan, 3) == 0 && shard->released_at < w->minibatch) {
            draw_shard(w, shard);
            fresh[count++] = i;
        }
    }
    register_new(w, fresh, count);
}

static uint64_t parameter_salt(const world *w, const planned_shard *shard) {
    return (uint64_t)(w->minibatch * 100 + (int)(shard - w->shards));
}

/* Who adds what in this minibatch. */
static void draw_additions(world *w) {
    for (int i = 0; i < MAX_SHARDS; ++i) {
        planned_shard *shard = &w->shards[i];
        int quiet = random_below(&w->plan, 4) == 0;
        for (uint64_t k = 0; k < shard->rank_count; ++k) {
            int rank = shard->ranks[k];
            uint64_t count = random_below(&w->plan, 5);
            shard->add_count[rank] = 0;
            for (uint64_t j = 0; shard->gradient_type != 0 && !quiet && j < count; ++j) {
                shard->adds[rank][shard->add_count[rank]++] = next_random(&w->plan) >> 20;
            }
        }
    }
}

static void keep_started(world *w, started_operation started) {
    CHECK(w->started_count < MAX_STARTED);
    w->started[w->started_count++] = started;
}

static void gather_somehow(world *w, planned_shard *shard) {
    uint64_t salt = parameter_salt(w, shard);
    if (random_below(&w->local, 2) == 0 || w->started_count >= MAX_STARTED) {
        check_gather(shard->t, salt);
        return;
    }
    void *buffer = new_buffer(shard->t, shard->parameter_type);
    started_operation started = {0, shard, buffer, salt, some_stream(shard->t), 1};
    CHECK_OK(odc_gather_start(shard->t.shard, buffer, shard->numel, started.stream, &started.operation));
    keep_started(w, started);
}

static void add_somehow(world *w, planned_shard *shard, uint64_t salt) {
    if (random_below(&w->local, 2) == 0 || w->started_count >= MAX_STARTED) {
        add_gradients(shard->t, salt);
        return;
    }
    void *buffer = new_buffer(shard->t, shard->gradient_type);
    started_operation started = {0, shard, buffer, 0, some_stream(shard->t), 0};
    write_gradients(shard->t, buffer, salt);
    CHECK_OK(odc_scatter_add_start(shard->t.shard, buffer, shard->numel, started.stream, &started.operation));
    keep_started(w, started);
}

static void finish_started(const started_operation *started) {
    if (started->is_gather) {
        check_buffer(started->shard->t, started->buffer, started->salt);
    }
    free_buffer(started->shard->t, started->buffer);
}

static void wait_for_some(world *w) {
    while (w->started_count > 0 && random_below(&w->local, 6) != 0) { /* sync completes the rest */
        int which = (int)random_below(&w->local, (uint64_t)w->started_count);
        CHECK_OK(odc_wait(w->context, w->started[which].operation));
        await_stream(w->started[which].shard->t, w->started[which].stream);
        finish_started(&w->started[which]);
        w->started[which] = w->started[--w->started_count];
    }
}

/* Publishes the early or the late shards and then uses them; all ranks do both in this order, or they could wait for
 * one another. */
static void use_shards(world *w, int late) {
    planned_shard *order[MAX_SHARDS];
    int count = 0;
    int first = (int)random_below(&w->local, MAX_SHARDS);
    for (int i = 0; i < MAX_SHARDS; ++i) {
        planned_shard *shard = &w->shards[(first + i) % MAX_SHARDS];
        if (shard->alive && shard->late == late && is_mine(w, shard)) {
            order[count++] = shard;
        }
    }
    for (int i = 0; i < count; ++i) {
        void *stream = some_stream(order[i]->t);
        pause_sometimes(w);
        enqueue_parameters(order[i]->t, parameter_salt(w, order[i]), stream);
        if (!late || i + 1 < count) {
            CHECK_OK(odc_publish(order[i]->t.shard, stream));
        } else {
            CHECK_OK(odc_publish_all(w->context, stream)); /* what is left */
        }
    }
    for (int i = 0; i < count; ++i) {
        uint64_t gathers = order[i]->parameter_type != 0 ? random_below(&w->local, 3) : 0;
        for (; gathers > 0; --gathers) {
            gather_somehow(w, order[i]);
        }
        for (int k = 0; k < order[i]->add_count[w->rank]; ++k) {
            pause_sometimes(w);
            add_somehow(w, order[i], order[i]->adds[w->rank][k]);
        }
    }
    wait_for_some(w);
}

static void sync_somehow(world *w) {
    double values[3];
    uint64_t kind = random_below(&w->plan, 3);
    pause_sometimes(w);
    for (int i = 0; i < 3; ++i) {
        values[i] = (double)(w->rank * 10 + i + w->minibatch);
    }
    if (kind == 0) {
        CHECK_OK(odc_minibatch_sync(w->context));
    } else {
        CHECK_OK(odc_minibatch_sync_reduce(w->context, values, 3, kind == 1 ? ODC_SUM : ODC_MAX));
        for (int i = 0; i < 3; ++i) {
            double last = (w->size - 1) * 10 + i + w->minibatch;
            double sum = w->size * (w->size - 1) * 5 + w->size * (i + w->minibatch);
            CHECK(values[i] == (kind == 1 ? sum : last));
        }
    }
    for (int i = 0; i < w->started_count; ++i) {
        finish_started(&w->started[i]);
    }
    w->started_count = 0;
}

static void check_model(world *w) {
    for (int i = 0; i < MAX_SHARDS; ++i) {
        planned_shard *shard = &w->shards[i];
        uint64_t salts[MAX_SIZE * 8];
        size_t count = 0;
        if (!shard->alive || !is_mine(w, shard)) {
            continue;
        }
        for (uint64_t k = 0; k < shard->rank_count; ++k) {
            int rank = shard->ranks[k];
            memcpy(&salts[count], shard->adds[rank], (size_t)shard->add_count[rank] * sizeof *salts);
            count += (size_t)shard->add_count[rank];
        }
        check_sums(shard->t, salts, count);
    }
}

static void reduce_sometimes(world *w) {
    for (uint64_t count = random_below(&w->plan, 3); count > 0; --count) {
        double value = w->rank + 1;
        CHECK_OK(odc_all_reduce(w->context, &value, 1, ODC_SUM));
        CHECK(value == w->size * (w->size + 1) / 2);
    }
}

static void random_job(odc_context *context, void *arg) {
    uint64_t seed = *(uint64_t *)arg;
    world *w = calloc(1, sizeof *w);
    w->context = context;
    w->rank = odc_rank(context);
    w->size = odc_size(context);
    w->plan = seed;
    w->local = seed * 31 + (uint64_t)w->rank + 1;
    for (int i = 0; i < MAX_SHARDS; ++i) {
        w->shards[i].released_at = -1; /* never */
    }
    for (w->minibatch = 0; w->minibatch < MINIBATCHES; ++w->minibatch) {
        reduce_sometimes(w);
        change_shards(w);
        draw_additions(w);
        use_shards(w, 0);
        use_shards(w, 1);
        sync_somehow(w);
        check_model(w);
        if (tests_gpu()) {
            gpu_collect();
        }
    }
    free(w);
}

/* ODC_TEST_SIZE, or from 1 on, by the seed. */
static int size_of_job(uint64_t seed) {
    const char *given = getenv("ODC_TEST_SIZE");
    int size = given != NULL ? atoi(given) : 1 + (int)(seed % DRAWN_SIZES);
    CHECK(size >= 1 && size <= MAX_SIZE);
    return size;
}

static void random_jobs_equal_the_model(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    int64_t begin = now_ns();
    int64_t most_ns = (int64_t)1000000000 * (tests_gpu() ? 6 : 14); /* GPU memory has several turns */
    int jobs = 0;
    do { /* for a while; more than once only without a given seed */
        uint64_t one = getenv("ODC_TEST_SEED") != NULL ? seed : next_random(&seed) >> 16;
        int size = size_of_job(one);
        printf("job %d: ODC_TEST_SEED=%llu, %d ranks\n", jobs, (unsigned long long)one, size);
        run_ranks(size, random_job, &one);
        ++jobs;
    } while (getenv("ODC_TEST_SEED") == NULL && now_ns() - begin < most_ns);
    CHECK(jobs > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_jobs_equal_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
