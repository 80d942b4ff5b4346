/* SPDX-License-Identifier: Apache-2.0 */
/* ODC_ADD_BY_OWNER: gradients of two bytes are copied to their owner's GPU, and that one adds them. */
#include "gpu.h"
#include "model.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { NUMEL = 3000, LARGE = 3 << 20, DEADLINE_MS = 3000 };

/* ---- Who adds ---- */

typedef struct work {
    int gradient_type;
    int copies; /* to the other rank */
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
    CHECK_EQUAL(gpu_enqueued().copies - before.copies, what->copies);
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

/* ---- Owners that do not add ---- */

typedef enum end { STOPS, DIES, CANNOT_ADD } end;

typedef struct scene {
    end how;
    atomic_int owner; /* its process */
} scene;

static void add_to_one_who_ends(odc_context *context, tensor t, scene *what) {
    const int owner = read_flag(&what->owner);
    if (what->how != CANNOT_ADD) {
        stop_process(owner);
    }
    add_gradients(t, 3); /* waits for nobody */
    switch (what->how) {
        case STOPS:
            CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_TIMEOUT, "an addition that rank 1", "is to apply");
            CHECK_EQUAL(kill(owner, SIGKILL), 0);
            break;
        case DIES:
            CHECK_EQUAL(kill(owner, SIGKILL), 0);
            CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 1", "died");
            break;
        case CANNOT_ADD: CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_DEVICE, "rank 1", "cuLaunchKernel"); break;
    }
}

static void owner_ends(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_context *context = what->how == STOPS ? join_within(rank, size, job, DEADLINE_MS) : join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_BF16);
    write_parameters(t, 2);
    CHECK_OK(odc_publish(t.shard, NULL));
    check_gather(t, 2);
    if (rank == 1) {
        if (what->how == CANNOT_ADD) {
            gpu_fail("cuLaunchKernel", 0, 701);
        }
        set_flag(&what->owner, getpid());
        await_flag(&what->owner, what->how == CANNOT_ADD ? 1 : INT_MAX); /* until it is killed */
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_DEVICE, "rank 1", "cuLaunchKernel");
        gpu_fail_no_more();
    } else {
        await_flag(&what->owner, 1);
        add_to_one_who_ends(context, t, what);
    }
    odc_destroy(context);
    gpu_wait(NULL); /* nothing has faulted, and nothing will */
    gpu_collect();
}

static void with_an_owner_that(end how, int dies) {
    scene *what = share(sizeof *what);
    needs_fake_cuda("it makes calls fail, and a GPU's program cannot be stopped at will");
    needs_processes("it stops a rank");
    what->how = how;
    run_mortals(2, dies ? 2 : 0, owner_ends, what);
}

static void an_owner_that_stands_still_is_named_at_the_deadline(void **state) {
    (void)state;
    with_an_owner_that(STOPS, 1);
}

static void an_owner_that_dies_ends_the_job(void **state) {
    (void)state;
    with_an_owner_that(DIES, 1);
}

static void an_owner_whose_gpu_cannot_add_ends_the_job(void **state) {
    (void)state;
    with_an_owner_that(CANNOT_ADD, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_owner_adds_what_has_two_bytes),
        cmocka_unit_test(each_rank_may_choose),
        cmocka_unit_test(gradients_larger_than_all_slots_go_in_pieces),
        cmocka_unit_test(senders_may_come_later),
        cmocka_unit_test(a_shard_leaves_nothing_but_the_slots),
        cmocka_unit_test(an_owner_that_stands_still_is_named_at_the_deadline),
        cmocka_unit_test(an_owner_that_dies_ends_the_job),
        cmocka_unit_test(an_owner_whose_gpu_cannot_add_ends_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
