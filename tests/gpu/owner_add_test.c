/* SPDX-License-Identifier: Apache-2.0 */
/* ODC_ADD_BY_OWNER: gradients of two bytes are copied to their owner's GPU, and that one adds them. */
#include "gpu.h"
#include "model.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { NUMEL = 3000, LARGE = 3 << 20, DEADLINE_MS = 3000 };

/* ---- Who adds ---- */

typedef struct work {
    int gradient_type;
    int copies; /* to the other rank, which overlap with kernels */
} work;

static void adds_once(odc_context *context, void *arg) {
    const work *what = arg;
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, what->gradient_type);
    void *full = new_buffer(t, what->gradient_type);
    write_parameters(t, 1);
    CHECK_OK(odc_publish(t.shard, NULL));
    check_gather(t, 1); /* by which all have published */
    write_gradients(t, full, 4);
    struct fake_cuda_work before = gpu_enqueued();
    CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, gpu_stream(2)));
    CHECK_EQUAL(gpu_enqueued().batched_copies - before.batched_copies, what->copies);
    spoil_gradients(t, full, gpu_stream(2));
    CHECK_OK(odc_minibatch_sync(context));
    check_sums(t, (uint64_t[]){4, 4}, 2);
    free_buffer(t, full);
}

static void with_gradients(int type, int copies) {
    work what = {type, copies};
    run_ranks(2, adds_once, &what);
}

static void the_owner_adds_what_has_two_bytes(void **state) {
    (void)state;
    needs_fake_cuda("it counts copies");
    needs_processes("the driver counts those of a process");
    with_gradients(ODC_BF16, 1);
    with_gradients(ODC_F16, 1);
    with_gradients(ODC_F32, 0);
    with_gradients(ODC_F64, 0);
    setenv("ODC_TEST_DEVICES", "1", 1); /* on one GPU the kernel's bytes cross nothing */
    with_gradients(ODC_BF16, 0);
    setenv("ODC_TEST_DEVICES", "2", 1);
    setenv("ODC_ADD_BY_OWNER", "0", 1);
    with_gradients(ODC_BF16, 0);
    setenv("ODC_ADD_BY_OWNER", "1", 1);
}

/* Only some ranks leave it to the owner; all sums are the same. */
static void chooses_itself(int rank, int size, const char *job, void *arg) {
    (void)arg;
    setenv("ODC_ADD_BY_OWNER", rank % 2 == 0 ? "1" : "0", 1);
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_BF16);
    for (uint64_t salt = 1; salt < 4; ++salt) {
        use_once(context, &t, 1, salt);
    }
    odc_destroy(context);
    gpu_collect();
}

static void each_rank_may_choose(void **state) {
    (void)state;
    needs_processes("it sets ODC_ADD_BY_OWNER");
    run_processes(4, chooses_itself, NULL);
}

static void many_pieces(odc_context *context, void *arg) {
    tensor all[] = {make_tensor(context, "bf16", LARGE, ODC_BF16, ODC_BF16),
                    make_tensor(context, "f16", LARGE - 1, ODC_BF16, ODC_F16)};
    (void)arg;
    for (uint64_t salt = 1; salt < 4; ++salt) {
        use_once(context, all, 2, salt);
    }
}

static void gradients_larger_than_all_slots_go_in_pieces(void **state) {
    (void)state;
    setenv("ODC_STAGING_BYTES", "1048576", 1); /* a slot for each sender */
    run_ranks(3, many_pieces, NULL);
    unsetenv("ODC_STAGING_BYTES");
}

/* ---- Two threads of a rank ---- */

typedef struct gathering {
    tensor *tensors; /* of owners that this rank has not used yet */
    atomic_int begins;
} gathering;

static void *gather_all(void *arg) {
    gathering *g = arg;
    gpu_choose(0);
    await_flag(&g->begins, 1);
    for (int i = 0; i < 2; ++i) {
        check_gather(g->tensors[i], 6);
    }
    return NULL;
}

/* Rank 0 adds to rank 1 while another of its threads comes to use ranks 2 and 3. */
static void two_threads(odc_context *context, void *arg) {
    const int rank = odc_rank(context);
    tensor mine[3];
    (void)arg;
    for (int32_t other = 1; other < 4; ++other) {
        const int32_t ranks[] = {0, other};
        char name[16];
        snprintf(name, sizeof name, "layer.%d", (int)other);
        odc_shard_desc desc = describe(name, NUMEL, ODC_F32, ODC_BF16);
        desc.ranks = ranks;
        desc.rank_count = 2;
        if (rank == 0 || rank == other) {
            tensor one = make_described(context, &desc);
            write_parameters(one, 6);
            mine[rank == 0 ? other - 1 : 0] = one;
        }
    }
    CHECK_OK(odc_publish_all(context, NULL));
    if (rank == 0) {
        gathering g = {.tensors = &mine[1]};
        pthread_t thread;
        CHECK_EQUAL(pthread_create(&thread, NULL, gather_all, &g), 0);
        raise_flag(&g.begins);
        add_gradients(mine[0], 5);
        CHECK_EQUAL(pthread_join(thread, NULL), 0);
    } else if (rank == 1) {
        add_gradients(mine[0], 5);
    }
    CHECK_OK(odc_minibatch_sync(context));
    if (rank < 2) {
        check_sums(mine[0], (uint64_t[]){5, 5}, 2);
    }
}

