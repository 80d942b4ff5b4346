/* SPDX-License-Identifier: Apache-2.0 */
#include "illegal_calls.h"

#include <stdio.h>

enum { SMALL = 5000 };

/* Each of these makes calls that are illegal in the rank's present state. */
typedef void (*illegal_fn)(world *w);

static void count_refusal(world *w, const char *call, const char *file, int line) {
    check_sentence(odc_last_error(), call, file, line, (const char *[]){NULL});
    atomic_fetch_add_explicit(&w->tally->refusals, 1, memory_order_relaxed);
}

#define REFUSED(w, status, call)                     \
    do {                                             \
        CALL_GIVES(w, status, call);                 \
        count_refusal(w, #call, __FILE__, __LINE__); \
    } while (0)

/* A random one of this rank's registered shards; NULL: there is none. */
static own_shard *some_shard(world *w) {
    int first = (int)random_below(&w->local, MAX_SHARDS);
    for (int i = 0; i < MAX_SHARDS; ++i) {
        own_shard *own = &w->own[(first + i) % MAX_SHARDS];
        if (own->registered) {
            return own;
        }
    }
    return NULL;
}

static const char *name_of(const world *w, const own_shard *own) { return w->plan.shards[own - w->own].name; }

static int has_published(const world *w) {
    for (int i = 0; i < MAX_SHARDS; ++i) {
        if (w->own[i].opened) {
            return 1;
        }
    }
    return 0;
}

static int must_publish(const world *w) {
    for (int i = 0; i < MAX_SHARDS; ++i) {
        if (w->own[i].registered && !w->own[i].opened && w->own[i].numel > 0) {
            return 1;
        }
    }
    return 0;
}

static void wrong_counts(world *w) {
    own_shard *own = some_shard(w);
    double byte = 0;
    if (own != NULL && own->t.parameter_type != 0) {
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_gather(own->handle, &byte, own->t.numel + 1, NULL));
    }
    if (own != NULL && own->t.gradient_type != 0 && own->t.numel > 0) {
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_scatter_add(own->handle, &byte, own->t.numel - 1, NULL));
    }
}

static void no_buffers(world *w) {
    own_shard *own = some_shard(w);
    uint64_t operation = 0;
    if (own == NULL || own->t.numel == 0) {
        return;
    }
    if (own->t.parameter_type != 0) {
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_gather_start(own->handle, NULL, own->t.numel, NULL, &operation));
    }
    if (own->t.gradient_type != 0) {
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_scatter_add(own->handle, NULL, own->t.numel, NULL));
    }
}

static void halves_that_a_shard_lacks(world *w) {
    own_shard *own = some_shard(w);
    double byte = 0;
    if (own != NULL && own->t.parameter_type == 0) {
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_gather(own->handle, &byte, own->t.numel, NULL));
    }
    if (own != NULL && own->t.gradient_type == 0) {
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_scatter_add(own->handle, &byte, own->t.numel, NULL));
    }
}

static void use_before_publish(world *w) {
    own_shard *own = some_shard(w);
    uint64_t operation = 0;
    if (own == NULL || own->opened || own->numel == 0 || own->t.numel > SMALL) {
        return;
    }
    if (own->t.parameter_type != 0) {
        void *buffer = new_buffer(own->t, own->t.parameter_type);
        REFUSED(w, ODC_ERROR_PHASE, odc_gather(own->handle, buffer, own->t.numel, NULL));
        free_buffer(own->t, buffer);
    }
    if (own->t.gradient_type != 0) {
        void *buffer = new_buffer(own->t, own->t.gradient_type);
        REFUSED(w, ODC_ERROR_PHASE, odc_scatter_add_start(own->handle, buffer, own->t.numel, NULL, &operation));
        REFUSED(w, ODC_ERROR_PHASE, odc_finish(own->handle, NULL));
        free_buffer(own->t, buffer);
    }
}

static void use_of_what_is_published(world *w) {
    own_shard *own = some_shard(w);
    if (own != NULL && own->opened) {
        REFUSED(w, ODC_ERROR_PHASE, odc_publish(own->handle, NULL));
        REFUSED(w, ODC_ERROR_PHASE, odc_release_shard(own->handle));
    }
}

static void a_sync_too_early(world *w) {
    double value = 1;
    if (must_publish(w)) {
        REFUSED(w, ODC_ERROR_PHASE, odc_minibatch_sync(w->context));
        REFUSED(w, ODC_ERROR_PHASE, odc_minibatch_sync_reduce(w->context, &value, 1, ODC_SUM));
    }
}

static void a_reduction_too_late(world *w) {
    double value = 1;
    if (has_published(w)) {
        REFUSED(w, ODC_ERROR_PHASE, odc_all_reduce(w->context, &value, 1, ODC_SUM));
        CHECK(value == 1);
    }
}

static void reductions_of_nothing(world *w) {
    double values[MOST_VALUES + 1] = {0};
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_all_reduce(w->context, values, 0, ODC_SUM));
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_all_reduce(w->context, values, MOST_VALUES + 1, ODC_SUM));
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_all_reduce(w->context, values, 1, 7));
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_minibatch_sync_reduce(w->context, NULL, 1, ODC_MAX));
}

