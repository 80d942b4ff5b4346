/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks on each of two hosts register a shard after all have taken memory since they joined: taken_memory SLICE TAKEN ROOM,
 * bytes of each rank, and whether each has room for an entry of the node cache then. For memory_limit_test.sh. */
#include "model.h"
#include "ranks.h"

#include <stdio.h>

enum { RANKS = 4 };

static uint64_t slice, taken;
static int has_room;

static void hear(void *told, int32_t level, const char *line) {
    (void)level;
    *(int *)told += strstr(line, "has room in the node cache for 0 of 1 slices of other hosts") != NULL;
}

static void registers(int rank, int size, const char *job, void *all_taken) {
    int told = 0;
    odc_config config = config_of(rank, size, job);
    odc_context *context = NULL;
    config.log = hear;
    config.log_arg = &told;
    config.log_level = ODC_LOG_INFO;
    CHECK_OK(odc_init(&config, &context));
    void *memory = malloc(taken);
    CHECK(memory != NULL);
    memset(memory, rank + 1, taken);
    raise_flag(all_taken);
    await_flag(all_taken, size);
    make_tensor(context, "layer", slice * (uint64_t)size, ODC_BYTES, 0);
    CHECK_EQUAL(told, !has_room);
    CHECK_EQUAL(((char *)memory)[taken - 1], rank + 1); /* so that it is taken */
    odc_destroy(context);
    free(memory);
}

static void what_is_free_at_registration_limits_the_node_cache(void **state) {
    (void)state;
    setenv("ODC_TEST_HOSTS", "2", 1);
    setenv("ODC_NODE_CACHE", "auto", 1);
    run_processes(RANKS, registers, share(sizeof(atomic_int)));
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: taken_memory SLICE TAKEN ROOM\n");
        return 2;
    }
    slice = strtoull(argv[1], NULL, 10);
    taken = strtoull(argv[2], NULL, 10);
    has_room = atoi(argv[3]);
    setenv("ODC_INTERFACE", "lo", 0);
    setenv("FI_OFI_RXM_MSG_RX_SIZE", "64", 0); /* as in tests/CMakeLists.txt: 4096 would take most of the memory */
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_free_at_registration_limits_the_node_cache)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
