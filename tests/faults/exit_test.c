/* SPDX-License-Identifier: Apache-2.0 */
/* exit() does not stop a process's other threads (Python's daemon threads are such), and its handlers may call libodc: no call
 * may use what exit() has destroyed. */
#include "ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAIRS = 2, THREADS = 2 * PAIRS, NUMEL = 64, LOOPS = 5 };

typedef struct member {
    const char *job;
    int pair;
    int rank;
    atomic_int loops;
} member;

static member members[THREADS];

/* Every call that uses state shared by the process's contexts: the two threads of a pair are the ranks of a job. */
static void run_job(member *self, int size, int loop) {
    char job[128];
    snprintf(job, sizeof job, "%s-%d-%d", self->job, self->pair, loop);
    odc_context *context = join(self->rank, size, job);
    odc_shard_desc desc = {.struct_size = sizeof desc, .name = "w", .numel = NUMEL};
    odc_shard *shard = NULL;
    float values[NUMEL] = {0};
    desc.parameter_type = desc.gradient_type = ODC_F32;
    CHECK_OK(odc_register_shard(context, &desc, &shard));
    CHECK_OK(odc_publish(shard, NULL));
    CHECK_OK(odc_gather(shard, values, NUMEL, NULL));
    CHECK_OK(odc_scatter_add(shard, values, NUMEL, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
}

static void *run_jobs(void *arg) {
    member *self = arg;
    for (int loop = 0;; ++loop) {
        run_job(self, 2, loop);
        raise_flag(&self->loops);
    }
    return NULL;
}

static void await_loops(void) {
    for (int i = 0; i < THREADS; ++i) {
        await_flag(&members[i].loops, read_flag(&members[i].loops) + LOOPS);
    }
}

static void exit_amid_jobs(int rank, int size, const char *job, void *arg) {
    (void)size;
    CHECK(atexit(await_loops) == 0); /* registered before libodc's first handler, so it runs after its last */
    for (int i = 0; i < THREADS; ++i) {
        pthread_t thread;
        members[i] = (member){job, *(int *)arg * rank + i / 2, i % 2, 0};
        CHECK(pthread_create(&thread, NULL, run_jobs, &members[i]) == 0);
        pthread_detach(thread);
    }
    await_loops();
}

static void test_exit_amid_calls_of_other_threads(void **state) {
    (void)state;
    needs_processes("it ends them by exit()");
    int pairs = PAIRS;
    for (int round = 0; round < 20 / slowdown() + 1; ++round) {
        run_processes(2, exit_amid_jobs, &pairs);
    }
}

static void ask_for_all_transports(void) {
    odc_transport transport = {.struct_size = sizeof transport};
    for (size_t i = 0; odc_get_transport(i, &transport) == ODC_OK; ++i) {
    }
}

static void *ask_for_transports(void *arg) {
    atomic_int *asked = arg;
    for (;;) {
        ask_for_all_transports();
        raise_flag(asked);
    }
    return NULL;
}

static void exit_amid_questions(int rank, int size, const char *job, void *arg) {
    static atomic_int asked;
    pthread_t thread;
    (void)size, (void)job, (void)arg;
    for (int i = 0; i < 3; ++i) {
        CHECK(pthread_create(&thread, NULL, ask_for_transports, &asked) == 0);
        pthread_detach(thread);
    }
    if (rank % 2 == 0) {
        await_flag(&asked, 1);
    }
    sleep_ms(rank * 7 % 100); /* at any moment of a query */
}

/* At process exit libfabric frees what a query of it uses. Half of the processes exit while it is being loaded. */
static void test_exit_amid_questions_to_libfabric(void **state) {
    (void)state;
    needs_processes("it ends them by exit()");
    for (int round = 0; round < 12 / slowdown() + 1; ++round) {
        run_processes(8, exit_amid_questions, NULL);
    }
}

/* A lock of libfabric that no thread of the child holds would keep these calls, or exit(), for ever. */
static void ask_in_child(int which) {
    const char *json = NULL;
    if (which == 1) {
        ask_for_all_transports();
    }
    CHECK(which != 2 || odc_get_topology(NULL, &json, NULL) == ODC_OK);
    exit(0);
}

static void fork_and_ask(int which) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(30);
        ask_in_child(which);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQUAL(status, 0);
}

static void fork_amid_questions(int rank, int size, const char *job, void *arg) {
    static atomic_int asked;
    enum { CHILDREN = 30 };
    pthread_t thread;
    (void)size, (void)job, (void)arg;
    for (int i = 0; i < 3; ++i) {
        CHECK(pthread_create(&thread, NULL, ask_for_transports, &asked) == 0);
        pthread_detach(thread);
    }
    if (rank == 0) {
        await_flag(&asked, 1);
    }
    for (int i = 0; i < CHILDREN; ++i) {
        fork_and_ask(i % 3);
        sleep_ms(10); /* at any moment of the first query, which takes 0.3 s */
    }
}

static void test_fork_amid_questions_to_libfabric(void **state) {
    (void)state;
    needs_processes("it forks");
    needs_no_sanitizer("what the parent's threads own is a leak of the child's");
    run_processes(2, fork_amid_questions, NULL);
}

static void *ask_once(void *arg) {
    (void)arg;
    ask_for_all_transports();
    return NULL;
}

static void *fork_once(void *arg) {
    (void)arg;
    fork_and_ask(1);
    return NULL;
}

/* Threads that find a fork under way when they are about to load libfabric. */
static void fork_amid_first_questions(int rank, int size, const char *job, void *arg) {
    enum { FORKING = 4, ASKING = 4 };
    pthread_t threads[FORKING + ASKING];
    (void)size, (void)job, (void)arg;
    for (int i = 0; i < FORKING + ASKING; ++i) {
        const int forks = i < FORKING / 2 || i >= FORKING / 2 + ASKING;
        CHECK(pthread_create(&threads[i], NULL, forks ? fork_once : ask_once, NULL) == 0);
        sleep_us(i == FORKING / 2 - 1 ? rank * 40 : 0);
    }
    for (int i = 0; i < FORKING + ASKING; ++i) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

static void test_fork_amid_first_questions_to_libfabric(void **state) {
    (void)state;
    needs_processes("it forks");
    needs_no_sanitizer("what the parent's threads own is a leak of the child's");
    for (int round = 0; round < 5; ++round) {
        run_processes(8, fork_amid_first_questions, NULL);
    }
}

static void *join_again_and_again(void *arg) {
    atomic_int *joined = arg;
    for (;;) {
        odc_destroy(join(0, 1, "of a thread"));
        raise_flag(joined);
    }
    return NULL;
}

/* From the first join on, which makes what a process has one of. */
static void fork_amid_joins(int rank, int size, const char *job, void *arg) {
    static atomic_int joined;
    enum { CHILDREN = 60, JOINING = 3 };
    (void)rank, (void)size, (void)job, (void)arg;
    for (int i = 0; i < JOINING; ++i) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, join_again_and_again, &joined) == 0);
        pthread_detach(thread);
    }
    for (int i = 0; i < CHILDREN; ++i) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(30);
            member self = {"of a child", 0, 0, 0};
            run_job(&self, 1, i);
            CHECK(odc_build()[0] != '\0');
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_EQUAL(status, 0);
    }
    await_flag(&joined, JOINING);
}

