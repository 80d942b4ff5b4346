/* SPDX-License-Identifier: Apache-2.0 */
/* odc_plan on 150 fixed requests against data/makespans.txt: a change of the planner may lower a makespan and never raise one. */
#include "ranks.h"

#include <stdio.h>

enum { kRequests = 150, kMaxSamples = 2000 };

/* Lengths as in different tasks: even, long-tailed, few distinct values, nearly all at the budget. */
static uint64_t length_of(uint64_t kind, uint64_t *state) {
    switch (kind) {
        case 0: return 1 + random_below(state, 65536);
        case 1: return 1 + 65535 / (1 + random_below(state, 60));
        case 2: return 8000 * (1 + random_below(state, 8));
        default: return random_below(state, 8) ? 65536 - random_below(state, 30) : 1 + random_below(state, 200);
    }
}

/* From a few samples, which are searched to the end, to 2,000 on 200 ranks. */
static odc_plan_request request_of(uint64_t seed, uint64_t *lengths) {
    static const char *const models[] = {"linear", "1.5b", "7b"};
    const uint64_t size = (seed - 1) * 3 / kRequests; /* 0, 1, 2 */
    const uint64_t most_samples[] = {24, 300, kMaxSamples};
    const uint64_t most_ranks[] = {6, 64, 200};
    uint64_t state = seed;
    odc_plan_request request = {.struct_size = sizeof request, .lengths = lengths, .max_tokens = 65536};
    request.count = 1 + random_below(&state, most_samples[size]);
    request.ranks = (int32_t)(1 + random_below(&state, most_ranks[size]));
    assert_int_equal(odc_plan_cost(models[seed % 3], &request.a, &request.b), ODC_OK);
    for (uint64_t i = 0; i < request.count; ++i) {
        lengths[i] = length_of(seed % 4, &state);
    }
    return request;
}

/* That of collectives for sorted rows, which are for them. 0: these samples cannot be divided so. */
static double makespan_of(odc_plan_request *request, int32_t policy) {
    static int32_t rank_of[kMaxSamples];
    static int32_t microbatch_of[kMaxSamples];
    odc_plan_summary summary = {.struct_size = sizeof summary};
    request->policy = policy;
    if (odc_plan(request, rank_of, microbatch_of, &summary) != ODC_OK) {
        return 0;
    }
    return policy == ODC_SORTED_ROWS ? summary.collective_makespan : summary.makespan;
}

static void no_plan_is_worse_than_it_was(void **state) {
    char path[4096];
    static uint64_t lengths[kMaxSamples];
    (void)state;
    snprintf(path, sizeof path, "%s/tests/data/makespans.txt", getenv("ODC_SOURCE_DIR"));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (uint64_t seed = 1; seed <= kRequests; ++seed) {
        double was[4];
        odc_plan_request request = request_of(seed, lengths);
        assert_int_equal(fscanf(file, "%lf %lf %lf %lf", &was[0], &was[1], &was[2], &was[3]), 4);
        if (slowdown() > 1 && seed % 7 != 0) {
            continue; /* still of every size, kind and model */
        }
        for (int32_t policy = ODC_LOCAL_SORT; policy <= ODC_SORTED_ROWS; ++policy) {
            const double makespan = makespan_of(&request, policy);
            const double before = was[policy - ODC_LOCAL_SORT];
            if ((makespan > 0) != (before > 0) || makespan > before * (1 + 1e-12)) {
                fail_msg("request %d, policy %d: the makespan is %.15g and was %.15g", (int)seed, (int)policy, makespan,
                         before);
            }
        }
    }
    fclose(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_plan_is_worse_than_it_was)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
