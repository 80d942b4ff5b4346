/* SPDX-License-Identifier: Apache-2.0 */
/* Reads from other hosts that never complete although their owners answer (FAKE_FABRIC_STUCK_BYTES): who needs the bytes is told
 * at the deadline whose they are, and everybody leaves. Two ranks are each on a host of their own; four are on two hosts, with
 * a node cache. */
#include "model.h"

enum { DEADLINE_MS = 6000, SMALL = 1000, LARGE = 400000 };

typedef struct stuck {
    void (*use)(odc_context *context, tensor t); /* by rank 1; must time out, too */
    atomic_int told;
} stuck;

static void meet_stuck_reads(int rank, int size, const char *job, void *arg) {
    stuck *what = arg;
    odc_context *context = join_within(rank, size, job, DEADLINE_MS * time_scale());
    tensor small = make_tensor(context, "small", SMALL, ODC_F32, ODC_F32);
    tensor large = make_tensor(context, "large", LARGE, ODC_F32, ODC_F32);
    write_parameters(small, 1);
    write_parameters(large, 1);
    CHECK_OK(odc_publish_all(context, NULL));
    check_gather(small, 1);
    if (rank == 1) {
        const int64_t begin = now_ns();
        what->use(context, large);
        const int64_t waited_ms = (now_ns() - begin) / 1000000;
        CHECK(waited_ms > DEADLINE_MS / 2 && waited_ms < (int64_t)20 * DEADLINE_MS * time_scale());
        raise_flag(&what->told);
    } else {
        await_flag(&what->told, 1);
    }
    CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_TIMEOUT, "rank 1", "large", "its way");
    odc_destroy(context);
}

static void run_with(int ranks, void (*use)(odc_context *context, tensor t)) {
    stuck *what = share(sizeof *what);
    what->use = use;
    run_processes(ranks, meet_stuck_reads, what);
}

static void gather(odc_context *context, tensor t) {
    (void)context;
    void *full = new_full(t.numel, ODC_F32);
    CHECK_ERROR(odc_gather(t.shard, full, t.numel, NULL), ODC_ERROR_TIMEOUT, "rank 1", "rank 0|rank 2", "odc_gather",
                "large", "its way", "heard from");
    free(full);
}

static void a_gather_ends_at_the_deadline(void **state) {
    (void)state;
    run_with(2, gather);
}

static void so_does_one_by_the_node_cache(void **state) {
    (void)state;
    run_with(4, gather);
}

static void add(odc_context *context, tensor t) {
    (void)context;
    float *full = new_full(t.numel, ODC_F32);
    fill_gradients(t, full, 1);
    CHECK_ERROR(odc_scatter_add(t.shard, full, t.numel, NULL), ODC_ERROR_TIMEOUT, "rank 1", "rank 0", "odc_scatter_add",
                "large", "its way", "heard from");
    free(full);
}

static void an_addition_ends_at_the_deadline(void **state) {
    (void)state;
    run_with(2, add);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gather_ends_at_the_deadline),
        cmocka_unit_test(so_does_one_by_the_node_cache),
        cmocka_unit_test(an_addition_ends_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
