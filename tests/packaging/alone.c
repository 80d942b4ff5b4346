/* SPDX-License-Identifier: Apache-2.0 */
/* The program of another project in install_test.sh and subproject.sh: a single rank that prints the library's build and its
 * job's size. */
#include <odc/odc.h>
#include <stdio.h>

int main(void) {
    odc_config config = {0};
    odc_context *context;
    config.struct_size = sizeof config;
    config.size = 1;
    if (odc_init(&config, &context) != ODC_OK) {
        fprintf(stderr, "%s\n", odc_last_error());
        return 1;
    }
    printf("%s\n%d\n", odc_build(), odc_size(context));
    odc_destroy(context);
    return 0;
}
