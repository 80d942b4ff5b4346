/* SPDX-License-Identifier: Apache-2.0 */
/* The rank that launchers_test.sh starts: joins the job that the environment describes, sums all ranks' numbers, leaves, and
 * does it again. Prints "rank R of N: sum S". `join FOLDER`: the ranks, numbered by ODC_RANK and ODC_SIZE, meet by files there. */
#include <odc/odc.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int failed(const char *call) {
    fprintf(stderr, "%s: %s\n", call, odc_last_error());
    return 1;
}

/* Each rank writes a file in each round, renamed when it is whole, and reads those of all. */
static int gather_by_files(void *arg, const void *mine, void *all, size_t bytes) {
    static int round = 0;
    const char *folder = arg, *rank = getenv("ODC_RANK");
    char whole[4096], part[4096];
    snprintf(whole, sizeof whole, "%s/%d.%s", folder, ++round, rank);
    snprintf(part, sizeof part, "%s/part.%s", folder, rank);
    FILE *file = fopen(part, "w");
    if (file == NULL || fwrite(mine, 1, bytes, file) != bytes || fclose(file) != 0 || rename(part, whole) != 0) {
        return 1;
    }
    for (int other = 0, looks = 0; other < atoi(getenv("ODC_SIZE")); ++other) {
        snprintf(whole, sizeof whole, "%s/%d.%d", folder, round, other);
        while ((file = fopen(whole, "r")) == NULL) {
            if (++looks > 20000) {
                return 2;
            }
            usleep(1000);
        }
        const size_t got = fread((char *)all + (size_t)other * bytes, 1, bytes, file);
        fclose(file);
        if (got != bytes) {
            return 3;
        }
    }
    return 0;
}

static int join_once(const odc_config *config) {
    odc_context *context = NULL;
    if (odc_init(config, &context) != ODC_OK) {
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

int main(int count, char **words) {
    odc_config config = {.struct_size = sizeof config};
    if (count > 1) {
        config.all_gather = gather_by_files;
        config.all_gather_arg = words[1];
    }
    return join_once(&config) != 0 || join_once(&config) != 0;
}
