/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child keeps nothing of the job, so it may outlive the ranks (as a data loader does) without holding their memory;
 * and ranks may fork, exec and call system() in the middle of a job. */
#include "model.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, MOST_FDS = 1024, NUMEL = 1000000 };

typedef struct scene {
    atomic_int ready; /* ranks and children */
    atomic_int pids[RANKS];
    atomic_int children[RANKS];
} scene;

static int is_shared_memory(const char *name) {
    return strstr(name, "memfd:odc") != NULL || strstr(name, "memfd:libodc") != NULL;
}

/* How many of libodc's files `pid` has open. Watches them unless `watcher` is -1; watches are numbered from 1, one per file,
 * and `*files` becomes the highest number. */
static int count_open(int pid, int watcher, int *files) {
    char path[300];
    char name[256];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    CHECK(folder != NULL);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, entry->d_name);
        ssize_t length = readlink(path, name, sizeof name - 1);
        name[length > 0 ? length : 0] = '\0';
        if (is_shared_memory(name)) {
            ++count;
            int watch = watcher < 0 ? 0 : inotify_add_watch(watcher, path, IN_DELETE_SELF);
            CHECK(watch >= 0);
            *files = watch > *files ? watch : *files;
        }
    }
    closedir(folder);
    return count;
}

static int count_mapped(int pid) {
    char line[600];
    int count = 0;
    snprintf(line, sizeof line, "/proc/%d/maps", pid);
    FILE *maps = fopen(line, "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        count += is_shared_memory(line);
    }
    fclose(maps);
    return count;
}

/* ---- Killed ranks ---- */

static void wait_for_the_end(void) {
    alarm(60);
    for (;;) {
        pause();
    }
}

static void fork_and_be_killed(scene *what, int rank, const char *job) {
    odc_context *context = join(rank, RANKS, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 3); /* maps the other ranks' slices */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        raise_flag(&what->ready);
        wait_for_the_end();
    }
    kill_at_end(child);
    set_flag(&what->pids[rank], getpid());
    set_flag(&what->children[rank], child);
    raise_flag(&what->ready);
    wait_for_the_end();
}

/* A watch reports its file as deleted when nothing refers to it any more: its memory has been freed. */
static void await_deletions(int watcher, int count) {
    struct pollfd entry = {watcher, POLLIN, 0};
    for (int deleted = 0; deleted < count;) {
        struct inotify_event event;
        CHECK(poll(&entry, 1, 30000) == 1);
        CHECK_EQUAL(read(watcher, &event, sizeof event), sizeof event);
        deleted += (event.mask & IN_DELETE_SELF) != 0;
    }
}

static void kill_ranks(scene *what) {
    int watcher = inotify_init1(IN_CLOEXEC);
    int files = 0;
    CHECK(watcher >= 0);
    await_flag(&what->ready, 2 * RANKS);
    for (int rank = 0; rank < RANKS; ++rank) {
        int pid = read_flag(&what->pids[rank]);
        CHECK(count_open(pid, watcher, &files) > 0);
        CHECK(count_mapped(pid) > 0);
    }
    CHECK(files >= RANKS);
    for (int rank = 0; rank < RANKS; ++rank) {
        CHECK_EQUAL(count_open(read_flag(&what->children[rank]), -1, &files), 0);
        CHECK_EQUAL(count_mapped(read_flag(&what->children[rank])), 0);
        CHECK(kill(read_flag(&what->pids[rank]), SIGKILL) == 0);
    }
    await_deletions(watcher, files);
    close(watcher);
    for (int rank = 0; rank < RANKS; ++rank) {
        CHECK(kill(read_flag(&what->children[rank]), 0) == 0);
    }
}

static void be_rank_or_kill_them(int rank, int size, const char *job, void *arg) {
    (void)size;
    if (rank < RANKS) {
        fork_and_be_killed(arg, rank, job);
    } else {
        kill_ranks(arg);
    }
}

static void children_of_killed_ranks_hold_no_memory(void **state) {
    (void)state;
    needs_processes("it kills ranks");
    run_mortals(RANKS + 1, (1 << RANKS) - 1, be_rank_or_kill_them, share(sizeof(scene)));
}

/* ---- Ranks that live on ---- */

static int is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

/* The child's new descriptors have the numbers that the job's had; the parent's handles must not close them. */
static void use_freed_descriptors(odc_context *context, const int *before) {
    for (int fd = 0; fd < MOST_FDS; ++fd) {
        CHECK(is_open(fd) == before[fd] || several_hosts()); /* libfabric keeps some */
    }
    int fds[64];
    for (int i = 0; i < 64; ++i) {
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        CHECK(fds[i] >= 0);
    }
    odc_destroy(context);
    for (int i = 0; i < 64; ++i) {
        CHECK(is_open(fds[i]));
    }
}

static void await_child(pid_t child) {
    int status = -1;
    CHECK(child > 0);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
}

static void fork_in_a_job(int rank, int size, const char *job, void *arg) {
    static int before[MOST_FDS];
    (void)arg;
    for (int fd = 0; fd < MOST_FDS; ++fd) {
        before[fd] = is_open(fd);
    }
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    for (uint64_t round = 0; round < 3; ++round) {
        use_once(context, &t, 1, 2 * round);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            use_freed_descriptors(context, before);
            _exit(0);
        }
        use_once(context, &t, 1, 2 * round + 1);
        await_child(child);
        CHECK_EQUAL(system("exit 0"), 0);
        child = fork();
        if (child == 0) {
            execlp("true", "true", (char *)NULL);
            _exit(1);
        }
        await_child(child);
    }
    use_once(context, &t, 1, 9);
    odc_destroy(context);
}

static void ranks_fork_and_exec_in_the_middle_of_a_job(void **state) {
    (void)state;
    needs_processes("it forks ranks");
    run_processes(RANKS, fork_in_a_job, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_of_killed_ranks_hold_no_memory),
        cmocka_unit_test(ranks_fork_and_exec_in_the_middle_of_a_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
