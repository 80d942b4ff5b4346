/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a minibatch: who waits for whom, which additions count, what sync guarantees, and groups. */
#include "model.h"

#include <pthread.h>
#include <stdio.h>

typedef struct flags {
    atomic_int a;
    atomic_int b;
    atomic_int c;
    waiting_threads waiting;
} flags;

static tensor plain(odc_context *context, const char *name, uint64_t numel) {
    return make_tensor(context, name, numel, ODC_F32, ODC_F32);
}

static void early_layers(odc_context *context, void *arg) {
    flags *shared = arg;
    tensor early = plain(context, "early", 301);
    tensor late = plain(context, "late", 17);
    for (int minibatch = 0; minibatch < 20; ++minibatch) {
        uint64_t salt = (uint64_t)minibatch;
        write_parameters(early, salt);
        CHECK_OK(odc_publish(early.shard, NULL));
        if (odc_rank(context) == 1) { /* its optimizer is still updating the late layer */
            await_flag(&shared->a, minibatch + 1);
        }
        check_gather(early, salt);
        add_gradients(early, salt);
        if (odc_rank(context) == 0) {
            raise_flag(&shared->a);
        }
        write_parameters(late, salt);
        CHECK_OK(odc_publish_all(context, NULL)); /* the remaining ones */
        check_gather(late, salt);
        CHECK_OK(odc_minibatch_sync(context));
        check_sums(early, (uint64_t[]){salt, salt}, 2);
        check_sums(late, NULL, 0);
    }
}

static void the_next_minibatch_begins_on_early_layers_while_late_ones_are_unpublished(void **state) {
    (void)state;
    run_ranks(2, early_layers, share(sizeof(flags)));
}

static void zero_microbatches(odc_context *context, void *arg) {
    (void)arg;
    tensor t = plain(context, "layer", 1234);
    uint64_t salts[16];
    int rank = odc_rank(context);
    for (uint64_t minibatch = 0; minibatch < 20; ++minibatch) {
        size_t count = 0;
        write_parameters(t, minibatch);
        CHECK_OK(odc_publish_all(context, NULL));
        for (int other = 0; other < 4; ++other) { /* rank r runs (r + minibatch) mod 4 microbatches */
            for (uint64_t microbatch = 0; microbatch < ((uint64_t)other + minibatch) % 4; ++microbatch) {
                salts[count] = 1000 * (uint64_t)other + microbatch;
                if (other == rank) {
                    check_gather(t, minibatch);
                    add_gradients(t, salts[count]);
                }
                ++count;
            }
        }
        CHECK_OK(odc_minibatch_sync(context));
        check_sums(t, salts, count);
    }
}

static void a_rank_may_run_any_number_of_microbatches_none_included(void **state) {
    (void)state;
    run_ranks(4, zero_microbatches, NULL);
}

/* Rank 0 publishes minibatch 1 and starts to add to rank 1, which is still reading the gradients of minibatch 0. */
static void one_ahead(odc_context *context, void *arg) {
    flags *shared = arg;
    tensor t = plain(context, "layer", 5000);
    float *full = new_full(5000, ODC_F32);
    for (int minibatch = 0; minibatch < 10; ++minibatch) {
        uint64_t salt = (uint64_t)minibatch;
        uint64_t operations[2] = {0, 0};
        if (odc_rank(context) == 1 && minibatch > 0) {
            await_flag(&shared->a, minibatch);
            check_sums(t, (uint64_t[]){salt - 1}, 1);
            sleep_ms(5);
            check_sums(t, (uint64_t[]){salt - 1}, 1);
        }
        write_parameters(t, salt);
        CHECK_OK(odc_publish(t.shard, NULL));
        if (odc_rank(context) == 0) {
            float *source = new_full(5000, ODC_F32);
            fill_gradients(t, source, salt);
            CHECK_OK(odc_scatter_add_start(t.shard, source, 5000, NULL, &operations[0]));
            CHECK_OK(odc_gather_start(t.shard, full, 5000, NULL, &operations[1]));
            set_flag(&shared->a, minibatch);
            CHECK_OK(odc_minibatch_sync(context));
            check_full(t, full, salt);
            free(source);
        } else {
            CHECK_OK(odc_minibatch_sync(context));
        }
    }
    free(full);
}

