/* SPDX-License-Identifier: Apache-2.0 */
/* Order between calls and the work on streams. The tests hold and release streams, so nothing depends on time. */
#include "gpu.h"
#include "model.h"

#include <pthread.h>
#include <stdio.h>

enum { NUMEL = 3000, OTHER_STREAM = 2, A_STREAM = 3 }; /* no other stream is ordered with these two */

static tensor plain(odc_context *context, const char *name) {
    return make_tensor(context, name, NUMEL, ODC_F32, ODC_F32);
}

static void *new_gradients(tensor t, uint64_t salt) {
    void *buffer = new_buffer(t, t.gradient_type);
    write_gradients(t, buffer, salt);
    return buffer;
}

/* ---- A rank's own work follows its publish, on any stream ---- */

static void follows_the_publish(odc_context *context, void *arg) {
    tensor t = plain(context, "layer");
    void *gathered = new_buffer(t, ODC_F32);
    void *added = new_gradients(t, 5);
    void *again = new_buffer(t, ODC_F32);
    odc_slice slice = slice_of(t);
    (void)arg;
    for (uint64_t minibatch = 0; minibatch < 4; ++minibatch) {
        void *publishing = gpu_stream(A_STREAM + minibatch);
        void *gathering = gpu_stream(OTHER_STREAM + minibatch);
        void *adding = gpu_stream(OTHER_STREAM + minibatch);
        gpu_fill(slice.gradients, 0x7f, slice.numel * 4, NULL); /* a leftover, which the publish clears */
        gpu_wait(NULL);
        gpu_hold(publishing); /* a long kernel that computes the parameters */
        enqueue_parameters(t, minibatch, publishing);
        CHECK_OK(odc_publish(t.shard, publishing));
        /* These return although the GPU has done nothing of it. */
        CHECK_OK(odc_gather(t.shard, gathered, NUMEL, gathering));
        CHECK_OK(odc_scatter_add(t.shard, added, NUMEL, adding));
        CHECK_OK(odc_gather(t.shard, again, NUMEL, publishing));
        CHECK(!gpu_is_done(gathering));
        CHECK(!gpu_is_done(adding));
        gpu_let_go();
        gpu_wait(gathering);
        check_buffer(t, gathered, minibatch);
        CHECK_OK(odc_minibatch_sync(context));
        check_buffer(t, again, minibatch);
        check_sums(t, (uint64_t[]){5}, 1);
    }
    gpu_free(gathered);
    gpu_free(again);
    gpu_free(added);
    gpu_collect();
}

static void own_work_follows_the_publish_and_the_host_waits_for_none(void **state) {
    (void)state;
    run_ranks(1, follows_the_publish, NULL);
}

typedef struct shared_flags {
    atomic_int registered;
    atomic_int published;
    atomic_int let_go;
    atomic_int gathered;
} shared_flags;

static void *let_go_later(void *arg) {
    shared_flags *shared = arg;
    await_flag(&shared->published, 2);
    sleep_ms(30); /* so that a rank that does not wait gets ahead */
    set_flag(&shared->let_go, 1);
    gpu_let_go();
    return NULL;
}

/* A gather waits for the owner's stream, not for its call. */
static void waits_for_the_word(odc_context *context, void *arg) {
    shared_flags *shared = arg;
    tensor t = plain(context, "layer");
    void *stream = gpu_stream(A_STREAM);
    pthread_t thread;
    int slow = odc_rank(context) == 1;
    raise_flag(&shared->registered); /* a driver may not allow it while a stream is held */
    await_flag(&shared->registered, 2);
    if (slow) {
        gpu_hold(stream);
        CHECK(pthread_create(&thread, NULL, let_go_later, shared) == 0);
    }
    enqueue_parameters(t, 8, stream);
    CHECK_OK(odc_publish(t.shard, stream));
    raise_flag(&shared->published);
    check_gather(t, 8); /* of both ranks' slices */
    CHECK(read_flag(&shared->let_go));
    CHECK_OK(odc_minibatch_sync(context));
    if (slow) {
        pthread_join(thread, NULL);
    }
    gpu_collect();
}

static void a_gather_waits_for_what_is_before_the_publish(void **state) {
    (void)state;
    run_ranks(2, waits_for_the_word, share(sizeof(shared_flags)));
}

