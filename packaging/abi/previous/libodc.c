/* SPDX-License-Identifier: Apache-2.0 */
/* A libodc of one rank with the previous header, to run programs on that are compiled with today's. What it is given must
 * be no more than that header has: a field set beyond its structs is refused, as libodc does. */
#include "odc.h"
#include <stdlib.h>
#include <string.h>

struct odc_shard {
    odc_shard *next;
    float *parameters, *gradients;
    uint64_t numel;
};
struct odc_context {
    odc_shard *shards;
    uint64_t minibatch;
    odc_stats stats;
};
static const char *words = "";

static odc_status fail(odc_status status, const char *why) {
    words = why;
    return status;
}

/* Copies what both sides know of a struct into `ours`, or refuses it. */
static odc_status copy_in(void *ours, uint64_t size, const void *theirs) {
    uint64_t given;
    memcpy(&given, theirs, sizeof given);
    for (uint64_t i = size; i < given; ++i) {
        if (((const char *)theirs)[i] != 0) return fail(ODC_ERROR_UNSUPPORTED, "a field is set that the previous libodc lacks");
    }
    memset(ours, 0, size);
    memcpy(ours, theirs, given < size ? given : size);
    return ODC_OK;
}
static odc_status copy_out(void *theirs, const void *ours, uint64_t size) {
    uint64_t given;
    memcpy(&given, theirs, sizeof given);
    memset(theirs, 0, given);
    memcpy(theirs, ours, given < size ? given : size);
    memcpy(theirs, &given, sizeof given);
    return ODC_OK;
}

odc_status odc_init(const odc_config *config, odc_context **out) {
    odc_config ours = {0};
    if (config != NULL && copy_in(&ours, sizeof ours, config) != ODC_OK) return ODC_ERROR_UNSUPPORTED;
    if (ours.size > 1) return fail(ODC_ERROR_UNSUPPORTED, "this libodc is for one rank");
    *out = calloc(1, sizeof **out);
    return ODC_OK;
}
int32_t odc_rank(const odc_context *context) { return context == NULL ? -1 : 0; }
int32_t odc_size(const odc_context *context) { return context == NULL ? -1 : 1; }
uint64_t odc_minibatch(const odc_context *context) { return context->minibatch; }
odc_status odc_shutdown(odc_context *context) { return context != NULL ? ODC_OK : ODC_ERROR_ARGUMENT; }
odc_status odc_abort(odc_context *context, const char *text) { return (void)context, fail(ODC_OK, text); }
void odc_destroy(odc_context *context) {
    while (context->shards != NULL) {
        odc_shard *shard = context->shards;
        context->shards = shard->next;
        free(shard->parameters);
        free(shard->gradients);
        free(shard);
    }
    free(context);
}

odc_status odc_register_shard(odc_context *context, const odc_shard_desc *desc, odc_shard **out) {
    odc_shard_desc ours;
    if (copy_in(&ours, sizeof ours, desc) != ODC_OK) return ODC_ERROR_UNSUPPORTED;
    if (ours.parameter_type != ODC_F32 || ours.gradient_type != ODC_F32) return fail(ODC_ERROR_ARGUMENT, "f32 only");
    odc_shard *shard = calloc(1, sizeof *shard);
    shard->parameters = calloc(ours.numel, sizeof(float));
    shard->gradients = calloc(ours.numel, sizeof(float));
    shard->numel = ours.numel;
    shard->next = context->shards;
    *out = context->shards = shard;
    return ODC_OK;
}
odc_status odc_register_shards(odc_context *context, const odc_shard_desc *descs, size_t count, odc_shard **out) {
    for (size_t i = 0; i < count; ++i) {
        const void *one = (const char *)descs + i * descs->struct_size;
        if (odc_register_shard(context, one, out + i) != ODC_OK) return ODC_ERROR_UNSUPPORTED;
    }
    return ODC_OK;
}
odc_status odc_get_slice(const odc_shard *shard, odc_slice *out) {
    const odc_slice ours = {sizeof ours, shard->parameters, shard->gradients, 0, shard->numel, ODC_F32, ODC_F32, ODC_HOST_MEMORY, 0};
    return copy_out(out, &ours, sizeof ours);
}
odc_status odc_release_shard(odc_shard *shard) { return shard != NULL ? ODC_OK : ODC_ERROR_ARGUMENT; }