static void a_rank_one_minibatch_ahead_does_not_touch_gradients_that_are_still_read(void **state) {
    (void)state;
    run_ranks(2, one_ahead, share(sizeof(flags)));
}

static void never_two(odc_context *context, void *arg) {
    atomic_int *arrived = arg;
    uint64_t random = 17 + (uint64_t)odc_rank(context);
    tensor t = plain(context, "layer", 64);
    for (int minibatch = 0; minibatch < 300 / (slowdown() > 1 ? 5 : 1); ++minibatch) {
        CHECK_EQUAL(odc_minibatch(context), minibatch);
        CHECK_OK(odc_publish(t.shard, NULL));
        if (random_below(&random, 4) == 0) {
            sleep_us((int)random_below(&random, 3000));
        }
        set_flag(&arrived[odc_rank(context)], minibatch + 1);
        CHECK_OK(odc_minibatch_sync(context));
        for (int other = 0; other < odc_size(context); ++other) {
            CHECK(read_flag(&arrived[other]) >= minibatch + 1);
            CHECK(read_flag(&arrived[other]) <= minibatch + 2);
        }
    }
}

static void sync_returns_once_every_rank_has_arrived_so_no_rank_is_two_minibatches_ahead(void **state) {
    (void)state;
    run_ranks(3, never_two, share(64 * sizeof(atomic_int)));
}

/* Rank 1 publishes and then runs user code until the others have gathered and added; rank 2 publishes nothing yet. */
static void sleeping_owner(odc_context *context, void *arg) {
    static const int32_t owners[2] = {0, 1};
    flags *shared = arg;
    odc_shard_desc desc = describe("of 0 and 1", 70001, ODC_F32, ODC_BF16);
    desc.ranks = owners;
    desc.rank_count = 2;
    tensor all = plain(context, "of all", 33);
    tensor t = {0};
    if (odc_rank(context) < 2) {
        t = make_described(context, &desc);
        write_parameters(t, 4);
        CHECK_OK(odc_publish(t.shard, NULL));
    }
    if (odc_rank(context) == 0) {
        await_flag(&shared->a, 1);
        check_gather(t, 4);
        add_gradients(t, 40);
        raise_flag(&shared->b);
    } else if (odc_rank(context) == 1) {
        raise_flag(&shared->a);
        await_flag(&shared->b, 1);
    } else {
        await_flag(&shared->b, 1);
    }
    CHECK_OK(odc_publish(all.shard, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    if (odc_rank(context) < 2) {
        check_sums(t, (uint64_t[]){40}, 1);
    }
}

static void gather_and_scatter_add_wait_for_the_owners_publish_and_for_nothing_else(void **state) {
    (void)state;
    run_ranks(3, sleeping_owner, share(sizeof(flags)));
}

static void waits_for_publish(odc_context *context, void *arg) {
    flags *shared = arg;
    tensor t = plain(context, "layer", 9);
    for (int minibatch = 0; minibatch < 10; ++minibatch) {
        uint64_t salt = (uint64_t)minibatch;
        write_parameters(t, salt);
        if (odc_rank(context) == 1) {
            await_waiters(&shared->waiting, minibatch + 1);
            set_flag(&shared->b, minibatch + 1);
        }
        CHECK_OK(odc_publish(t.shard, NULL));
        if (odc_rank(context) == 0) {
            add_waiter(&shared->waiting);
            if (minibatch % 2 == 0) {
                check_gather(t, salt);
            } else {
                add_gradients(t, salt);
            }
            CHECK(read_flag(&shared->b) == minibatch + 1);
        }
        CHECK_OK(odc_minibatch_sync(context));
        check_sums(t, &salt, minibatch % 2 == 0 ? 0 : 1);
    }
}

static void gather_and_scatter_add_do_wait_until_the_owner_has_published(void **state) {
    (void)state;
    run_ranks(2, waits_for_publish, share(sizeof(flags)));
}

enum { CONTENDERS = 4, ADDITIONS = 12, CONTENDED = 100003 };

static void contend(odc_context *context, void *arg) {
    static const int types[4] = {ODC_F32, ODC_BF16, ODC_F16, ODC_F64};
    (void)arg;
    uint64_t salts[CONTENDERS * ADDITIONS];
    int additions = ADDITIONS / (slowdown() > 1 ? 4 : 1);
    for (int k = 0; k < 4; ++k) {
        char name[32];
        snprintf(name, sizeof name, "contended.%d", k);
        tensor t = make_tensor(context, name, CONTENDED, 0, types[k]);
        size_t count = 0;
        CHECK_OK(odc_publish_all(context, NULL));
        for (int rank = 0; rank < CONTENDERS; ++rank) {
            for (int i = 0; i < additions; ++i) {
                salts[count] = (uint64_t)(rank * ADDITIONS + i);
                if (rank == odc_rank(context)) {
                    add_gradients(t, salts[count]);
                }
                ++count;
            }
        }
        CHECK_OK(odc_minibatch_sync(context));
        check_sums(t, salts, count);
        CHECK_OK(odc_release_shard(t.shard));
    }
}

/* All ranks at one stripe of one owner all the time. */
static void contend_for_one_stripe(odc_context *context, void *arg) {
    enum { NUMEL = 4000 };
    static const uint64_t slices[CONTENDERS] = {NUMEL, 0, 0, 0};
    int additions = 1000 / slowdown();
    odc_shard_desc desc = describe("stripe", NUMEL, 0, ODC_F64);
    (void)arg;
    desc.slices = slices;
    tensor t = make_described(context, &desc);
    double *full = new_full(NUMEL, ODC_F64);
    fill_gradients(t, full, 1);
    for (int minibatch = 0; minibatch < 3; ++minibatch) {
        CHECK_OK(odc_all_reduce(context, &(double){0}, 1, ODC_SUM)); /* start together */
        CHECK_OK(odc_publish_all(context, NULL));
        for (int i = 0; i < additions; ++i) {
            CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, NULL));
        }
        CHECK_OK(odc_minibatch_sync(context));
        odc_slice slice = slice_of(t);
        for (uint64_t i = 0; i < slice.numel; ++i) {
            CHECK(((double *)slice.gradients)[i] == CONTENDERS * additions * full[i]);
        }
    }
    free(full);
}

