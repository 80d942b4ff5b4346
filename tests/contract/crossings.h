/* SPDX-License-Identifier: Apache-2.0 */
/* What crosses between hosts of several ranks, for tests of the node cache and of partial sums. Rank r is on host r % hosts, so a
 * host's ranks are r, r + hosts, ... */
#ifndef ODC_TESTS_CROSSINGS_H
#define ODC_TESTS_CROSSINGS_H

#include "model.h"

#include <stdio.h>

enum { MOST_HOSTS = 3 };

static int hosts(void) { return atoi(getenv("ODC_TEST_HOSTS")); }

static odc_stats stats_of(odc_context *context) {
    odc_stats stats = {.struct_size = sizeof stats};
    CHECK_OK(odc_get_stats(context, &stats));
    return stats;
}

/* The sum of what this rank's host's ranks pass, after a sync. */
static uint64_t sum_by_host(odc_context *context, uint64_t mine) {
    double sums[MOST_HOSTS] = {0};
    const int host = odc_rank(context) % hosts();
    sums[host] = (double)mine;
    CHECK_OK(odc_all_reduce(context, sums, MOST_HOSTS, ODC_SUM));
    return (uint64_t)sums[host];
}

static void run_on(const char *test, int host_count, int size, const char *cache, context_fn fn, void *arg) {
    char text[16];
    snprintf(text, sizeof text, "%d", host_count);
    setenv("ODC_TEST_HOSTS", text, 1);
    setenv("ODC_NODE_CACHE", cache, 1);
    run_ranks_of(test, size, fn, arg);
}

#endif
