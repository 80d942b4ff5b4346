/* SPDX-License-Identifier: Apache-2.0 */
/* Errors around a job on several hosts: settings, a missing libfabric, foreign clients at its ports. */
#include "model.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 3 };

/* ---- libfabric is missing ---- */

static int hides_libfabric;

/* Replaces libc's dlopen, because the test is linked first. dlerror reports what the loader says of a missing file. */
__attribute__((visibility("default"))) void *dlopen(const char *name, int flags) {
    void *(*next)(const char *, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    return hides_libfabric && name != NULL && strstr(name, "libfabric") != NULL ? NULL : next(name, flags);
}

__attribute__((visibility("default"))) char *dlerror(void) {
    static char missing[] = "libfabric.so.1: cannot open shared object file: No such file or directory";
    char *(*next)(void) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "dlerror");
    return hides_libfabric ? missing : next();
}

typedef struct refusal {
    const char *name; /* of a setting; NULL: all are valid */
    const char *value;
    odc_status status;
    const char *text[5];
} refusal;

static void is_refused(int rank, int size, const char *job, void *arg) {
    const refusal *what = arg;
    odc_config config = config_of(rank, size, job);
    odc_context *context = (odc_context *)1;
    odc_status status = odc_init(&config, &context);
    CHECK(context == NULL);
    CHECK(status == what->status || status == ODC_ERROR_RENDEZVOUS); /* its own error, or another rank's */
    for (int i = 0; what->text[i] != NULL; ++i) {
        CHECK_SENTENCE(odc_last_error(), what->text[i]);
    }
}

static void without_libfabric_ranks_of_several_hosts_read_why_they_cannot_join(void **state) {
    (void)state;
    static refusal what = {NULL, NULL, ODC_ERROR_UNSUPPORTED, {"libfabric.so.1 not found", "rank ", NULL}};
    hides_libfabric = 1;
    run_processes(RANKS, is_refused, &what);
    hides_libfabric = 0;
}

static void one_minibatch(odc_context *context, void *arg) {
    (void)arg;
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 1);
}

static void without_libfabric_a_job_on_one_host_runs(void **state) {
    (void)state;
    hides_libfabric = 1;
    setenv("ODC_TEST_HOSTS", "1", 1);
    run_ranks(RANKS, one_minibatch, NULL);
    setenv("ODC_TEST_HOSTS", "99", 1);
    hides_libfabric = 0;
}

/* ---- Settings ---- */

static void wrong_settings_are_refused_with_the_names_there_are(void **state) {
    static refusal all[] = {
        {"ODC_INTERFACE", "eht7", ODC_ERROR_ARGUMENT, {"ODC_INTERFACE", "eht7", "it has ", NULL}},
        {"ODC_PROVIDER", "carrier-pigeon", ODC_ERROR_ARGUMENT, {"ODC_PROVIDER", "carrier-pigeon", "tcp", NULL}},
        {"ODC_TRANSPORTS", "shm,fabrik", ODC_ERROR_ARGUMENT, {"ODC_TRANSPORTS", "fabrik", "shm", "fabric", NULL}},
        {"ODC_REQUIRE", "speed", ODC_ERROR_ARGUMENT, {"ODC_REQUIRE", "speed", "shm", "rdma", NULL}},
        {"ODC_REQUIRE", "rdma", ODC_ERROR_UNSUPPORTED, {"ODC_REQUIRE", "rdma", "rank ", NULL}},
        {"ODC_TRANSPORTS", "shm", ODC_ERROR_UNSUPPORTED, {"ODC_TRANSPORTS", "fabric", "rank ", NULL}},
        {"ODC_STAGING_BYTES", "12", ODC_ERROR_ARGUMENT, {"ODC_STAGING_BYTES", "262144", NULL}},
        {"ODC_SILENCE_MS", "soon", ODC_ERROR_ARGUMENT, {"ODC_SILENCE_MS", "1000", NULL}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        char before[64];
        const char *old = getenv(all[i].name);
        snprintf(before, sizeof before, "%s", old != NULL ? old : "");
        printf("%s=%s\n", all[i].name, all[i].value);
        setenv(all[i].name, all[i].value, 1);
        run_processes(RANKS, is_refused, &all[i]);
        old != NULL ? setenv(all[i].name, before, 1) : unsetenv(all[i].name);
    }
}

/* ---- Foreign clients ---- */

enum { MOST_PORTS = 256, CLIENTS = 3, BESIDE_SILENCE = 100 /* minibatches */ };

static int is_inode_of(int pid, unsigned long inode) {
    char path[64];
    char wanted[64];
    char target[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *directory = opendir(path);
    int found = 0;
    for (struct dirent *one = NULL; !found && directory != NULL && (one = readdir(directory)) != NULL;) {
        ssize_t bytes = readlinkat(dirfd(directory), one->d_name, target, sizeof target - 1);
        target[bytes > 0 ? bytes : 0] = 0;
        found = strcmp(target, wanted) == 0;
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return found;
}

typedef struct open_port {
    struct in_addr address;
    int port;
} open_port;

/* The TCP ports on which a process listens. */
static int open_ports_of(int pid, open_port *ports) {
    char path[64];
    char line[512];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/net/tcp", pid);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned address = 0;
        unsigned port = 0;
        unsigned state = 0;
        unsigned long inode = 0;
        if (sscanf(line, " %*d: %x:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu", &address, &port, &state, &inode) ==
                4 &&
            state == 10 && count < MOST_PORTS && is_inode_of(pid, inode)) {
            ports[count++] = (open_port){{address}, (int)port};
        }
    }
    fclose(file);
    return count;
}

static int connect_to(open_port at) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)at.port), .sin_addr = at.address};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