static void names_in_use(world *w) {
    own_shard *own = some_shard(w);
    odc_shard *handle = NULL;
    if (own != NULL) {
        odc_shard_desc desc = describe(name_of(w, own), 7, ODC_F32, ODC_F32);
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_register_shard(w->context, &desc, &handle));
        CHECK(handle == NULL);
    }
}

static void released_shards(world *w) {
    odc_shard *handle = NULL;
    for (int i = 0; i < MAX_SHARDS; ++i) {
        own_shard *own = &w->own[i];
        if (own->released) {
            odc_shard_desc desc = describe(name_of(w, own), 7, ODC_F32, ODC_F32);
            REFUSED(w, ODC_ERROR_PHASE, odc_register_shard(w->context, &desc, &handle));
            REFUSED(w, ODC_ERROR_PHASE, odc_publish(own->handle, NULL));
            REFUSED(w, ODC_ERROR_PHASE, odc_finish(own->handle, NULL));
            REFUSED(w, ODC_ERROR_PHASE, odc_release_shard(own->handle));
            return;
        }
    }
}

static void wrong_descriptions(world *w) {
    odc_shard_desc desc = describe("wrong", 10, ODC_F32, ODC_F32);
    odc_shard *handle = NULL;
    int32_t ranks[3] = {w->rank, w->plan.size, w->rank};
    uint64_t slices[1] = {9};
    desc.ranks = ranks;
    desc.rank_count = 2; /* one of them is not in the job */
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_register_shard(w->context, &desc, &handle));
    desc.ranks = &ranks[2];
    desc.rank_count = 1;
    desc.slices = slices; /* they do not add up to numel */
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_register_shard(w->context, &desc, &handle));
    desc = describe("wrong", 10, 0, ODC_BYTES);
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_register_shard(w->context, &desc, &handle));
    CHECK(handle == NULL);
}

/* All or none: had the right one been registered, it would have to be published before the sync, and registered by the others.
 * */
static void one_wrong_description_of_several(world *w) {
    odc_shard_desc descs[2] = {describe("right", 10, ODC_F32, ODC_F32), describe("wrong", 10, 0, 0)};
    odc_shard *handles[2] = {NULL, NULL};
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_register_shards(w->context, descs, 2, handles));
    CHECK(handles[0] == NULL && handles[1] == NULL);
}

static void more_than_there_is(world *w) {
    odc_shard_desc descs[2] = {describe("right", 10, ODC_F32, ODC_F32),
                               describe("too large", (uint64_t)1 << 48, ODC_F32, ODC_F32)};
    odc_shard *handles[2] = {NULL, NULL};
    int32_t alone = w->rank;
    for (int i = 0; i < 2; ++i) {
        descs[i].memory = ODC_HOST_MEMORY;
        descs[i].ranks = &alone;
        descs[i].rank_count = 1;
    }
    REFUSED(w, ODC_ERROR_NO_MEMORY, odc_register_shards(w->context, descs, 2, handles));
    CHECK(handles[0] == NULL && handles[1] == NULL);
}

static void operations_that_are_none(world *w) {
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_wait(w->context, 0));
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_wait(w->context, UINT64_MAX));
}

static void wrong_pointers(world *w) {
    own_shard *own = some_shard(w);
    odc_slice slice = {.struct_size = 12};
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_publish(NULL, NULL));
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_finish(NULL, NULL));
    REFUSED(w, ODC_ERROR_ARGUMENT, odc_minibatch_sync(NULL));
    if (own != NULL) {
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_get_slice(own->handle, &slice));
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_get_slice(own->handle, NULL));
    }
    if (own != NULL && own->t.memory == ODC_HOST_MEMORY) {
        REFUSED(w, ODC_ERROR_UNSUPPORTED, odc_publish(own->handle, &slice)); /* a host address as a stream */
    }
}

static void finish_without_gradients(world *w) {
    own_shard *own = some_shard(w);
    if (own != NULL && own->t.gradient_type == 0) {
        REFUSED(w, ODC_ERROR_ARGUMENT, odc_finish(own->handle, NULL));
    }
}

void make_illegal_calls(world *w) {
    static const illegal_fn all[] = {wrong_counts,
                                     no_buffers,
                                     finish_without_gradients,
                                     halves_that_a_shard_lacks,
                                     use_before_publish,
                                     use_of_what_is_published,
                                     a_sync_too_early,
                                     a_reduction_too_late,
                                     reductions_of_nothing,
                                     names_in_use,
                                     released_shards,
                                     wrong_descriptions,
                                     one_wrong_description_of_several,
                                     more_than_there_is,
                                     operations_that_are_none,
                                     wrong_pointers};
    for (uint64_t n = random_below(&w->local, 4); n > 1; --n) {
        all[random_below(&w->local, sizeof all / sizeof *all)](w);
    }
}
