/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a test on several hosts: with ODC_TEST_HOSTS=n rank r is on host r % n, as config.host says, and the ranks of
 * a job meet through an all-gather in the memory that they share. */
#ifndef ODC_TESTS_HOSTS_H
#define ODC_TESTS_HOSTS_H

#include "ranks.h"

/* Before the ranks of a run are forked. */
void prepare_hosts(void);
/* Puts a rank on its host, and lets it meet the others of its job. */
void place_on_host(odc_config *config);

#endif