static void a_thread_may_add_while_another_meets_new_owners(void **state) {
    (void)state;
    run_ranks(4, two_threads, NULL);
}

/* ---- Shards come and go ---- */

/* Rank 0 opens its slots for a shard of ranks 0 and 1; rank 2 comes to use them later. */
static void later_senders(odc_context *context, void *arg) {
    static const int32_t first[] = {0, 1}, second[] = {0, 2};
    const int rank = odc_rank(context);
    tensor mine[2];
    size_t count = 0;
    (void)arg;
    for (int i = 0; i < 2; ++i) {
        odc_shard_desc desc = describe(i == 0 ? "first" : "second", NUMEL, ODC_F32, ODC_BF16);
        desc.ranks = i == 0 ? first : second;
        desc.rank_count = 2;
        if (rank == desc.ranks[0] || rank == desc.ranks[1]) {
            mine[count++] = make_described(context, &desc);
        }
        for (int times = 0; times < 3; ++times) {
            CHECK_OK(odc_publish_all(context, NULL));
            for (size_t k = 0; k < count; ++k) {
                add_gradients(mine[k], 5);
            }
            CHECK_OK(odc_minibatch_sync(context));
            for (size_t k = 0; k < count; ++k) {
                check_sums(mine[k], (uint64_t[]){5, 5}, 2);
            }
        }
    }
}

static void senders_may_come_later(void **state) {
    (void)state;
    run_ranks(3, later_senders, NULL);
}

static void comes_and_goes(odc_context *context, void *arg) {
    struct fake_cuda_counts before = {0};
    (void)arg;
    for (int i = 0; i < 30; ++i) {
        tensor t = make_tensor(context, "layer", NUMEL + (uint64_t)i, ODC_BF16, ODC_BF16);
        use_once(context, &t, 1, 2);
        CHECK_OK(odc_release_shard(t.shard));
        if (i == 0) {
            before = gpu_live(); /* has the slots, which stay */
        }
        gpu_check_live(before);
        CHECK_OK(odc_minibatch_sync(context));
    }
}

static void a_shard_leaves_nothing_but_the_slots(void **state) {
    (void)state;
    needs_fake_cuda("it counts what there is");
    needs_processes("it counts the resources of a process");
    run_ranks(3, comes_and_goes, NULL);
}

/* Slots on several pages, of which rank 0 cannot pin the first, the second, ... */
static void pins_in_vain(odc_context *context, void *arg) {
    odc_shard_desc desc = describe("layer", NUMEL, ODC_F32, ODC_BF16);
    tensor t = {NULL, NUMEL, ODC_F32, ODC_BF16, desc.memory, 0};
    int failures = 0;
    (void)arg;
    for (odc_status status = ODC_ERROR_NO_MEMORY; odc_rank(context) == 0 && status != ODC_OK; ++failures) {
        struct fake_cuda_counts before = gpu_live();
        gpu_fail("cuMemHostRegister", (unsigned)failures + 1, 2);
        status = odc_register_shard(context, &desc, &t.shard);
        gpu_fail_no_more();
        if (status != ODC_OK) {
            CHECK_EQUAL(status, ODC_ERROR_NO_MEMORY);
            gpu_check_live(before);
        }
    }
    if (odc_rank(context) == 0) {
        CHECK(failures > 3);
    } else {
        t = make_described(context, &desc);
    }
    use_once(context, &t, 1, 2);
}

static void slots_that_cannot_be_pinned_leave_nothing(void **state) {
    (void)state;
    needs_fake_cuda("it makes calls fail, and counts what there is");
    needs_processes("it counts the resources of a process");
    setenv("ODC_STAGING_BYTES", "104857600", 1);
    run_ranks(2, pins_in_vain, NULL);
    unsetenv("ODC_STAGING_BYTES");
}

/* ---- Owners that do not add ---- */

typedef enum end { STOPS, DIES, CANNOT_ADD, LEAVES } end;

typedef struct scene {
    end how;
    uint64_t numel;
    atomic_int gathered;
    atomic_int owner; /* its process */
} scene;

