/* SPDX-License-Identifier: Apache-2.0 */
/* The publish of a rank comes to another host after its arrival, which a rank of its own host passes on: exact sums there wait for
 * the vote that comes with it. Ranks 0 and 2 are one host, 1 and 3 the other; the link of rank 2 stalls. */
#include "exact_model.h"
#include "hosts.h"
#include "stalling_link.h"

#include <stdlib.h>

enum { ADDER, CONVERTER, LATE, RANKS = 4, NUMEL = 400, MINIBATCHES = 8 };

typedef struct late_vote {
    stalling_link link;   /* of the late rank */
    atomic_int have_come; /* to the last minibatch */
} late_vote;

static void publish_and_sync(odc_context *context, tensor t, const float *full) {
    CHECK_OK(odc_publish_all(context, NULL));
    if (odc_rank(context) == ADDER) {
        CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, NULL));
    }
    CHECK_OK(odc_minibatch_sync(context));
}

static void one_publish_is_late(odc_context *context, void *arg) {
    late_vote *what = arg;
    const odc_shard_desc desc = describe_exact("w", NUMEL, ODC_F32, ODC_F32);
    exact_model *m = new_exact_model(&desc);
    tensor t = make_described(context, &desc);
    float full[NUMEL];
    /* By far the largest ones, and so the vote that counts, are in the late rank's slice. */
    for (int i = 0; i < NUMEL; ++i) {
        full[i] = (i / (NUMEL / RANKS) == LATE ? 1e6f : 1e-3f) * (1 + (float)i / NUMEL);
    }
    for (int minibatch = 0; minibatch < MINIBATCHES; ++minibatch) {
        const int is_last = minibatch + 1 == MINIBATCHES;
        if (is_last) {
            raise_flag(&what->have_come);
        }
        if (is_last && odc_rank(context) == LATE) {
            await_flag(&what->have_come, RANKS); /* what the sync before needs of its link has come */
            limit_link(&what->link, 0);
        }
        publish_and_sync(context, t, full);
        if (is_last && odc_rank(context) == ADDER) {
            await_flag(&what->link.stalled, 1);
            sleep_ms(300); /* in which the converter would convert */
            restore_link(&what->link);
        }
        add_gradients_exactly(m, (const void *const[]){full}, 1);
        check_exact_sums(t, m);
    }
    free_exact_model(m);
}

static void exact_sums_wait_for_a_vote_that_an_arrival_has_overtaken(void **state) {
    (void)state;
    needs_processes("it stalls the link of one rank, and so of its process");
    run_ranks(RANKS, one_publish_is_late, share(sizeof(late_vote)));
}

int main(void) {
    setenv("ODC_TEST_HOSTS", "2", 1);
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("ODC_SILENCE_MS", "60000", 0); /* neither a busy machine nor a stalled link counts as silent */
    setenv("ODC_NODE_CACHE", "off", 1);   /* so that the late rank sends nobody else's gradients */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_sums_wait_for_a_vote_that_an_arrival_has_overtaken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