/* ---- Sync ---- */

typedef enum work { A_GATHER, AN_ADDITION, A_PUBLISH } work;

static void sync_waits_for(odc_context *context, void *arg) {
    shared_flags *shared = arg;
    tensor t = plain(context, "layer");
    tensor other = plain(context, "other");
    void *buffer = new_gradients(t, 5);
    pthread_t thread;
    for (work what = A_GATHER; what <= A_PUBLISH; ++what) {
        void *stream = gpu_new_stream(0, 1);
        set_flag(&shared->let_go, 0);
        set_flag(&shared->published, 2);
        CHECK_OK(odc_publish(t.shard, NULL));
        gpu_hold(stream);
        if (what == A_GATHER) { /* no rank uses the result */
            CHECK_OK(odc_gather(t.shard, buffer, NUMEL, stream));
        } else if (what == AN_ADDITION) {
            write_gradients(t, buffer, 5);
            CHECK_OK(odc_scatter_add(t.shard, buffer, NUMEL, stream));
        }
        CHECK_OK(odc_publish(other.shard, what == A_PUBLISH ? stream : NULL));
        CHECK(pthread_create(&thread, NULL, let_go_later, shared) == 0);
        gpu_end_stream(stream); /* with work on it */
        CHECK_OK(odc_minibatch_sync(context));
        CHECK(read_flag(&shared->let_go));
        pthread_join(thread, NULL);
        check_sums(t, (uint64_t[]){5}, what == AN_ADDITION);
        check_sums(other, NULL, 0);
    }
    gpu_free(buffer);
    gpu_collect();
}

static void sync_waits_for_all_streams_also_destroyed_ones(void **state) {
    (void)state;
    run_ranks(1, sync_waits_for, share(sizeof(shared_flags)));
}

/* After a sync the sums are final for every stream, whichever streams the other ranks used. */
static void every_stream(odc_context *context, void *arg) {
    void *const special[] = {NULL, (void *)1 /* CU_STREAM_LEGACY */, (void *)2 /* CU_STREAM_PER_THREAD */};
    uint64_t rank = (uint64_t)odc_rank(context);
    tensor t = plain(context, "layer");
    void *copy = gpu_new(NUMEL * 4);
    (void)arg;
    for (uint64_t minibatch = 0; minibatch < 12; ++minibatch) {
        void *streams[5];
        float sums[NUMEL];
        odc_slice slice = slice_of(t);
        memcpy(streams, special, sizeof special);
        streams[3] = gpu_stream(1);
        streams[4] = gpu_stream(2);
        void *added = new_gradients(t, 20 + rank);
        void *gathered = new_buffer(t, ODC_F32);
        enqueue_parameters(t, minibatch, streams[minibatch % 5]);
        CHECK_OK(odc_publish(t.shard, streams[minibatch % 5]));
        CHECK_OK(odc_gather(t.shard, gathered, NUMEL, streams[(minibatch + rank) % 5]));
        CHECK_OK(odc_scatter_add(t.shard, added, NUMEL, streams[(minibatch + rank + 1) % 5]));
        CHECK_OK(odc_minibatch_sync(context));
        check_buffer(t, gathered, minibatch);
        for (int i = 0; i < 5; ++i) { /* with no fence but the sync */
            gpu_copy(copy, slice.gradients, slice.numel * 4, streams[i]);
            gpu_wait(streams[i]);
            gpu_read(sums, copy, slice.numel * 4);
            for (uint64_t k = 0; k < slice.numel; ++k) {
                CHECK(sums[k] == small_value(20, slice.offset + k) + small_value(21, slice.offset + k));
            }
        }
        gpu_free(added);
        gpu_free(gathered);
        gpu_collect();
    }
    gpu_free(copy);
}

static void every_kind_of_stream_works(void **state) {
    (void)state;
    run_ranks(2, every_stream, NULL);
}

/* ---- Much at once ---- */

static void *let_go_when_many(void *arg) {
    shared_flags *shared = arg;
    enum { WORDS = 512, STILL_MS = 1000 };
    int seen = -1;
    for (int still = 0; read_flag(&shared->gathered) < WORDS && still < STILL_MS; ++still) {
        if (read_flag(&shared->gathered) != seen) { /* otherwise the driver's own queue may be full */
            seen = read_flag(&shared->gathered);
            still = 0;
        }
        sleep_ms(1);
    }
    sleep_ms(20);
    gpu_let_go();
    return NULL;
}

