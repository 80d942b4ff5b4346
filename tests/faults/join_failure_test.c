/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that cannot join report that to the others, and no rank joins another start of its job. */
#include "rendezvous.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- No memory to share ---- */

/* Rank 1 may not create a file as large as its shared memory. */
static void one_without_memory(int rank, int size, const char *job, void *arg) {
    (void)job;
    scene *what = arg;
    gatherer self = {what, rank, size, 0, 0};
    odc_config config = what->variant == 0 ? scene_config(what, rank, size, NULL) : gather_config(&self);
    if (rank == 1) {
        struct rlimit limit = {1 << 20, 1 << 20};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        odc_context *context = NULL;
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_SYSTEM, "RLIMIT_FSIZE is 1048576");
        return;
    }
    FAIL_INIT(&config, "rank 1 cannot join", "RLIMIT_FSIZE is 1048576");
}

static void test_rank_without_memory(void **state) {
    (void)state;
    needs_processes("the limit is the process's");
    for (int variant = 0; variant < 2; ++variant) {
        scene *what = new_scene(0);
        what->variant = variant;
        run_processes(3, one_without_memory, what);
        end_scene(what);
    }
}

/* ---- The same name again ---- */

enum { OLD_MET = 1, OLD_DEAF, OLD_GIVES_UP, OLD_GONE };

static int count_looks(void *arg) {
    raise_flag(arg);
    return 0;
}

/* The old rank 0 meets the old rank 1, receives nothing from others, then dies or gives up. */
static int turn_deaf(void *arg) {
    scene *what = arg;
    raise_flag(&what->looks[0]);
    if (read_flag(&what->flag) == OLD_MET) {
        set_flag(&what->flag, OLD_DEAF);
        await_flag(&what->flag, OLD_GIVES_UP); /* killed here in variant 0 */
        return 1;
    }
    return 0;
}

static void await_death(pid_t pid) {
    struct pollfd entry = {(int)syscall(SYS_pidfd_open, pid, 0), POLLIN, 0};
    CHECK(entry.fd < 0 || poll(&entry, 1, 30000) == 1);
    close(entry.fd);
}

static void end_old_rank_0(scene *what) {
    await_flag(&what->looks[2], 2); /* the old rank 2 has sent its hello, unread */
    if (what->variant == 0) {
        kill(read_flag(&what->pids[0]), SIGKILL);
        await_death(read_flag(&what->pids[0]));
    }
    set_flag(&what->flag, what->variant == 0 ? OLD_GONE : OLD_GIVES_UP);
}

static void be_old(int rank, const char *job, scene *what) {
    odc_config config = config_of(rank, 3, job);
    config.interrupted = rank == 0 ? turn_deaf : count_looks;
    config.interrupted_arg = rank == 0 ? (void *)what : (void *)&what->looks[rank];
    if (rank == 0) {
        set_flag(&what->pids[0], getpid());
        odc_context *context = NULL;
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_INTERRUPTED, "interrupted");
        set_flag(&what->flag, OLD_GONE);
        return;
    }
    if (rank == 2) {
        for (int round = 0; round < 2; ++round) { /* ranks 0 and 1 met long ago */
            await_flag(&what->looks[0], read_flag(&what->looks[0]) + 10);
            await_flag(&what->looks[1], read_flag(&what->looks[1]) + 10);
        }
        set_flag(&what->flag, OLD_MET);
        await_flag(&what->flag, OLD_DEAF);
    }
    FAIL_INIT(&config, "rank 0", "died|gave up|left");
}

static void start_twice(int rank, int size, const char *job, void *arg) {
    (void)size;
    scene *what = arg;
    if (rank < 3) {
        be_old(rank, job, what);
        return;
    }
    if (rank == 3) {
        end_old_rank_0(what);
    }
    await_flag(&what->flag, OLD_GONE);
    odc_context *context = join(rank - 3, 3, job);
    double sum = 1;
    CHECK_OK(odc_all_reduce(context, &sum, 1, ODC_SUM));
    CHECK(sum == 3);
    odc_destroy(context);
}

/* The old ranks end with errors that name their rank 0; those of the next start of the job meet. */
static void test_next_start_of_a_job(void **state) {
    (void)state;
    for (int variant = 0; variant < 2; ++variant) {
        scene *what = new_scene(1);
        what->variant = variant;
        run_mortals(6, 1, start_twice, what);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_without_memory),
        cmocka_unit_test(test_next_start_of_a_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
