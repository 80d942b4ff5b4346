/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a test on several simulated hosts: with ODC_TEST_HOSTS=n rank r is on host r % n, by config.host, and the ranks of a
 * job meet through an all-gather in shared memory. */
#ifndef ODC_TESTS_HOSTS_H
#define ODC_TESTS_HOSTS_H

#include "ranks.h"

/* Called before the ranks of a run are forked. */
void prepare_hosts(void);
/* Before the first run: ranks do not inherit a libfabric that this process has loaded. */
void let_ranks_load_libfabric(void);
/* Sets a rank's host and the all-gather by which it meets the others. */
void place_on_host(odc_config *config);

#endif
