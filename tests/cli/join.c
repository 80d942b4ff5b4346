/* SPDX-License-Identifier: Apache-2.0 */
/* The rank that launchers_test.sh starts: joins the job that the environment describes, sums all ranks' numbers, leaves, and
 * does it again. Prints "rank R of N: sum S". */
#include <odc/odc.h>

#include <stdio.h>

static int failed(const char *call) {
    fprintf(stderr, "%s: %s\n", call, odc_last_error());
    return 1;
}

static int join_once(void) {
    odc_context *context = NULL;
    if (odc_init(NULL, &context) != ODC_OK) {
        return failed("odc_init");
    }
    double sum = odc_rank(context);
    if (odc_minibatch_sync_reduce(context, &sum, 1, ODC_SUM) != ODC_OK) {
        odc_destroy(context);
        return failed("odc_minibatch_sync_reduce");
    }
    printf("rank %d of %d: sum %.0f\n", odc_rank(context), odc_size(context), sum);
    odc_destroy(context);
    return 0;
}

int main(void) { return join_once() != 0 || join_once() != 0; }
