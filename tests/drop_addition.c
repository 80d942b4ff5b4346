/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into odc by replay_test.sh: one addition, or one element of a gather, is lost. */
#include <odc/odc.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static int calls;

static int loses(const char *what) {
    const char *wanted = getenv("ODC_TEST_LOSE");
    return wanted != NULL && strcmp(wanted, what) == 0 && ++calls == 5;
}

ODC_API odc_status odc_scatter_add(odc_shard *shard, const void *full, uint64_t numel, void *stream) {
    odc_status (*real)(odc_shard *, const void *, uint64_t, void *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "odc_scatter_add");
    return loses("addition") ? ODC_OK : real(shard, full, numel, stream);
}

ODC_API odc_status odc_gather(odc_shard *shard, void *full, uint64_t numel, void *stream) {
    odc_status (*real)(odc_shard *, void *, uint64_t, void *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "odc_gather");
    odc_status status = real(shard, full, numel, stream);
    if (status == ODC_OK && loses("gather")) {
        memset(full, 0x55, 4);
    }
    return status;
}