odc_status odc_publish(odc_shard *shard, void *stream) {
    (void)stream;
    memset(shard->gradients, 0, shard->numel * sizeof(float));
    return ODC_OK;
}
odc_status odc_publish_all(odc_context *context, void *stream) {
    for (odc_shard *shard = context->shards; shard != NULL; shard = shard->next) odc_publish(shard, stream);
    return ODC_OK;
}
odc_status odc_gather(odc_shard *shard, void *full, uint64_t numel, void *stream) {
    (void)stream;
    memcpy(full, shard->parameters, numel * sizeof(float));
    return ODC_OK;
}
odc_status odc_scatter_add(odc_shard *shard, const void *full, uint64_t numel, void *stream) {
    (void)stream;
    for (uint64_t i = 0; i < numel; ++i) shard->gradients[i] += ((const float *)full)[i];
    return ODC_OK;
}
odc_status odc_gather_start(odc_shard *shard, void *full, uint64_t numel, void *stream, uint64_t *operation) {
    *operation = 1;
    return odc_gather(shard, full, numel, stream);
}
odc_status odc_scatter_add_start(odc_shard *shard, const void *full, uint64_t numel, void *stream, uint64_t *operation) {
    *operation = 1;
    return odc_scatter_add(shard, full, numel, stream);
}
odc_status odc_wait(odc_context *context, uint64_t operation) {
    return (void)context, operation == 1 ? ODC_OK : ODC_ERROR_ARGUMENT;
}
odc_status odc_minibatch_sync(odc_context *context) {
    ++context->minibatch;
    ++context->stats.syncs;
    return ODC_OK;
}
odc_status odc_minibatch_sync_reduce(odc_context *context, double *values, size_t count, int32_t op) {
    return (void)values, (void)count, (void)op, odc_minibatch_sync(context);
}
odc_status odc_all_reduce(odc_context *context, double *values, size_t count, int32_t op) {
    return (void)context, (void)values, (void)count, (void)op, ODC_OK;
}

odc_status odc_get_stats(const odc_context *context, odc_stats *out) {
    return copy_out(out, &context->stats, sizeof context->stats);
}
odc_status odc_get_peer_stats(const odc_context *context, int32_t rank, odc_peer_stats *out) {
    const odc_peer_stats ours = {sizeof ours, 0, 0, context->minibatch};
    return rank == 0 ? copy_out(out, &ours, sizeof ours) : ODC_ERROR_ARGUMENT;
}
odc_status odc_plan(const odc_plan_request *request, int32_t *rank_of, int32_t *microbatch_of, odc_plan_summary *summary) {
    odc_plan_request ours;
    if (copy_in(&ours, sizeof ours, request) != ODC_OK) return ODC_ERROR_UNSUPPORTED;
    odc_plan_summary made = {sizeof made, 0, 0};
    for (uint64_t i = 0; i < ours.count; ++i) {
        rank_of[i] = 0;
        microbatch_of[i] = (int32_t)i;
        made.makespan = made.lower_bound += (double)ours.lengths[i] / 32000;
    }
    return copy_out(summary, &made, sizeof made);
}
odc_status odc_plan_cost(const char *model, double *a, double *b) {
    *a = 0;
    *b = 1;
    return strcmp(model, "linear") == 0 ? ODC_OK : ODC_ERROR_ARGUMENT;
}
uint32_t odc_version(void) { return ODC_VERSION_MAJOR << 16 | ODC_VERSION_MINOR << 8 | ODC_VERSION_PATCH; }
const char *odc_build(void) { return "the previous libodc, one rank"; }
const char *odc_status_string(int32_t status) { return status == ODC_OK ? "ODC_OK" : "an error"; }
const char *odc_last_error(void) { return words; }
odc_status odc_get_transport(size_t index, odc_transport *out) {
    const odc_transport ours = {sizeof ours, "shm", NULL};
    return index == 0 ? copy_out(out, &ours, sizeof ours) : ODC_ERROR_ARGUMENT;
}
odc_status odc_get_setting(size_t index, odc_setting *out) {
    const odc_setting ours = {sizeof ours, "ODC_TIMEOUT_MS", "600000", "deadline of every wait"};
    return index == 0 ? copy_out(out, &ours, sizeof ours) : ODC_ERROR_ARGUMENT;
}
odc_status odc_get_topology(const char *file, const char **json, const char **xml) {
    (void)file;
    *json = "{}";
    if (xml != NULL) *xml = "<topology/>";
    return ODC_OK;
}
odc_status odc_get_route(const odc_context *context, int32_t rank, int32_t memory, odc_route *out) {
    const odc_route ours = {sizeof ours, "shm", NULL, NULL, NULL, "the same process", "", "direct"};
    return (void)context, (void)memory, rank == 0 ? copy_out(out, &ours, sizeof ours) : ODC_ERROR_ARGUMENT;
}
