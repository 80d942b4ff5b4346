/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks meet: over TCP with a secret, by name on one host, through the caller's all-gather; who is missing, twice
 * there, of another size, without the secret, or no rank at all. What launchers say is in places_test.c. */
#include "ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* SOON_MS is far from the ranks' deadline of 20 s, and from any delay of a busy machine. */
enum { STRANGERS = 70, SOON_MS = 4800 };

static const char secret[] = "a secret of these tests";

/* ---- Helpers ---- */

/* Where the ranks of a test meet. The port is bound, but not listened at, as long as the test runs, so that no other
 * process is given it; SO_REUSEADDR lets rank 0 listen there all the same. */
typedef struct place {
    char text[64];
    int family;
    int port;
    int holder;
} place;

static socklen_t address_of(const place *at, struct sockaddr_storage *out) {
    memset(out, 0, sizeof *out);
    if (at->family == AF_INET6) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
        v6->sin6_family = AF_INET6;
        v6->sin6_addr = in6addr_loopback;
        v6->sin6_port = htons((uint16_t)at->port);
        return sizeof *v6;
    }
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    v4->sin_family = AF_INET;
    v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    v4->sin_port = htons((uint16_t)at->port);
    return sizeof *v4;
}

/* A socket bound to a free port; invalid where this machine lacks the family. */
static place hold_place(int family) {
    place at = {"", family, 0, -1};
    struct sockaddr_storage address;
    socklen_t bytes = address_of(&at, &address);
    const int on = 1;
    at.holder = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (at.holder < 0) {
        return at;
    }
    setsockopt(at.holder, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(at.holder, (struct sockaddr *)&address, bytes) != 0 ||
        getsockname(at.holder, (struct sockaddr *)&address, &bytes) != 0) {
        close(at.holder);
        at.holder = -1;
        return at;
    }
    at.port = ntohs(family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                       : ((struct sockaddr_in *)&address)->sin_port);
    snprintf(at.text, sizeof at.text, family == AF_INET6 ? "[::1]:%d" : "127.0.0.1:%d", at.port);
    return at;
}