/* A lock that a thread of the parent held would keep a child's job for ever. */
static void test_fork_amid_joins(void **state) {
    (void)state;
    needs_processes("it forks");
    needs_no_sanitizer("a child may have its allocator's locks");
    run_processes(2, fork_amid_joins, NULL);
}

static void call_again(void) {
    CHECK_ERROR(odc_plan(NULL, NULL, NULL, NULL), ODC_ERROR_ARGUMENT, "odc_plan", "NULL");
    CHECK(odc_build()[0] != '\0');
    odc_transport transport = {.struct_size = sizeof transport};
    for (size_t i = 0; odc_get_transport(i, &transport) == ODC_OK; ++i) {
        CHECK(transport.name[0] != '\0');
    }
    const char *json = NULL;
    const char *xml = NULL;
    CHECK_OK(odc_get_topology(NULL, &json, &xml));
    CHECK(json[0] == '{' && xml[0] == '<');
    odc_context *context = join(0, 1, "of one rank");
    odc_destroy(context);
}

static void exit_and_call(int rank, int size, const char *job, void *arg) {
    (void)rank, (void)size, (void)job, (void)arg;
    CHECK(atexit(call_again) == 0);
    call_again();
}

static void test_calls_of_exit_handlers(void **state) {
    (void)state;
    run_processes(1, exit_and_call, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exit_amid_calls_of_other_threads),
                                       cmocka_unit_test(test_exit_amid_questions_to_libfabric),
                                       cmocka_unit_test(test_fork_amid_questions_to_libfabric),
                                       cmocka_unit_test(test_fork_amid_first_questions_to_libfabric),
                                       cmocka_unit_test(test_fork_amid_joins),
                                       cmocka_unit_test(test_calls_of_exit_handlers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
