/* SPDX-License-Identifier: Apache-2.0 */
/* Threads with only the stack that docs/c.md requires make every call of a minibatch, and read errors. */
#include "model.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

enum { NUMEL = 100003, GUARD_BYTES = 1 << 16, ON_ONE_HOST = 16 << 10, ON_SEVERAL_HOSTS = 48 << 10, AMPLE = 1 << 20 };

enum { UNTOUCHED = 0xa5 };

typedef struct small {
    int rank;
    int size;
    const char *job;
    const void *begin; /* of this thread's stack for its calls; stacks grow downward */
} small;

static void *do_nothing(void *arg) {
    ((small *)arg)->begin = __builtin_frame_address(0);
    return NULL;
}

static void *make_all_calls(void *arg) {
    const small *what = arg;
    odc_config wrong = config_of(what->rank, what->size, "nobody comes");
    odc_context *context = NULL;
    wrong.rank = what->size;
    CHECK_ERROR(odc_init(&wrong, &context), ODC_ERROR_ARGUMENT, "rank");
    if (!several_hosts()) { /* those use other code to meet */
        char lonely[64];
        snprintf(lonely, sizeof lonely, "%s-%d", what->job, what->rank);
        wrong = config_of(what->rank, what->size, lonely);
        wrong.timeout_ms = 1;
        CHECK_ERROR(odc_init(&wrong, &context), ODC_ERROR_RENDEZVOUS, "missing");
    }
    context = join(what->rank, what->size, what->job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 1);
    CHECK_OK(odc_all_reduce(context, &(double){1}, 1, ODC_SUM));
    odc_destroy(context);
    return NULL;
}

/* The most stack that the thread used, including what was used when it began: glibc puts thread-local storage there. */
static size_t run_thread(size_t bytes, void *(*start)(void *), small *what) {
    pthread_attr_t attributes;
    pthread_t thread;
    size_t left = 0;
    unsigned char *low = mmap(NULL, GUARD_BYTES + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(low != MAP_FAILED && mprotect(low, GUARD_BYTES, PROT_NONE) == 0);
    unsigned char *stack = low + GUARD_BYTES;
    memset(stack, UNTOUCHED, bytes);
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, bytes) == 0);
    CHECK(pthread_create(&thread, &attributes, start, what) == 0 && pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attributes);
    while (left < bytes && stack[left] == UNTOUCHED) {
        ++left;
    }
    if (start == do_nothing) {
        left = (size_t)((const unsigned char *)what->begin - stack);
    }
    munmap(low, GUARD_BYTES + bytes);
    return bytes - left;
}

static void run_on_a_small_stack(int rank, int size, const char *job, void *arg) {
    const size_t needed = several_hosts() ? ON_SEVERAL_HOSTS : ON_ONE_HOST;
    const size_t page = 4096;
    small what = {rank, size, job, NULL};
    (void)arg;
    const size_t before = run_thread(AMPLE, do_nothing, &what);
    const size_t bytes = (needed + before) / page * page; /* at most the required size */
    const size_t used = run_thread(bytes, make_all_calls, &what);
    printf("rank %d used %zu of %zu bytes\n", rank, used - before, bytes - before);
}

static void a_thread_with_as_much_stack_as_is_asked_for_can_make_every_call(void **state) {
    (void)state;
    needs_no_sanitizer("it needs more stack");
    run_processes(3, run_on_a_small_stack, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_with_as_much_stack_as_is_asked_for_can_make_every_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
