/* SPDX-License-Identifier: Apache-2.0 */
#include "random_job.h"

#include "gpu.h"
#include "illegal_calls.h"

#include <stdio.h>
#include <unistd.h>

enum { MOST_CALLS_OF_VICTIM = 400, LONGEST_DELAY_US = 2000 };

static void count(_Atomic uint64_t *counter, uint64_t by) {
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

void draw_scene(scene *what, const faults *with, uint64_t seed, int size) {
    uint64_t random = seed * 977;
    what->faults = *with;
    what->seed = seed;
    what->victim = with->kills ? (int)random_below(&random, (uint64_t)size) : -1;
    what->victim_calls = random_below(&random, MOST_CALLS_OF_VICTIM);
    what->victim_us = (int)random_below(&random, LONGEST_DELAY_US);
    set_flag(&what->joined, 0);
    memset(what->given, 0, sizeof what->given);
    for (int rank = 0; rank < MAX_SIZE; ++rank) {
        set_flag(&what->ranks[rank].minibatch, 0);
    }
}

/* ---- Calls ---- */

/* After about so many calls, while it is busy. */
static void die_in_time(world *w) {
    if (w->rank == w->scene->victim && w->calls++ == w->scene->victim_calls) {
        be_killed_after(w->scene->victim_us);
    }
}

int is_to_be_made_again(world *w, odc_status status) {
    count(&w->tally->calls, 1);
    die_in_time(w);
    if (status != ODC_ERROR_INTERRUPTED || !w->scene->faults.interruptions) {
        return 0;
    }
    count(&w->tally->interruptions, 1);
    return 1;
}

/* A started operation ends with the same error, unless sync completed it before it waited for the dead rank. One that was
 * waited for has already ended with it. */
static void end_started(world *w, const char *text) {
    for (int i = 0; i < w->hands[0].started_count; ++i) {
        const started_operation *one = &w->hands[0].started[i];
        if (one->operation != w->hands[0].awaited) {
            odc_status status = odc_wait(w->context, one->operation);
            if (status != ODC_OK) {
                CHECK_KEPT(status, ODC_ERROR_PEER_LOST, text);
            }
        }
        free_buffer(one->t, one->buffer);
    }
}

/* Every later call returns the same error, and the slices stay. It ends the process: its buffers may be in any state. */
static void survive(world *w) {
    char victim[32];
    char text[2048];
    odc_shard *handle = NULL;
    odc_shard_desc desc = describe("after a death", 1, ODC_F32, ODC_F32);
    snprintf(victim, sizeof victim, "rank %d (", w->scene->victim);
    snprintf(text, sizeof text, "%s", odc_last_error());
    CHECK_SENTENCE(text, victim, "died|is lost");
    CHECK_KEPT(odc_register_shard(w->context, &desc, &handle), ODC_ERROR_PEER_LOST, text);
    end_started(w, text);
    for (int i = 0; i < MAX_SHARDS; ++i) {
        if (w->own[i].registered) {
            CHECK_EQUAL(slice_of(w->own[i].t).numel, w->own[i].numel);
        }
    }
    odc_destroy(w->context);
    end_faults();
    count(&w->tally->signals, signals_handled());
    count(&w->tally->survivors, 1);
    _exit(0);
}

void check_call(world *w, odc_status status, odc_status wanted, const char *call, const char *file, int line) {
    if (status == ODC_ERROR_PEER_LOST && w->scene->victim >= 0 && w->scene->victim != w->rank) {
        survive(w);
    }
    check_status(status, wanted, call, file, line);
}

static void pause_sometimes(uint64_t *random) {
    if (random_below(random, 12) == 0) {
        sleep_us((int)random_below(random, 2000));
    }
}

/* ---- Shards ---- */

static void register_some(world *w, const int *which, size_t n, odc_shard **handles) {
    odc_shard_desc descs[MAX_SHARDS];
    for (size_t i = 0; i < n; ++i) {
        descs[i] = describe_planned(&w->plan.shards[which[i]]);
    }
    if (n > 1) {
        CALL(w, odc_register_shards(w->context, descs, n, handles));
    } else {
        CALL(w, odc_register_shard(w->context, descs, handles));
    }
}

/* New shards in an order of this rank's own, in one call or several. */
static void register_new(world *w) {
    odc_shard *handles[MAX_SHARDS];
    int which[MAX_SHARDS];
    size_t n = 0;
    int first = (int)random_below(&w->local, MAX_SHARDS);
    for (int i = 0; i < MAX_SHARDS; ++i) {
        int index = (first + i) % MAX_SHARDS;
        if (w->plan.shards[index].fresh && lists_rank(&w->plan.shards[index], w->rank)) {
            which[n++] = index;
        }
    }
    for (size_t done = 0; done < n;) {
        size_t together = random_below(&w->local, 2) == 0 ? n - done : 1;
        register_some(w, &which[done], together, &handles[done]);
        done += together;
    }
    for (size_t i = 0; i < n; ++i) {
        const planned_shard *shard = &w->plan.shards[which[i]];
        own_shard *own = &w->own[which[i]];
        own->handle = handles[i];
        own->t =
            (tensor){handles[i], shard->numel, shard->parameter_type, shard->gradient_type, shard->memory, shard->sum};
        if (shard->sum == ODC_SUM_EXACT) {
            odc_shard_desc desc = describe_planned(shard);
            own->model = new_exact_model(&desc);
        }
        own->numel = slice_of(own->t).numel;
        own->registered = 1;
    }
}

static void change_own_shards(world *w) {
    for (int i = 0; i < MAX_SHARDS; ++i) {
        own_shard *own = &w->own[i];
        own->opened = 0;
        own->released = 0;
        if (w->plan.shards[i].released && own->registered) {
            CALL(w, odc_release_shard(own->handle));
            own->registered = 0;
            own->released = 1;
            free_exact_model(own->model);
            own->model = NULL;
        }
    }
    register_new(w);
}

/* ---- Gathers and additions ---- */

static void count_if_ahead(world *w) {
    for (int rank = 0; rank < w->plan.size; ++rank) {
        if (read_flag(&w->scene->ranks[rank].minibatch) < w->plan.minibatch) {
            count(&w->tally->ahead, 1);
            return;
        }
    }
}

static void end_operation(world *w, const started_operation *one) {
    if (one->is_gather) {
        check_buffer(one->t, one->buffer, one->salt);
        count(&w->tally->elements, one->t.numel);
    }
    free_buffer(one->t, one->buffer);
    count_if_ahead(w);
}

static odc_status operate(const started_operation *one) {
    if (one->is_gather) {
        return odc_gather(one->t.shard, one->buffer, one->t.numel, one->stream);
    }
    return odc_scatter_add(one->t.shard, one->buffer, one->t.numel, one->stream);
}

static odc_status start_operation(started_operation *one) {
    if (one->is_gather) {
        return odc_gather_start(one->t.shard, one->buffer, one->t.numel, one->stream, &one->operation);
    }
    return odc_scatter_add_start(one->t.shard, one->buffer, one->t.numel, one->stream, &one->operation);
}

/* A gather or an addition, at once or started and waited for. */
static void use_shard(hand *by, tensor t, int is_gather, uint64_t salt) {
    world *w = by->world;
    started_operation one = {
        0, t, new_buffer(t, is_gather ? t.parameter_type : t.gradient_type), salt, some_stream(t), is_gather};
    if (!is_gather) {
        write_gradients(t, one.buffer, salt);
    }
    pause_sometimes(&by->random);
    if (by->started_count < MAX_STARTED && random_below(&by->random, 2) == 0) {
        CALL(w, start_operation(&one));
        by->started[by->started_count++] = one;
        return;
    }
    CALL(w, operate(&one));
    if (is_gather) {
        await_stream(t, one.stream);
    } else {
        spoil_gradients(t, one.buffer, one.stream);
    }
    end_operation(w, &one);
}

/* In any order; sync completes the rest. */
static void wait_for_some(hand *by) {
    world *w = by->world;
    while (by->started_count > 0 && random_below(&by->random, 6) != 0) {
        started_operation *one = &by->started[random_below(&by->random, (uint64_t)by->started_count)];
        by->awaited = one->operation;
        CALL(w, odc_wait(w->context, one->operation));
        by->awaited = 0;
        if (random_below(&by->random, 8) == 0) {
            CALL_GIVES(w, ODC_ERROR_ARGUMENT, odc_wait(w->context, one->operation));
            count(&w->tally->refusals, 1);
        }
        await_stream(one->t, one->stream);
        end_operation(w, one);
        *one = by->started[--by->started_count];
    }
}

static void add_item(hand *by, uint64_t item) {
    world *w = by->world;
    if (w->plan.item_shard >= 0) {
        const tensor t = w->own[w->plan.item_shard].t;
        use_shard(by, t, 0, item_salt(&w->plan, item));
        count(&w->tally->exact, t.numel);
        count(&w->tally->item_additions, 1);
    }
}

/* Each item is handed out once, whoever asks. */
static void claim_some(hand *by) {
    world *w = by->world;
    const uint64_t items = w->plan.items;
    for (uint64_t left = random_below(&by->random, 2 * MOST_ITEMS); left > 0 && !by->saw_the_end; --left) {
        uint64_t item = UINT64_MAX;
        odc_status status;
        do {
            status = odc_claim(w->context, items, &item);
        } while (is_to_be_made_again(w, status));
        by->saw_the_end = status == ODC_DONE;
        check_call(w, status, by->saw_the_end ? ODC_DONE : ODC_OK, "odc_claim", __FILE__, __LINE__);
        CHECK(by->saw_the_end ? item == items : item < items);
        if (!by->saw_the_end) {
            const int minibatch = w->plan.minibatch + 1;
            CHECK(atomic_exchange(&w->scene->given[minibatch % PARITIES][item], minibatch) != minibatch);
            ++by->claimed;
            add_item(by, item);
        }
    }
}

/* After a sync, and before this rank lets the others into the minibatch after the next: if somebody saw the end, no item was
 * left out, unless a rank died with it. */
static void check_claims(world *w) {
    uint64_t mine[MOST_ITEMS];
    const int minibatch = w->plan.minibatch + 1;
    size_t count_mine = 0;
    int claimed = 0;
    int saw_the_end = 0;
    for (int i = 0; i < HANDS; ++i) {
        claimed += w->hands[i].claimed;
        saw_the_end |= w->hands[i].saw_the_end;
        w->hands[i].claimed = w->hands[i].saw_the_end = 0;
    }
    for (uint64_t item = 0; saw_the_end && w->scene->victim < 0 && item < w->plan.items; ++item) {
        CHECK_EQUAL(atomic_load(&w->scene->given[minibatch % PARITIES][item]), minibatch);
    }
    CALL(w, odc_get_claims(w->context, odc_minibatch(w->context) - 1, mine, MOST_ITEMS, &count_mine));
    CHECK_EQUAL(count_mine, claimed);
    count(&w->tally->claims, (uint64_t)claimed);
}

/* This thread's gathers, and every `HANDS`-th of the planned additions if there are two threads. */
static void use_group(hand *by, int group, int hands) {
    world *w = by->world;
    int number = (int)(by - w->hands);
    int first = (int)random_below(&by->random, MAX_SHARDS);
    for (int i = 0; i < MAX_SHARDS; ++i) {
        int index = (first + i) % MAX_SHARDS;
        const planned_shard *shard = &w->plan.shards[index];
        if (!w->own[index].registered || shard->group != group || w->plan.idle[w->rank]) {
            continue;
        }
        uint64_t gathers = shard->parameter_type != 0 ? random_below(&by->random, 3) : 0;
        for (; gathers > 0; --gathers) {
            use_shard(by, w->own[index].t, 1, parameter_salt(&w->plan, shard));
        }
        for (int k = number; k < shard->add_count[w->rank]; k += hands) {
            use_shard(by, w->own[index].t, 0, shard->adds[w->rank][k]);
            count(&w->tally->exact, shard->sum == ODC_SUM_EXACT ? shard->numel : 0);
        }
    }
    claim_some(by);
    wait_for_some(by);
}

typedef struct second_hand {
    hand *self;
    int group;
} second_hand;

static void *use_group_too(void *arg) {
    const second_hand *second = arg;
    allow_interruptions(next_random(&second->self->random));
    use_group(second->self, second->group, HANDS);
    return NULL;
}

/* Whether a rank uses two threads: a survivor of a death continues alone, and a GPU is current in one thread only. */
static int may_have_two_hands(const world *w) { return w->scene->victim < 0 && !tests_gpu(); }

static void use_with_hands(world *w, int group) {
    pthread_t thread;
    second_hand second = {&w->hands[1], group};
    if (!may_have_two_hands(w) || random_below(&w->local, 4) != 0) {
        use_group(&w->hands[0], group, 1);
        return;
    }
    CHECK(pthread_create(&thread, NULL, use_group_too, &second) == 0);
    use_group(&w->hands[0], group, HANDS);
    join_thread(thread);
}

/* ---- A minibatch ---- */

static int all_others_are_open(const world *w, int index) {
    for (int i = 0; i < MAX_SHARDS; ++i) {
        if (i != index && w->own[i].registered && !w->own[i].opened && w->own[i].numel > 0) {
            return 0;
        }
    }
    return 1;
}

/* An empty slice may be left unpublished. */
static void publish_one(world *w, int index) {
    own_shard *own = &w->own[index];
    void *stream = some_stream(own->t);
    pause_sometimes(&w->local);
    if (own->opened || (own->numel == 0 && random_below(&w->local, 2) == 0)) {
        return;
    }
    enqueue_parameters(own->t, parameter_salt(&w->plan, &w->plan.shards[index]), stream);
    own->opened = 1;
    if (!all_others_are_open(w, index)) {
        CALL(w, odc_publish(own->handle, stream));
        return;
    }
    CALL(w, odc_publish_all(w->context, stream));
    for (int i = 0; i < MAX_SHARDS; ++i) {
        w->own[i].opened = w->own[i].registered;
    }
}

/* Nothing is added to a group after it has been used, but what is claimed, so any rank may say so at once, of any of them. */
static void finish_some(world *w, int group) {
    for (int i = 0; i < MAX_SHARDS; ++i) {
        const own_shard *own = &w->own[i];
        if (!own->registered || w->plan.shards[i].group != group || own->t.gradient_type == 0 ||
            i == w->plan.item_shard || random_below(&w->local, 3) != 0) {
            continue;
        }
        CALL(w, odc_finish(own->handle, some_stream(own->t)));
        if (random_below(&w->local, 4) == 0) {
            void *full = new_buffer(own->t, own->t.gradient_type);
            CALL(w, odc_finish(own->handle, NULL));
            CALL_GIVES(w, ODC_ERROR_PHASE, odc_scatter_add(own->handle, full, own->t.numel, NULL));
            count(&w->tally->refusals, 1);
            free_buffer(own->t, full);
        }
    }
}

/* All ranks publish and use the groups in the same order, otherwise they could wait for one another. */
static void publish_and_use(world *w, int group) {
    int first = (int)random_below(&w->local, MAX_SHARDS);
    for (int i = 0; i < MAX_SHARDS; ++i) {
        int index = (first + i) % MAX_SHARDS;
        if (w->own[index].registered && w->plan.shards[index].group == group) {
            publish_one(w, index);
        }
    }
    make_illegal_calls(w);
    use_with_hands(w, group);
    finish_some(w, group);
}

/* An interruption does not change the values. */
static odc_status reduce_values(world *w, int in_sync, double *values, int n, int by) {
    odc_status status = !in_sync ? odc_all_reduce(w->context, values, (size_t)n, by)
                        : n == 0 ? odc_minibatch_sync(w->context)
                                 : odc_minibatch_sync_reduce(w->context, values, (size_t)n, by);
    for (int i = 0; status != ODC_OK && i < n; ++i) {
        CHECK(values[i] == reduced_value(&w->plan, w->rank, i));
    }
    return status;
}

static void reduce_and_check(world *w, int in_sync, int n, int by) {
    double values[MOST_VALUES];
    for (int i = 0; i < n; ++i) {
        values[i] = reduced_value(&w->plan, w->rank, i);
    }
    CALL(w, reduce_values(w, in_sync, values, n, by));
    for (int i = 0; i < n; ++i) {
        CHECK(values[i] == combined_value(&w->plan, by, i));
    }
    count(&w->tally->elements, (uint64_t)n);
}

/* The salts of the gradients that were added to a shard in this minibatch. */
static size_t all_salts(const world *w, int index, uint64_t salts[MAX_SIZE * MOST_ADDS + MOST_ITEMS]) {
    const int minibatch = w->plan.minibatch + 1;
    size_t n = added_salts(&w->plan.shards[index], salts);
    for (uint64_t item = 0; index == w->plan.item_shard && item < w->plan.items; ++item) {
        if (atomic_load(&w->scene->given[minibatch % PARITIES][item]) == minibatch) {
            salts[n++] = item_salt(&w->plan, item);
        }
    }
    return n;
}

static void check_own_sums(const own_shard *own, const uint64_t *salts, size_t n) {
    if (own->model == NULL) {
        check_sums(own->t, salts, n);
        return;
    }
    add_exactly(own->model, salts, n);
    check_exact_sums(own->t, own->model);
}

static void sync_and_check(world *w) {
    pause_sometimes(&w->local);
    reduce_and_check(w, 1, w->plan.sync_values, w->plan.sync_by);
    set_flag(&w->tally->minibatch, w->plan.minibatch + 1);
    check_claims(w);
    for (int i = 0; i < HANDS; ++i) {
        for (int k = 0; k < w->hands[i].started_count; ++k) {
            end_operation(w, &w->hands[i].started[k]);
        }
        w->hands[i].started_count = 0;
    }
    for (int i = 0; i < MAX_SHARDS; ++i) {
        uint64_t salts[MAX_SIZE * MOST_ADDS + MOST_ITEMS];
        if (w->own[i].registered && w->plan.shards[i].gradient_type != 0) {
            check_own_sums(&w->own[i], salts, all_salts(w, i, salts));
            count(&w->tally->elements, w->own[i].numel);
        }
    }
    if (random_below(&w->local, 4) == 0) { /* lets the others begin the next minibatch first */
        sleep_us((int)random_below(&w->local, 5000));
    }
}

static void live_through_minibatch(world *w) {
    draw_minibatch(&w->plan);
    for (int i = 0; i < w->plan.reductions; ++i) {
        reduce_and_check(w, 0, w->plan.reduced_values, w->plan.reduced_by);
    }
    change_own_shards(w);
    make_illegal_calls(w);
    for (int group = 0; group < GROUPS; ++group) {
        publish_and_use(w, group);
    }
    make_illegal_calls(w);
    sync_and_check(w);
    if (tests_gpu()) {
        gpu_collect();
    }
}

/* ---- A job ---- */

static world *new_world(odc_context *context, scene *what) {
    world *w = calloc(1, sizeof *w);
    CHECK(w != NULL);
    w->context = context;
    w->scene = what;
    w->rank = odc_rank(context);
    w->tally = &what->ranks[w->rank];
    w->local = what->seed * 31 + (uint64_t)w->rank + 1;
    begin_schedule(&w->plan, what->seed, odc_size(context));
    for (int i = 0; i < HANDS; ++i) {
        w->hands[i].world = w;
        w->hands[i].random = next_random(&w->local);
    }
    return w;
}

void live_randomly(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    begin_faults(&what->faults, &config, &what->ranks[rank].asks);
    CHECK_OK(odc_init(&config, &context));
    world *w = new_world(context, what);
    allow_interruptions(next_random(&w->local));
    raise_flag(&what->joined);
    if (rank == what->victim) {
        await_flag(&what->joined, size);
    }
    while (what->victim >= 0 || w->plan.minibatch + 1 < MINIBATCHES) { /* until the victim is dead */
        live_through_minibatch(w);
    }
    end_faults();
    odc_destroy(context);
    count(&w->tally->signals, signals_handled());
    for (int i = 0; i < MAX_SHARDS; ++i) {
        free_exact_model(w->own[i].model);
    }
    free(w);
}