static void add_to_one_who_ends(odc_context *context, tensor t, scene *what) {
    const int owner = read_flag(&what->owner);
    if (what->how == STOPS || what->how == DIES) {
        stop_process(owner);
    }
    void *full = new_buffer(t, ODC_BF16);
    write_gradients(t, full, 3);
    if (t.numel == LARGE) { /* for which there are too few slots */
        CHECK_ERROR(odc_scatter_add(t.shard, full, LARGE, NULL), ODC_ERROR_PEER_LOST, "rank 1", "left in minibatch 0");
    } else {
        CHECK_OK(odc_scatter_add(t.shard, full, t.numel, NULL)); /* waits for nobody */
    }
    switch (what->how) {
        case STOPS:
            CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_TIMEOUT, "an addition that rank 1", "is to apply");
            CHECK_EQUAL(kill(owner, SIGKILL), 0);
            break;
        case DIES:
            CHECK_EQUAL(kill(owner, SIGKILL), 0);
            CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1", "died");
            break;
        case CANNOT_ADD:
            CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_DEVICE, "rank 1",
                        "cannot add gradients that other ranks have copied to its GPU: cuLaunchKernel");
            break;
        case LEAVES:
            CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1",
                        "left in minibatch 0 before it had added gradients of rank 0");
            break;
    }
    gpu_wait(NULL);
    gpu_free(full);
}

static void owner_ends(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_context *context = what->how == STOPS ? join_within(rank, size, job, DEADLINE_MS) : join(rank, size, job);
    tensor t = make_tensor(context, "layer", what->numel, ODC_F32, ODC_BF16);
    write_parameters(t, 2);
    CHECK_OK(odc_publish(t.shard, NULL));
    check_gather(t, 2);
    if (rank == 1 && what->how == LEAVES) {
        raise_flag(&what->gathered);
        await_flag(&what->gathered, 2); /* rank 0 reads this rank's slice no more */
        odc_destroy(context);
        set_flag(&what->owner, getpid());
        return;
    }
    if (rank == 1) {
        if (what->how == CANNOT_ADD) {
            gpu_fail("cuLaunchKernel", 0, 701);
        }
        set_flag(&what->owner, getpid());
        await_flag(&what->owner, what->how == CANNOT_ADD ? 1 : INT_MAX); /* until it is killed */
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_DEVICE, "rank 1",
                    "cannot add gradients that other ranks have copied to its GPU: cuLaunchKernel");
        gpu_fail_no_more();
    } else {
        raise_flag(&what->gathered);
        await_flag(&what->owner, 1);
        add_to_one_who_ends(context, t, what);
    }
    odc_destroy(context);
    gpu_wait(NULL); /* nothing has faulted, and nothing will */
    gpu_collect();
}

static void with_an_owner_that(end how, uint64_t numel, int dies) {
    scene *what = share(sizeof *what);
    needs_fake_cuda("it makes calls fail, and a GPU's program cannot be stopped at will");
    needs_processes("it stops a rank");
    what->how = how;
    what->numel = numel;
    run_mortals(2, dies ? 2 : 0, owner_ends, what);
}

static void an_owner_that_stands_still_is_named_at_the_deadline(void **state) {
    (void)state;
    with_an_owner_that(STOPS, NUMEL, 1);
}

static void an_owner_that_dies_ends_the_job(void **state) {
    (void)state;
    with_an_owner_that(DIES, NUMEL, 1);
}

static void an_owner_whose_gpu_cannot_add_ends_the_job(void **state) {
    (void)state;
    with_an_owner_that(CANNOT_ADD, NUMEL, 0);
}

static void an_owner_that_has_left_is_not_waited_for(void **state) {
    (void)state;
    with_an_owner_that(LEAVES, NUMEL, 0);
    setenv("ODC_STAGING_BYTES", "1048576", 1);
    with_an_owner_that(LEAVES, LARGE, 0);
    unsetenv("ODC_STAGING_BYTES");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_owner_adds_what_has_two_bytes),
        cmocka_unit_test(each_rank_may_choose),
        cmocka_unit_test(gradients_larger_than_all_slots_go_in_pieces),
        cmocka_unit_test(a_thread_may_add_while_another_meets_new_owners),
        cmocka_unit_test(senders_may_come_later),
        cmocka_unit_test(a_shard_leaves_nothing_but_the_slots),
        cmocka_unit_test(slots_that_cannot_be_pinned_leave_nothing),
        cmocka_unit_test(an_owner_that_stands_still_is_named_at_the_deadline),
        cmocka_unit_test(an_owner_that_dies_ends_the_job),
        cmocka_unit_test(an_owner_whose_gpu_cannot_add_ends_the_job),
        cmocka_unit_test(an_owner_that_has_left_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