static void each_element_is_added_exactly_once_whoever_else_adds(void **state) {
    (void)state;
    run_ranks(CONTENDERS, contend, NULL);
    run_ranks(CONTENDERS, contend_for_one_stripe, NULL);
}

typedef struct worker {
    tensor t;
    uint64_t salt;
} worker;

static void *work(void *arg) {
    worker *job = arg;
    for (uint64_t i = 0; i < 8; ++i) {
        check_gather(job->t, 12);
        add_gradients(job->t, job->salt + i);
    }
    return NULL;
}

static void concurrent(odc_context *context, void *arg) {
    enum { THREADS = 3 };
    (void)arg;
    tensor t = plain(context, "layer", 20011);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    uint64_t salts[2 * THREADS * 8];
    size_t count = 0;
    write_parameters(t, 12);
    CHECK_OK(odc_publish_all(context, NULL));
    for (int rank = 0; rank < 2; ++rank) {
        for (int i = 0; i < THREADS; ++i) {
            uint64_t salt = (uint64_t)(1000 * rank + 100 * i);
            for (uint64_t k = 0; k < 8; ++k) {
                salts[count++] = salt + k;
            }
            if (rank == odc_rank(context)) {
                workers[i] = (worker){t, salt};
                CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
            }
        }
    }
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
    }
    CHECK_OK(odc_minibatch_sync(context));
    check_sums(t, salts, count);
}

static void gathers_and_additions_may_run_concurrently_on_one_shard(void **state) {
    (void)state;
    run_ranks(2, concurrent, NULL);
}

