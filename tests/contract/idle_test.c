/* SPDX-License-Identifier: Apache-2.0 */
/* An idle context leaves the cores to the program; that includes its progress thread. */
#include "model.h"

#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

/* A progress thread that does not sleep takes a core, or what other processes leave of it; spurious wake-ups cost a seventh of
 * one. A sleeping one took a five-hundredth. */
enum { IDLE_MS = 2000, MOST_CPU_MS = IDLE_MS / 20 };

/* Wake-ups: four heartbeats a second go each way. Unlike the time, their number does not depend on the machine's load. */
enum { MOST_SLEEPS = 100 };

static long sleeps(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_nvcsw;
}

static int64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

static void rests(odc_context *context, void *arg) {
    (void)arg;
    tensor t = make_tensor(context, "layer", 100003, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 1);
    use_once(context, &t, 1, 2);
    int64_t before = cpu_ns();
    long slept = sleeps();
    sleep_ms(IDLE_MS);
    int64_t took_ms = (cpu_ns() - before) / 1000000;
    slept = sleeps() - slept;
    printf("rank %d took %lld ms of CPU in %d ms and slept %ld times\n", odc_rank(context), (long long)took_ms, IDLE_MS,
           slept);
    CHECK(took_ms < MOST_CPU_MS);
    CHECK(slept < MOST_SLEEPS);
    use_once(context, &t, 1, 3);
}

static void an_idle_context_takes_hardly_any_cpu(void **state) {
    (void)state;
    needs_processes("it measures the CPU time of each");
    needs_no_sanitizer("it takes CPU time of its own");
    run_ranks(2, rests, NULL);
}

int main(void) {
    setenv("ODC_TEST_HOSTS", "99", 0);
    setenv("ODC_INTERFACE", "lo", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_idle_context_takes_hardly_any_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
