/* SPDX-License-Identifier: Apache-2.0 */
/* A libodc that cannot wait for an operation, and tells what it is asked to do; tests/cpp.sh adds the functions that end
 * the program. */
#include <odc/odc.h>
#include <stdio.h>

static int waits;

uint32_t odc_version(void) { return ODC_VERSION_MAJOR << 16 | ODC_VERSION_MINOR << 8 | ODC_VERSION_PATCH; }
const char *odc_last_error(void) { return "a sentence"; }
odc_status odc_init(const odc_config *config, odc_context **out) {
    *out = config->struct_size == sizeof *config ? (odc_context *)&waits : NULL;
    return ODC_OK;
}
int32_t odc_size(const odc_context *context) { return context == NULL ? -1 : 1; }
odc_status odc_register_shard(odc_context *context, const odc_shard_desc *desc, odc_shard **out) {
    *out = context != NULL && desc->struct_size == sizeof *desc ? (odc_shard *)&waits : NULL;
    return ODC_OK;
}
odc_status odc_gather_start(odc_shard *shard, void *full, uint64_t numel, void *stream, uint64_t *operation) {
    *operation = shard != NULL && full != NULL && numel == 10 && stream == NULL ? 7 : 0;
    return ODC_OK;
}
odc_status odc_wait(odc_context *context, uint64_t operation) {
    printf("odc_wait(%s, %d)\n", context == NULL ? "NULL" : "context", (int)operation);
    return ++waits == 1 ? ODC_ERROR_SYSTEM : ODC_ERROR_ABORTED;
}
odc_status odc_abort(odc_context *context, const char *text) {
    printf("odc_abort(%s, \"%s\")\n", context == NULL ? "NULL" : "context", text);
    return ODC_OK;
}
odc_status odc_shutdown(odc_context *context) {
    printf("odc_shutdown(%s)\n", context == NULL ? "NULL" : "context");
    return ODC_OK;
}
void odc_destroy(odc_context *context) { printf("odc_destroy(%s)\n", context == NULL ? "NULL" : "context"); }