typedef struct scene {
    atomic_int pids[RANKS];
    atomic_int scanned;
    atomic_int minibatches;
    uint64_t seed;
} scene;

/* Sends garbage, disconnects in the middle of a message, and sends nothing at all. */
static void scan(scene *what) {
    uint64_t random = what->seed;
    int silent[MOST_PORTS * RANKS];
    int silences = 0;
    int found = 0;
    for (int rank = 0; rank < RANKS; ++rank) {
        open_port ports[MOST_PORTS];
        await_flag(&what->pids[rank], 1);
        int count = open_ports_of(read_flag(&what->pids[rank]), ports);
        for (int i = 0; i < count; ++i) {
            for (int client = 0; client < CLIENTS; ++client) {
                char garbage[4096];
                int fd = connect_to(ports[i]);
                for (size_t j = 0; j < sizeof garbage; ++j) {
                    garbage[j] = (char)next_random(&random);
                }
                if (fd >= 0 && send(fd, garbage, 1 + random_below(&random, sizeof garbage), MSG_NOSIGNAL) < 0) {
                    perror("send");
                }
                close(fd);
            }
            silent[silences] = connect_to(ports[i]);
            if (silent[silences] >= 0) {
                send(silent[silences++], "\1\2\3", 3, MSG_NOSIGNAL);
            }
            close(connect_to(ports[i]));
        }
        found += count;
    }
    printf("%d ports were visited\n", found);
    CHECK(found >= RANKS);
    await_flag(&what->minibatches, read_flag(&what->minibatches) + BESIDE_SILENCE);
    raise_flag(&what->scanned);
    while (silences > 0) {
        close(silent[--silences]);
    }
}

static void work_or_scan(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    if (rank == RANKS) {
        scan(what);
        return;
    }
    odc_context *context = join(rank, size - 1, job);
    tensor t = make_tensor(context, "layer", 100003, ODC_F32, ODC_F32);
    double scanned = 0;
    use_once(context, &t, 1, 1);
    set_flag(&what->pids[rank], getpid());
    for (uint64_t minibatch = 0; scanned == 0; ++minibatch) {
        scanned = read_flag(&what->scanned);
        CHECK_OK(odc_all_reduce(context, &scanned, 1, ODC_MAX));
        use_once(context, &t, 1, minibatch);
        if (rank == 0) {
            raise_flag(&what->minibatches);
        }
    }
    use_once(context, &t, 1, 5);
    odc_destroy(context);
}

static void foreign_clients_at_the_ports_of_a_job_harm_nobody(void **state) {
    (void)state;
    needs_processes("it looks for the ports of each rank");
    scene *what = share(sizeof *what);
    what->seed = test_seed();
    run_processes(RANKS + 1, work_or_scan, what);
}

int main(void) {
    setenv("ODC_TEST_HOSTS", "99", 0);
    setenv("ODC_INTERFACE", "lo", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_libfabric_ranks_of_several_hosts_read_why_they_cannot_join),
        cmocka_unit_test(without_libfabric_a_job_on_one_host_runs),
        cmocka_unit_test(wrong_settings_are_refused_with_the_names_there_are),
        cmocka_unit_test(foreign_clients_at_the_ports_of_a_job_harm_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