static int connect_stranger(const place *at) {
    struct sockaddr_storage address;
    socklen_t bytes = address_of(at, &address);
    int fd = socket(at->family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    for (int64_t deadline = now_ns() + 10000000000; connect(fd, (struct sockaddr *)&address, bytes) != 0;) {
        CHECK(now_ns() < deadline);
        sleep_ms(5);
    }
    return fd;
}

typedef struct scene {
    place at;
    const char *job;
    int by_name; /* meet by the job's name on this host instead of `at` */
    int variant;
    atomic_int flag;
    _Atomic int64_t time;
    atomic_int pids[8];
    atomic_int looks[8]; /* how often each rank's `interrupted` was asked */
    unsigned char cards[8][4096];
} scene;

static scene *new_scene(int by_name) {
    scene *what = share(sizeof *what);
    what->by_name = by_name;
    what->at.holder = -1;
    if (!by_name) {
        what->at = hold_place(AF_INET);
        CHECK(what->at.holder >= 0);
    }
    return what;
}

static void end_scene(scene *what) {
    if (what->at.holder >= 0) {
        close(what->at.holder);
    }
}

static int count_looks(void *arg) {
    raise_flag(arg);
    return 0;
}

static odc_config scene_config(scene *what, int rank, int size, const char *job) {
    odc_config config = config_of(rank, size, what->by_name ? job : NULL);
    config.interrupted = count_looks;
    config.interrupted_arg = &what->looks[rank];
    if (!what->by_name) {
        config.rendezvous = what->at.text;
        config.secret = secret;
    }
    return config;
}

/* Waits until ranks 0..n-1, whose `interrupted` is count_looks, have long met: each has gone around its loop many times
 * after all of them had come. */
static void await_settled(scene *what, int n) {
    for (int round = 1; round <= 2; ++round) {
        for (int rank = 0; rank < n; ++rank) {
            await_flag(&what->looks[rank], read_flag(&what->looks[rank]) + 10);
        }
    }
}

static void use(odc_context *context, int rank, int size) {
    CHECK_EQUAL(odc_rank(context), rank);
    CHECK_EQUAL(odc_size(context), size);
    double sum = rank;
    CHECK_OK(odc_all_reduce(context, &sum, 1, ODC_SUM));
    CHECK(sum == size * (size - 1) / 2);
    CHECK_OK(odc_minibatch_sync(context));
}

static void join_and_use(const odc_config *config) {
    odc_context *context = NULL;
    CHECK_OK(odc_init(config, &context));
    use(context, config->rank, config->size);
    odc_destroy(context);
}

#define FAIL_INIT(config, ...)                                                   \
    do {                                                                         \
        odc_context *none = (odc_context *)1;                                    \
        CHECK_ERROR(odc_init(config, &none), ODC_ERROR_RENDEZVOUS, __VA_ARGS__); \
        CHECK(none == NULL);                                                     \
    } while (0)

static void both_ways(rank_fn fn, int n) {
    for (int by_name = 0; by_name <= 1; ++by_name) {
        scene *what = new_scene(by_name);
        run_processes(n, fn, what);
        end_scene(what);
    }
}

/* ---- Meeting ---- */

static void meet_twice(int rank, int size, const char *job, void *arg) {
    odc_config config = scene_config(arg, rank, size, job);
    for (int time = 0; time < 2; ++time) {
        join_and_use(&config);
    }
}

static void test_tcp_and_again(void **state) {
    (void)state;
    scene *what = new_scene(0);
    run_processes(4, meet_twice, what);
    end_scene(what);
}

static void test_tcp_v6(void **state) {
    (void)state;
    scene *what = new_scene(1);
    what->by_name = 0;
    what->at = hold_place(AF_INET6);
    if (what->at.holder < 0) {
        printf("skipped: this machine has no IPv6\n");
        skip();
    }
    run_processes(3, meet_twice, what);
    end_scene(what);
}

static void meet_at_name(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    char text[64];
    snprintf(text, sizeof text, "localhost:%d", what->at.port);
    odc_config config = scene_config(what, rank, size, job);
    config.rendezvous = text;
    join_and_use(&config);
}

static void test_tcp_by_host_name(void **state) {
    (void)state;
    scene *what = new_scene(0);
    run_processes(2, meet_at_name, what);
    end_scene(what);
}

static void late_rank_0(int rank, int size, const char *job, void *arg) {
    odc_config config = scene_config(arg, rank, size, job);
    if (rank == 0) {
        sleep_ms(400);
    }
    join_and_use(&config);
}

static void test_late_rank_0(void **state) {
    (void)state;
    both_ways(late_rank_0, 3);
}

static void leave_a_child(int rank, int size, const char *job, void *arg) {
    odc_config config = scene_config(arg, rank, size, job);
    odc_context *context = NULL;
    CHECK_OK(odc_init(&config, &context));
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        pause();
        _exit(0);
    }
    kill_at_end(child);
    odc_destroy(context);
    join_and_use(&config);
}

static void test_again_beside_forked_children(void **state) {
    (void)state;
    needs_processes("a rank forks");
    both_ways(leave_a_child, 3);
}

/* ---- Secrets and addresses ---- */

static void one_wrong_secret(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    if (rank == 2) {
        config.secret = "another";
        int64_t begin = now_ns();
        FAIL_INIT(&config, what->at.text, "rank 0", "rank 2", "ODC_SECRET");
        CHECK(now_ns() - begin < SOON_MS * INT64_C(1000000));
    } else {
        config.timeout_ms = 3000;
        FAIL_INIT(&config, what->at.text, "rank 2", "missing", "1 connection", "127.0.0.1: wrong secret");
    }
}

static void test_wrong_secret(void **state) {
    (void)state;
    scene *what = new_scene(0);
    run_processes(3, one_wrong_secret, what);
    end_scene(what);
}

static void no_secret(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    config.secret = NULL;
    FAIL_INIT(&config, what->at.text, "ODC_SECRET");
    config.secret = "";
    FAIL_INIT(&config, what->at.text, "ODC_SECRET");
}

static void test_missing_secret(void **state) {
    (void)state;
    scene *what = new_scene(0);
    run_processes(2, no_secret, what);
    end_scene(what);
}

