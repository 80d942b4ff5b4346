/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that cannot join say so to those that would wait for them, and nobody joins another start of its job. */
#include "ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FAIL_INIT(config, ...)                                                   \
    do {                                                                         \
        odc_context *none = (odc_context *)1;                                    \
        CHECK_ERROR(odc_init(config, &none), ODC_ERROR_RENDEZVOUS, __VA_ARGS__); \
        CHECK(none == NULL);                                                     \
    } while (0)

typedef struct scene {
    char rendezvous[64];
    int variant;
    atomic_int flag;
    atomic_int pid;
    atomic_int looks[3]; /* how often `interrupted` was asked */
    unsigned char cards[3][4096];
    atomic_int gathered;
} scene;

/* ---- No memory to share ---- */

typedef struct gatherer {
    scene *what;
    int rank;
} gatherer;

static int gather_by_page(void *arg, const void *mine, void *all, size_t bytes) {
    const gatherer *self = arg;
    scene *what = self->what;
    CHECK(bytes <= sizeof what->cards[0]);
    memcpy(what->cards[self->rank], mine, bytes);
    atomic_fetch_add(&what->gathered, 1);
    await_flag(&what->gathered, 3);
    atomic_thread_fence(memory_order_seq_cst); /* the cards after the count, as in any real all-gather */
    for (size_t rank = 0; rank < 3; ++rank) {
        memcpy((char *)all + rank * bytes, what->cards[rank], bytes);
    }
    return 0;
}

/* Rank 1 may have no file as large as its shared memory. */
static void one_without_memory(int rank, int size, const char *job, void *arg) {
    (void)job;
    scene *what = arg;
    gatherer self = {what, rank};
    odc_config config = config_of(rank, size, NULL);
    if (what->variant == 0) {
        config.rendezvous = what->rendezvous;
        config.secret = "a secret of these tests";
    } else {
        config.all_gather = gather_by_page;
        config.all_gather_arg = &self;
    }
    if (rank == 1) {
        struct rlimit limit = {1 << 20, 1 << 20};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        odc_context *context = NULL;
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_SYSTEM, "RLIMIT_FSIZE is 1048576");
        return;
    }
    FAIL_INIT(&config, "rank 1 cannot join", "RLIMIT_FSIZE is 1048576");
}

/* Bound, but not listening: no other process is given the port, and rank 0 can still listen there. */
static int hold_port(scene *what) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    const int on = 1;
    int holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(holder, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    CHECK(bind(holder, (struct sockaddr *)&address, bytes) == 0);
    CHECK(getsockname(holder, (struct sockaddr *)&address, &bytes) == 0);
    snprintf(what->rendezvous, sizeof what->rendezvous, "127.0.0.1:%d", ntohs(address.sin_port));
    return holder;
}

static void test_rank_without_memory(void **state) {
    (void)state;
    needs_processes("the limit is the process's");
    for (int variant = 0; variant < 2; ++variant) {
        scene *what = share(sizeof *what);
        what->variant = variant;
        int holder = hold_port(what);
        run_processes(3, one_without_memory, what);
        close(holder);
    }
}

/* ---- The same name again ---- */

enum { OLD_MET = 1, OLD_DEAF, OLD_GIVES_UP, OLD_GONE };

static int count_looks(void *arg) {
    raise_flag(arg);
    return 0;
}

/* The old rank 0: meets the old rank 1, then hears nobody, then dies or gives up. */
static int turn_deaf(void *arg) {
    scene *what = arg;
    raise_flag(&what->looks[0]);
    if (read_flag(&what->flag) == OLD_MET) {
        set_flag(&what->flag, OLD_DEAF);
        await_flag(&what->flag, OLD_GIVES_UP); /* killed here, in variant 0 */
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
    await_flag(&what->looks[2], 2); /* the old rank 2 has said hello, unheard */
    if (what->variant == 0) {
        kill(read_flag(&what->pid), SIGKILL);
        await_death(read_flag(&what->pid));
    }
    set_flag(&what->flag, what->variant == 0 ? OLD_GONE : OLD_GIVES_UP);
}

static void be_old(int rank, const char *job, scene *what) {
    odc_config config = config_of(rank, 3, job);
    config.interrupted = rank == 0 ? turn_deaf : count_looks;
    config.interrupted_arg = rank == 0 ? (void *)what : (void *)&what->looks[rank];
    if (rank == 0) {
        set_flag(&what->pid, getpid());
        odc_context *context = NULL;
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_INTERRUPTED, "interrupted");
        set_flag(&what->flag, OLD_GONE);
        return;
    }
    if (rank == 2) {
        for (int round = 0; round < 2; ++round) { /* ranks 0 and 1 have long met */
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

/* The old ranks end with errors that name their rank 0, those of the next start of the job meet. */
static void test_next_start_of_a_job(void **state) {
    (void)state;
    for (int variant = 0; variant < 2; ++variant) {
        scene *what = share(sizeof *what);
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
