/* SPDX-License-Identifier: Apache-2.0 */
/* 100,000 minibatches without drift in values, counters, memory or descriptors. */
#include "model.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

enum { NUMEL = 12, MOST_SECONDS = 35 };

static int open_descriptors(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory != NULL && readdir(directory) != NULL) {
        ++count;
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count;
}

static long resident_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    CHECK(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static long heap_kib(void) {
    struct mallinfo2 heap = mallinfo2();
    return (long)((heap.uordblks + heap.hblkhd) / 1024);
}

/* Returns whether some rank is out of time. */
static int one_minibatch(odc_context *context, tensor t, int number, int out_of_time) {
    int size = odc_size(context);
    odc_slice slice = slice_of(t);
    float full[NUMEL];
    double sums[2] = {odc_rank(context) + number, out_of_time};
    for (uint64_t i = 0; i < slice.numel; ++i) {
        ((float *)slice.parameters)[i] = (float)(number % (1 << 20));
    }
    CHECK_OK(odc_publish(t.shard, NULL));
    CHECK_OK(odc_gather(t.shard, full, NUMEL, NULL));
    for (int i = 0; i < NUMEL; ++i) {
        CHECK(full[i] == (float)(number % (1 << 20)));
        full[i] = (float)(number % 1000 + i);
    }
    CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, NULL));
    if (number % 2 == 0) {
        CHECK_OK(odc_minibatch_sync(context));
        sums[1] = 0;
    } else {
        CHECK_OK(odc_minibatch_sync_reduce(context, sums, 2, ODC_SUM));
        CHECK(sums[0] == (double)size * number + size * (size - 1) / 2);
    }
    for (uint64_t i = 0; i < slice.numel; ++i) {
        CHECK(((float *)slice.gradients)[i] == (float)size * (float)((uint64_t)(number % 1000) + slice.offset + i));
    }
    return sums[1] > 0;
}

/* All minibatches, or as many as a very busy machine does in half a minute. */
static void drift(odc_context *context, void *arg) {
    int count = *(int *)arg;
    long resident = 0;
    long heap = 0;
    int descriptors = 0;
    int stop = 0;
    int number = 0;
    int64_t begin = now_ns();
    tensor t = make_tensor(context, "tiny", NUMEL, ODC_F32, ODC_F32);
    for (; number < count && !stop; ++number) {
        CHECK_EQUAL(odc_minibatch(context), number);
        stop = one_minibatch(context, t, number, now_ns() - begin > MOST_SECONDS * (int64_t)1000000000);
        /* Not in threads: glibc's mallinfo2 initializes without a lock an allocator that ThreadSanitizer replaces. */
        if (number == count / 100 && !ranks_are_threads()) {
            resident = resident_kib();
            heap = heap_kib();
            descriptors = open_descriptors();
        }
    }
    if (odc_rank(context) == 0) {
        printf("%d of %d minibatches with %d ranks\n", number, count, odc_size(context));
    }
    CHECK(number > count / 100);
    if (!ranks_are_threads()) { /* where this rank owns the process */
        if (several_hosts()) {  /* when two ranks connect to each other at once, one connection is closed later */
            CHECK(open_descriptors() <= descriptors + odc_size(context));
        } else {
            CHECK_EQUAL(open_descriptors(), descriptors);
        }
        CHECK(heap_kib() - heap < 64);
        /* libfabric allocates a ring (12 MiB) page by page. */
        CHECK(slowdown() > 1 || several_hosts() || resident_kib() - resident < 512);
    }
}

/* Between hosts a minibatch takes many messages. */
static int minibatches(int count) { return count / slowdown() / (several_hosts() ? 50 : 1); }

static void a_hundred_thousand_minibatches_do_not_drift(void **state) {
    (void)state;
    run_ranks(2, drift, &(int){minibatches(100000)});
}

static void nor_do_many_with_three_ranks(void **state) {
    (void)state;
    run_ranks(3, drift, &(int){minibatches(30000)});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hundred_thousand_minibatches_do_not_drift),
        cmocka_unit_test(nor_do_many_with_three_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