static void bad_addresses(int rank, int size, const char *job, void *arg) {
    (void)job;
    static const char *const wrong[] = {"node1",    "node1:",    ":5000",   "node1:port", "node1:0",     "node1:65536",
                                        "::1:5000", "[::1]5000", "[]:5000", "[::1",       "node1:5000x", "1:2:3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        odc_config config = scene_config(arg, rank, size, NULL);
        config.rendezvous = wrong[i];
        odc_context *context = NULL;
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_ARGUMENT, wrong[i], "host:port", "[v6]:port");
    }
    if (rank == 0) {
        odc_config config = scene_config(arg, rank, size, NULL);
        config.rendezvous = "192.0.2.1:5000"; /* a documentation address: nobody's */
        FAIL_INIT(&config, "192.0.2.1:5000", "rank 0");
        config.rendezvous = "nowhere.invalid:5000";
        FAIL_INIT(&config, "nowhere.invalid:5000", "rank 0");
    }
}

static void test_bad_addresses(void **state) {
    (void)state;
    scene *what = new_scene(0);
    run_processes(2, bad_addresses, what);
    end_scene(what);
}

/* Something else listens at rank 0's port: variant 0 says nothing, 1 talks of other things. */
static void beside_other_program(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    if (rank == 2) {
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int on = 1;
        struct sockaddr_storage address;
        socklen_t bytes = address_of(&what->at, &address);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        CHECK(bind(listener, (struct sockaddr *)&address, bytes) == 0 && listen(listener, 8) == 0);
        set_flag(&what->flag, 1);
        struct pollfd entry = {listener, POLLIN, 0};
        while (read_flag(&what->flag) < 3) {
            int fd = poll(&entry, 1, 10) > 0 ? accept(listener, NULL, NULL) : -1;
            char text[64];
            memset(text, 'x', sizeof text);
            if (what->variant == 1 && fd >= 0) {
                CHECK(send(fd, text, sizeof text, MSG_NOSIGNAL) > 0);
            }
        }
        return;
    }
    await_flag(&what->flag, 1);
    config.timeout_ms = 1000;
    if (what->variant == 1) {
        FAIL_INIT(&config, what->at.text, "not rank 0 of a libodc job");
    } else {
        FAIL_INIT(&config, what->at.text, "rank 0", "does not answer");
    }
    raise_flag(&what->flag);
}

static void test_port_of_another_program(void **state) {
    (void)state;
    for (int variant = 0; variant < 2; ++variant) {
        scene *what = new_scene(0);
        what->variant = variant;
        run_processes(3, beside_other_program, what);
        end_scene(what);
    }
}

/* ---- Strangers ---- */

static void say_garbage(int fd, int kind) {
    unsigned char bytes[512];
    memset(bytes, 0xa5, sizeof bytes);
    memcpy(bytes, kind % 2 == 0 ? "GET / HTTP/1.1\r\n\r\n" : "odc meet", kind % 2 == 0 ? 18 : 8);
    size_t sizes[] = {0, 1, 5, 128, 300, sizeof bytes};
    size_t size = sizes[(size_t)kind % 6];
    if (size > 0) {
        /* It may be refused while it still talks. */
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        CHECK(sent > 0 || errno == EPIPE || errno == ECONNRESET);
    }
    if (kind % 7 == 6) {
        shutdown(fd, SHUT_WR);
    }
}

static void strangers_come_first(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    int fds[STRANGERS];
    if (rank == 1) {
        for (int i = 0; i < STRANGERS; ++i) {
            fds[i] = connect_stranger(&what->at);
            say_garbage(fds[i], i);
        }
    }
    int64_t begin = now_ns();
    join_and_use(&config);
    CHECK(rank != 1 || now_ns() - begin < SOON_MS * INT64_C(1000000));
    if (rank == 1) {
        for (int i = 0; i < STRANGERS; ++i) {
            close(fds[i]);
        }
    }
}

static void test_strangers_at_the_port(void **state) {
    (void)state;
    scene *what = new_scene(0);
    run_processes(3, strangers_come_first, what);
    end_scene(what);
}

