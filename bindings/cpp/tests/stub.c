/* SPDX-License-Identifier: Apache-2.0 */
/* A libodc that prints its arguments, calls `interrupted` in each call that may wait, ignores the result, and cannot wait for
 * an operation; tests/cpp.sh adds functions that end the program. */
#include <odc/odc.h>
#include <stdio.h>

static int context_, shard_, waits;
static odc_interrupted_fn interrupted;
static void *interrupted_arg;

static void ask(void) {
    if (interrupted(interrupted_arg) != 0) {
        puts("interrupted");
    }
}

static const char *name(const void *handle) {
    return handle == NULL ? "NULL" : handle == &context_ ? "context" : "shard";
}

uint32_t odc_version(void) { return ODC_VERSION_MAJOR << 16 | ODC_VERSION_MINOR << 8 | ODC_VERSION_PATCH; }
const char *odc_last_error(void) { return "a sentence"; }
int32_t odc_size(const odc_context *context) { return context == NULL ? -1 : 3; }

odc_status odc_init(const odc_config *c, odc_context **out) {
    *out = c->struct_size == sizeof *c ? (odc_context *)&context_ : NULL;
    interrupted = c->interrupted;
    interrupted_arg = c->interrupted_arg;
    printf("odc_init(%d of %d, %s, %s, %s, %s, %d ms, %s, %s, %s, %s)\n", c->rank, c->size, c->job, c->group,
           c->rendezvous, c->secret, (int)c->timeout_ms, c->host, c->device,
           c->all_gather == NULL ? "NULL" : "all_gather",
           c->interrupted == NULL || c->interrupted(c->interrupted_arg) != 0 ? "NULL" : "interrupted");
    return ODC_OK;
}

odc_status odc_register_shard(odc_context *context, const odc_shard_desc *d, odc_shard **out) {
    *out = d->struct_size == sizeof *d ? (odc_shard *)&shard_ : NULL;
    printf("odc_register_shard(%s, %s, %d of types %d and %d, %d ranks", name(context), d->name, (int)d->numel,
           d->parameter_type, d->gradient_type, (int)d->rank_count);
    for (uint64_t i = 0; i < d->rank_count; ++i) {
        printf(", %d with %d", d->ranks[i], (int)d->slices[i]);
    }
    printf(", memory %d)\n", d->memory);
    return ODC_OK;
}

odc_status odc_publish_all(odc_context *context, void *stream) {
    printf("odc_publish_all(%s, %s)\n", name(context), stream == NULL ? "NULL" : "stream");
    ask();
    return ODC_OK;
}

odc_status odc_gather_start(odc_shard *shard, void *full, uint64_t numel, void *stream, uint64_t *operation) {
    printf("odc_gather_start(%s, %d, %s)\n", name(shard), (int)numel, stream == full ? "stream" : "NULL");
    *operation = 7;
    return ODC_OK;
}

odc_status odc_wait(odc_context *context, uint64_t operation) {
    printf("odc_wait(%s, %d)\n", name(context), (int)operation);
    ask();
    return ++waits == 1 ? ODC_ERROR_SYSTEM : ODC_ERROR_ABORTED;
}

odc_status odc_abort(odc_context *context, const char *text) {
    printf("odc_abort(%s, %s)\n", name(context), text);
    ask();
    return ODC_OK;
}

odc_status odc_shutdown(odc_context *context) {
    printf("odc_shutdown(%s)\n", name(context));
    ask();
    return ODC_OK;
}

void odc_destroy(odc_context *context) {
    printf("odc_destroy(%s)\n", name(context));
    ask();
}
