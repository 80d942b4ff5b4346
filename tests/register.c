/* SPDX-License-Identifier: Apache-2.0 */
/* A job of one rank that registers a shard of as many bytes as its argument says: for memory_limit_test.sh. */
#include <odc/odc.h>

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    odc_config config = {.struct_size = sizeof config, .size = 1};
    odc_shard_desc desc = {.struct_size = sizeof desc, .name = "w", .parameter_type = ODC_BYTES};
    odc_context *context = NULL;
    odc_shard *shard = NULL;
    desc.numel = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    if (odc_init(&config, &context) != ODC_OK || odc_register_shard(context, &desc, &shard) != ODC_OK) {
        fprintf(stderr, "%s\n", odc_last_error());
        odc_destroy(context);
        return 1;
    }
    puts("registered");
    odc_destroy(context);
    return 0;
}