static void strangers_are_reported(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    if (rank == 1) {
        int garbage = connect_stranger(&what->at);
        say_garbage(garbage, 0 + 4);
        close(connect_stranger(&what->at));
        await_flag(&what->flag, 1);
        close(garbage);
        return;
    }
    config.timeout_ms = 800;
    FAIL_INIT(&config, "missing", "rank 1", "127.0.0.1: not a rank", "127.0.0.1: closed");
    set_flag(&what->flag, 1);
}

static void test_strangers_are_reported(void **state) {
    (void)state;
    scene *what = new_scene(0);
    run_processes(2, strangers_are_reported, what);
    end_scene(what);
}

static void a_stranger_says_nothing(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    if (rank == 1) {
        int silent = connect_stranger(&what->at);
        await_flag(&what->flag, 1);
        close(silent);
        return;
    }
    config.timeout_ms = 6000;
    FAIL_INIT(&config, "missing", "rank 1", "127.0.0.1: silent");
    set_flag(&what->flag, 1);
}

static void test_silent_stranger(void **state) {
    (void)state;
    scene *what = new_scene(0);
    run_processes(2, a_stranger_says_nothing, what);
    end_scene(what);
}

/* The abstract Unix socket with the job's name, as the kernel lists it. */
static socklen_t find_unix_socket(const char *job, struct sockaddr_un *address) {
    char line[512];
    for (int64_t deadline = now_ns() + 10000000000; now_ns() < deadline; sleep_ms(5)) {
        FILE *file = fopen("/proc/net/unix", "re");
        CHECK(file != NULL);
        while (fgets(line, sizeof line, file) != NULL) {
            char *at = strchr(line, '@');
            if (at == NULL || strstr(at, job) == NULL) {
                continue;
            }
            fclose(file);
            at[strcspn(at, "\n")] = '\0';
            memset(address, 0, sizeof *address);
            address->sun_family = AF_UNIX;
            memcpy(address->sun_path + 1, at + 1, strlen(at + 1));
            return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(at + 1));
        }
        fclose(file);
    }
    CHECK(!"no Unix socket has the job's name");
    return 0;
}

static void strangers_at_name(int rank, int size, const char *job, void *arg) {
    odc_config config = scene_config(arg, rank, size, job);
    int fds[STRANGERS];
    if (rank == 1) {
        struct sockaddr_un address;
        socklen_t bytes = find_unix_socket(job, &address);
        for (int i = 0; i < STRANGERS; ++i) {
            fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
            for (int64_t deadline = now_ns() + 10000000000; connect(fds[i], (struct sockaddr *)&address, bytes) != 0;
                 sleep_ms(1)) {
                CHECK(now_ns() < deadline);
            }
            say_garbage(fds[i], i);
        }
    }
    join_and_use(&config);
    if (rank == 1) {
        for (int i = 0; i < STRANGERS; ++i) {
            close(fds[i]);
        }
    }
}

static void test_strangers_at_the_name(void **state) {
    (void)state;
    scene *what = new_scene(1);
    run_processes(3, strangers_at_name, what);
    end_scene(what);
}

/* ---- Ranks that do not come, come twice, or disagree ---- */

/* Ranks 0 and 1 of 4; the deadline of rank 1 is the earlier. */
static void half_come(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, 4, job);
    config.timeout_ms = rank == 1 ? 1500 : 20000;
    raise_flag(&what->flag);
    await_flag(&what->flag, size);
    int64_t begin = now_ns();
    FAIL_INIT(&config, "missing", "rank 2", "rank 3", "2 of 4");
    CHECK(now_ns() - begin > INT64_C(1000000000));
    CHECK(now_ns() - begin < SOON_MS * INT64_C(1000000));
}

static void test_missing_ranks(void **state) {
    (void)state;
    both_ways(half_come, 2);
}

static void nobody_is_rank_0(int rank, int size, const char *job, void *arg) {
    odc_config config = scene_config(arg, rank + 1, size + 1, job);
    config.timeout_ms = 500;
    FAIL_INIT(&config, "missing", "rank 0");
}

static void test_missing_rank_0(void **state) {
    (void)state;
    both_ways(nobody_is_rank_0, 2);
}