static void untouched(odc_context *context, void *arg) {
    (void)arg;
    tensor touched = plain(context, "touched", 30001);
    tensor quiet = plain(context, "quiet", 30001);
    tensor tensors[2] = {touched, quiet};
    for (uint64_t minibatch = 0; minibatch < 6; ++minibatch) {
        for (int i = 0; i < 2; ++i) {
            odc_slice slice = slice_of(tensors[i]);
            for (uint64_t k = 0; k < slice.numel; ++k) { /* the slices are the owner's here; the library begins at 0 */
                ((float *)slice.gradients)[k] = 7;
            }
        }
        CHECK_OK(odc_publish_all(context, NULL));
        int adds = minibatch % 2 == 0 && odc_rank(context) == 1;
        if (adds) {
            add_gradients(touched, minibatch);
        }
        CHECK_OK(odc_minibatch_sync(context));
        check_sums(touched, &minibatch, minibatch % 2 == 0 ? 1 : 0);
        check_sums(quiet, NULL, 0);
    }
}

static void elements_that_nobody_added_to_are_zero_even_if_the_owner_wrote_into_them(void **state) {
    (void)state;
    run_ranks(3, untouched, NULL);
}

/* An optimizer: parameters and gradients are this rank's between sync and publish, and gradients do not change. */
static void optimizer(odc_context *context, void *arg) {
    (void)arg;
    tensor t = plain(context, "layer", 997);
    odc_slice slice = slice_of(t);
    float *parameters = slice.parameters;
    float *gradients = slice.gradients;
    double expected = 0;
    for (int step = 0; step < 50; ++step) {
        float full[997];
        CHECK_OK(odc_publish_all(context, NULL));
        CHECK_OK(odc_gather(t.shard, full, 997, NULL));
        for (int i = 0; i < 997; ++i) {
            CHECK(full[i] == expected);
            full[i] = (float)(odc_rank(context) + 1);
        }
        CHECK_OK(odc_scatter_add(t.shard, full, 997, NULL));
        CHECK_OK(odc_minibatch_sync(context));
        expected += 6;
        for (uint64_t i = 0; i < slice.numel; ++i) {
            parameters[i] += gradients[i];
            CHECK(gradients[i] == 6);
        }
    }
    odc_slice again = slice_of(t);
    CHECK(again.parameters == parameters && again.gradients == gradients);
}

static void between_sync_and_publish_the_owner_reads_gradients_and_writes_parameters(void **state) {
    (void)state;
    run_ranks(3, optimizer, NULL);
}

static void two_groups(int rank, int size, const char *job, void *arg) {
    flags *shared = arg;
    odc_context *actor = NULL;
    odc_context *critic = NULL;
    odc_config config = config_of(rank, size, job);
    config.group = "actor";
    CHECK_OK(odc_init(&config, &actor));
    if (rank < 2) { /* any set of processes may form a group */
        config = config_of(1 - rank, 2, job);
        config.group = "critic";
        CHECK_OK(odc_init(&config, &critic));
        CHECK_EQUAL(odc_rank(critic), 1 - rank);
    }
    tensor a = plain(actor, "layer", 100);
    write_parameters(a, 1);
    CHECK_OK(odc_publish_all(actor, NULL));
    if (rank < 2) { /* ten minibatches of the critic for one of the actor, with the same shard name */
        tensor c = plain(critic, "layer", 51);
        for (uint64_t minibatch = 0; minibatch < 10; ++minibatch) {
            write_parameters(c, minibatch);
            CHECK_OK(odc_publish_all(critic, NULL));
            check_gather(c, minibatch);
            add_gradients(c, minibatch);
            CHECK_OK(odc_minibatch_sync(critic));
            check_sums(c, (uint64_t[]){minibatch, minibatch}, 2);
        }
        CHECK_EQUAL(odc_minibatch(critic), 10);
        raise_flag(&shared->a);
    } else {
        await_flag(&shared->a, 2);
    }
    CHECK_EQUAL(odc_minibatch(actor), 0);
    check_gather(a, 1);
    CHECK_OK(odc_minibatch_sync(actor));
    CHECK_EQUAL(odc_minibatch(actor), 1);
    odc_destroy(critic);
    CHECK_OK(odc_publish_all(actor, NULL));
    check_gather(a, 1);
    CHECK_OK(odc_minibatch_sync(actor));
    odc_destroy(actor);
}