static void many_in_flight(odc_context *context, void *arg) {
    shared_flags *shared = arg;
    tensor t = make_tensor(context, "layer", 10, ODC_F32, ODC_F32);
    void *buffer = new_buffer(t, ODC_F32);
    void *added = new_gradients(t, 3);
    uint64_t salts[40];
    pthread_t thread;
    write_parameters(t, 4);
    CHECK_OK(odc_publish(t.shard, NULL));
    gpu_wait(NULL);
    gpu_hold(gpu_stream(A_STREAM));
    CHECK(pthread_create(&thread, NULL, let_go_when_many, shared) == 0);
    for (int i = 0; i < 600; ++i) {
        CHECK_OK(odc_gather(t.shard, buffer, 10, gpu_stream(A_STREAM)));
        raise_flag(&shared->gathered);
    }
    for (int i = 0; i < 40; ++i) {
        salts[i] = 3;
        CHECK_OK(odc_scatter_add(t.shard, added, 10, gpu_stream(A_STREAM)));
    }
    CHECK_OK(odc_minibatch_sync(context));
    pthread_join(thread, NULL);
    check_buffer(t, buffer, 4);
    check_sums(t, salts, 40);
    gpu_free(buffer);
    gpu_free(added);
    gpu_collect();
}

static void more_work_may_be_pending_than_there_are_completion_words(void **state) {
    (void)state;
    run_ranks(1, many_in_flight, share(sizeof(shared_flags)));
}

typedef struct helper {
    tensor t;
    void *stream;
    void *buffer;
    void *added;
    int rounds;
} helper;

static void *use_repeatedly(void *arg) {
    helper *mine = arg;
    for (int i = 0; i < mine->rounds; ++i) {
        uint64_t operation = 0;
        CHECK_OK(odc_gather(mine->t.shard, mine->buffer, NUMEL, mine->stream));
        CHECK_OK(odc_scatter_add(mine->t.shard, mine->added, NUMEL, mine->stream));
        CHECK_OK(odc_gather_start(mine->t.shard, mine->buffer, NUMEL, mine->stream, &operation));
    }
    return NULL;
}

static void two_threads(odc_context *context, void *arg) {
    enum { ROUNDS = 20 };
    tensor t = plain(context, "layer");
    uint64_t salts[4 * ROUNDS];
    helper helpers[2];
    pthread_t threads[2];
    (void)arg;
    for (int i = 0; i < 4 * ROUNDS; ++i) {
        salts[i] = (uint64_t)(i % 2);
    }
    for (int i = 0; i < 2; ++i) {
        helpers[i] =
            (helper){t, gpu_stream((uint64_t)(2 + i)), new_buffer(t, ODC_F32), new_gradients(t, (uint64_t)i), ROUNDS};
    }
    write_parameters(t, 6);
    CHECK_OK(odc_publish(t.shard, NULL));
    for (int i = 0; i < 2; ++i) {
        CHECK(pthread_create(&threads[i], NULL, use_repeatedly, &helpers[i]) == 0);
    }
    for (int i = 0; i < 2; ++i) {
        pthread_join(threads[i], NULL);
    }
    CHECK_OK(odc_minibatch_sync(context));
    for (int i = 0; i < 2; ++i) {
        check_buffer(t, helpers[i].buffer, 6);
        gpu_free(helpers[i].buffer);
        gpu_free(helpers[i].added);
    }
    check_sums(t, salts, 4 * ROUNDS);
    gpu_collect();
}

static void two_threads_use_a_shard_at_once(void **state) {
    (void)state;
    run_ranks(2, two_threads, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_work_follows_the_publish_and_the_host_waits_for_none),
        cmocka_unit_test(a_gather_waits_for_what_is_before_the_publish),
        cmocka_unit_test(sync_waits_for_all_streams_also_destroyed_ones),
        cmocka_unit_test(every_kind_of_stream_works),
        cmocka_unit_test(more_work_may_be_pending_than_there_are_completion_words),
        cmocka_unit_test(two_threads_use_a_shard_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