static void twice_rank_1(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank == 0 ? 0 : 1, size + 1, job);
    if (rank == 2) {
        await_settled(what, 2);
    }
    int64_t begin = now_ns();
    FAIL_INIT(&config, "two processes", "rank 1", "pid");
    CHECK(now_ns() - begin < SOON_MS * INT64_C(1000000));
}

static void test_one_number_twice(void **state) {
    (void)state;
    needs_processes("the error names two processes");
    both_ways(twice_rank_1, 3);
}

static void twice_rank_0(int rank, int size, const char *job, void *arg) {
    (void)size;
    odc_config config = scene_config(arg, 0, 3, job);
    (void)rank;
    FAIL_INIT(&config, "two processes", "rank 0", "pid");
}

static void test_rank_0_twice(void **state) {
    (void)state;
    needs_processes("the error names two processes");
    both_ways(twice_rank_0, 2);
}

static void other_sizes(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, rank == 2 ? size + 1 : size + 2, job);
    if (rank == 2) { /* the others have met when it comes */
        await_settled(what, 2);
    }
    int64_t begin = now_ns();
    FAIL_INIT(&config, "rank 2", "rank 0", "4 ranks|4 of", "5");
    CHECK(now_ns() - begin < SOON_MS * INT64_C(1000000));
}

static void test_different_sizes(void **state) {
    (void)state;
    both_ways(other_sizes, 3);
}

/* ---- Death and interruption while meeting ---- */

static void one_dies(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    set_flag(&what->pids[rank], getpid());
    if (rank == size - 1) {
        await_flag(&what->pids[what->variant], 1);
        await_settled(what, size - 1); /* they wait for this rank, which never comes */
        what->time = now_ns();
        kill(read_flag(&what->pids[what->variant]), SIGKILL);
        return;
    }
    char name[16];
    snprintf(name, sizeof name, "rank %d", what->variant);
    FAIL_INIT(&config, name, "died|gave up"); /* its sockets close a moment before it is dead */
    int64_t late = now_ns() - what->time;
    CHECK(what->time > 0 && late < SOON_MS * INT64_C(1000000));
    if (late > 100000000) {
        raise_flag(&what->flag);
    }
}

/* Within 100 ms; while the machine is busy with other things, it is tried again. */
static void test_killed_in_init(void **state) {
    (void)state;
    for (int scenario = 0; scenario < 4; ++scenario) {
        int late = 1;
        for (int tries = 0; late > 0 && tries < 20; ++tries) {
            sleep_ms(tries > 0 ? 500 : 0);
            scene *what = new_scene(scenario / 2);
            what->variant = scenario % 2;
            run_mortals(4, UINT64_C(1) << what->variant, one_dies, what);
            late = read_flag(&what->flag);
            end_scene(what);
        }
        assert_int_equal(late, 0);
    }
}

typedef struct pauses {
    int64_t last;
    int count;  /* between two questions */
    int longer; /* of them, than 100 ms */
} pauses;

static int stop_soon(void *arg) {
    pauses *seen = arg;
    int64_t now = now_ns();
    if (seen->last != 0) {
        ++seen->count;
        seen->longer += now - seen->last > 100000000;
    }
    seen->last = now;
    return seen->count == 40;
}

/* One rank is interrupted once it has waited a while for a rank that does not come. */
static void interrupted(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size + 1, job);
    pauses seen = {0, 0, 0};
    odc_context *context = NULL;
    if (rank == what->variant) {
        config.interrupted = stop_soon;
        config.interrupted_arg = &seen;
        CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_INTERRUPTED, "interrupted", "odc_init");
        CHECK(seen.longer < seen.count / 2); /* a busy machine makes some of them longer */
        return;
    }
    char name[16];
    snprintf(name, sizeof name, "rank %d", what->variant);
    config.timeout_ms = 5000;
    /* Who had not yet come when rank 0 left finds nobody. */
    FAIL_INIT(&config, name, "died|gave up|left|missing|interrupted");
}

static void test_interrupted(void **state) {
    (void)state;
    for (int by_name = 0; by_name <= 1; ++by_name) {
        for (int who = 0; who <= 1; ++who) {
            scene *what = new_scene(by_name);
            what->variant = who;
            run_processes(2, interrupted, what);
            end_scene(what);
        }
    }
}