static void groups_with_their_own_rhythm_use_their_own_contexts(void **state) {
    (void)state;
    run_processes(3, two_groups, share(sizeof(flags)));
}

static void again(int rank, int size, const char *job, void *arg) {
    (void)arg;
    for (uint64_t round = 0; round < 10;
         ++round) { /* under one name, while slower ranks are still leaving the previous job */
        odc_context *context = join(rank, size, job);
        tensor t = plain(context, "layer", 10 + round);
        CHECK_EQUAL(odc_minibatch(context), 0);
        write_parameters(t, round);
        CHECK_OK(odc_publish_all(context, NULL));
        check_gather(t, round);
        CHECK_OK(odc_minibatch_sync(context));
        odc_destroy(context);
    }
}

static void again_at_once(int rank, int size, const char *job, void *arg) {
    (void)arg;
    for (int round = 0; round < 30; ++round) { /* a fast rank joins again while slower ones are still in odc_init */
        odc_destroy(join(rank, size, job));
    }
}

static void a_new_init_in_the_same_process_is_legal(void **state) {
    (void)state;
    run_processes(3, again, NULL);
    run_processes(3, again_at_once, NULL);
}

static void no_shards(odc_context *context, void *arg) {
    atomic_int *arrived = arg;
    for (int minibatch = 0; minibatch < 50; ++minibatch) {
        raise_flag(arrived);
        CHECK_OK(odc_publish_all(context, NULL));
        CHECK_OK(odc_minibatch_sync(context));
        CHECK(read_flag(arrived) >= 3 * (minibatch + 1));
    }
}

static void a_job_without_shards_still_syncs(void **state) {
    (void)state;
    run_ranks(3, no_shards, share(sizeof(atomic_int)));
}

static void alone(odc_context *context, void *arg) {
    (void)arg;
    double value = 3;
    tensor t = plain(context, "layer", 1000);
    for (uint64_t minibatch = 0; minibatch < 5; ++minibatch) {
        write_parameters(t, minibatch);
        CHECK_OK(odc_all_reduce(context, &value, 1, ODC_SUM));
        CHECK_OK(odc_publish_all(context, NULL));
        check_gather(t, minibatch);
        add_gradients(t, 2);
        add_gradients(t, 3);
        CHECK_OK(odc_minibatch_sync(context));
        check_sums(t, (uint64_t[]){2, 3}, 2);
    }
    CHECK(value == 3);
}

static void a_job_may_have_one_rank(void **state) {
    (void)state;
    run_ranks(1, alone, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_minibatch_begins_on_early_layers_while_late_ones_are_unpublished),
        cmocka_unit_test(a_rank_may_run_any_number_of_microbatches_none_included),
        cmocka_unit_test(a_rank_one_minibatch_ahead_does_not_touch_gradients_that_are_still_read),
        cmocka_unit_test(sync_returns_once_every_rank_has_arrived_so_no_rank_is_two_minibatches_ahead),
        cmocka_unit_test(gather_and_scatter_add_wait_for_the_owners_publish_and_for_nothing_else),
        cmocka_unit_test(gather_and_scatter_add_do_wait_until_the_owner_has_published),
        cmocka_unit_test(each_element_is_added_exactly_once_whoever_else_adds),
        cmocka_unit_test(gathers_and_additions_may_run_concurrently_on_one_shard),
        cmocka_unit_test(elements_that_nobody_added_to_are_zero_even_if_the_owner_wrote_into_them),
        cmocka_unit_test(between_sync_and_publish_the_owner_reads_gradients_and_writes_parameters),
        cmocka_unit_test(groups_with_their_own_rhythm_use_their_own_contexts),
        cmocka_unit_test(a_new_init_in_the_same_process_is_legal),
        cmocka_unit_test(a_job_without_shards_still_syncs),
        cmocka_unit_test(a_job_may_have_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
