/* SPDX-License-Identifier: Apache-2.0 */
/* What crosses between hosts of several ranks, for tests of the node cache and of partial sums. Rank r is on host r % hosts, so a
 * host's ranks are r, r + hosts, ... */
#ifndef ODC_TESTS_CROSSINGS_H
#define ODC_TESTS_CROSSINGS_H

#include "model.h"

#include <stdio.h>

enum { MOST_HOSTS = 3 };

static inline int hosts(void) { return atoi(getenv("ODC_TEST_HOSTS")); }

static inline odc_stats stats_of(odc_context *context) {
    odc_stats stats = {.struct_size = sizeof stats};
    CHECK_OK(odc_get_stats(context, &stats));
    return stats;
}

/* The sum of what this rank's host's ranks pass, after a sync. */
static inline uint64_t sum_by_host(odc_context *context, uint64_t mine) {
    double sums[MOST_HOSTS] = {0};
    const int host = odc_rank(context) % hosts();
    sums[host] = (double)mine;
    CHECK_OK(odc_all_reduce(context, sums, MOST_HOSTS, ODC_SUM));
    return (uint64_t)sums[host];
}

static inline uint64_t fetched_by_host(odc_context *context) {
    return sum_by_host(context, stats_of(context).fetched_bytes);
}

/* For the jobs that begin next. */
static inline void divide_hosts(int host_count, const char *cache) {
    char text[16];
    snprintf(text, sizeof text, "%d", host_count);
    setenv("ODC_TEST_HOSTS", text, 1);
    setenv("ODC_NODE_CACHE", cache, 1);
}

static inline void run_on(const char *test, int host_count, int size, const char *cache, context_fn fn, void *arg) {
    divide_hosts(host_count, cache);
    run_ranks_of(test, size, fn, arg);
}

/* A minibatch in which nothing is wanted, so that nothing is read ahead in the next one. */
static inline void sync_without_gathers(odc_context *context) {
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_minibatch_sync(context));
}

#endif