/* ---- The caller's all-gather ---- */

typedef struct gatherer {
    scene *what;
    int rank;
    int size;
    int result;
    int calls;
} gatherer;

static int gather_by_page(void *arg, const void *mine, void *all, size_t bytes) {
    gatherer *self = arg;
    ++self->calls;
    CHECK(bytes <= sizeof self->what->cards[0]);
    memcpy(self->what->cards[self->rank], mine, bytes);
    /* The cards themselves must be seen after the count, here as in any real all-gather. */
    atomic_fetch_add(&self->what->flag, 1);
    for (int64_t deadline = now_ns() + 30000000000; atomic_load(&self->what->flag) < self->size; sleep_us(200)) {
        CHECK(now_ns() < deadline);
    }
    for (int rank = 0; rank < self->size; ++rank) {
        memcpy((char *)all + (size_t)rank * bytes, self->what->cards[rank], bytes);
    }
    return self->result;
}

static odc_config gather_config(gatherer *self) {
    odc_config config = config_of(self->rank, self->size, NULL);
    config.all_gather = gather_by_page;
    config.all_gather_arg = self;
    return config;
}

static void meet_by_callback(int rank, int size, const char *job, void *arg) {
    (void)job;
    gatherer self = {arg, rank, size, 0, 0};
    odc_config config = gather_config(&self);
    join_and_use(&config);
    CHECK_EQUAL(self.calls, 1);
}

static void test_callback(void **state) {
    (void)state;
    scene *what = new_scene(1);
    run_processes(4, meet_by_callback, what);
}

static void callback_fails(int rank, int size, const char *job, void *arg) {
    (void)job;
    gatherer self = {arg, rank, size, 42, 0};
    odc_config config = gather_config(&self);
    FAIL_INIT(&config, "all_gather", "42");
}

static int gather_nothing(void *arg, const void *mine, void *all, size_t bytes) {
    (void)arg, (void)mine, (void)all, (void)bytes;
    return 0;
}

static void callback_does_nothing(int rank, int size, const char *job, void *arg) {
    (void)arg, (void)job;
    odc_config config = config_of(rank, size, NULL);
    config.all_gather = gather_nothing;
    FAIL_INIT(&config, "all_gather", "rank order");
}

static void test_callback_that_fails(void **state) {
    (void)state;
    scene *what = new_scene(1);
    run_processes(2, callback_fails, what);
    run_processes(2, callback_does_nothing, what);
}

/* Two processes hand in the same rank. */
static void callback_disagrees(int rank, int size, const char *job, void *arg) {
    (void)job;
    gatherer self = {arg, rank, size, 0, 0};
    odc_config config = gather_config(&self);
    config.rank = 0;
    FAIL_INIT(&config, "rank 0", "own rank|two processes");
}

static void test_callback_of_two_alike(void **state) {
    (void)state;
    run_processes(2, callback_disagrees, new_scene(1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tcp_and_again),
        cmocka_unit_test(test_tcp_v6),
        cmocka_unit_test(test_tcp_by_host_name),
        cmocka_unit_test(test_late_rank_0),
        cmocka_unit_test(test_again_beside_forked_children),
        cmocka_unit_test(test_wrong_secret),
        cmocka_unit_test(test_missing_secret),
        cmocka_unit_test(test_bad_addresses),
        cmocka_unit_test(test_port_of_another_program),
        cmocka_unit_test(test_strangers_at_the_port),
        cmocka_unit_test(test_strangers_are_reported),
        cmocka_unit_test(test_silent_stranger),
        cmocka_unit_test(test_strangers_at_the_name),
        cmocka_unit_test(test_missing_ranks),
        cmocka_unit_test(test_missing_rank_0),
        cmocka_unit_test(test_one_number_twice),
        cmocka_unit_test(test_rank_0_twice),
        cmocka_unit_test(test_different_sizes),
        cmocka_unit_test(test_killed_in_init),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_callback),
        cmocka_unit_test(test_callback_that_fails),
        cmocka_unit_test(test_callback_of_two_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
