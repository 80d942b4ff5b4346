/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into odc by replay_test.sh: loses one addition, or one element of a gather. */
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

/* Adding zeros has the effect of a lost addition. */
ODC_API odc_status odc_scatter_add_start(odc_shard *shard, const void *full, uint64_t numel, void *stream,
                                         uint64_t *operation) {
    odc_status (*real)(odc_shard *, const void *, uint64_t, void *, uint64_t *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "odc_scatter_add_start");
    if (loses("addition")) {
        static void *zeros; /* in use until the operation has ended; there is only one */
        full = zeros = calloc(numel, sizeof(double));
    }
    return real(shard, full, numel, stream, operation);
}

static void *spoiled;
static uint64_t spoiled_by;

ODC_API odc_status odc_gather_start(odc_shard *shard, void *full, uint64_t numel, void *stream, uint64_t *operation) {
    odc_status (*real)(odc_shard *, void *, uint64_t, void *, uint64_t *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "odc_gather_start");
    odc_status status = real(shard, full, numel, stream, operation);
    if (status == ODC_OK && loses("gather")) {
        spoiled = full;
        spoiled_by = *operation;
    }
    return status;
}

ODC_API odc_status odc_wait(odc_context *context, uint64_t operation) {
    odc_status (*real)(odc_context *, uint64_t) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "odc_wait");
    odc_status status = real(context, operation);
    if (spoiled != NULL && operation == spoiled_by) {
        memset(spoiled, 0x55, 4);
        spoiled = NULL;
    }
    return status;
}
