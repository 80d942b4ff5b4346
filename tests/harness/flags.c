/* SPDX-License-Identifier: Apache-2.0 */
#include "flags.h"

#include "ranks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void sleep_us(int us) {
    struct timespec left = {us / 1000000, (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

void sleep_ms(int ms) { sleep_us(ms * 1000); }

void *share(size_t bytes) {
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        perror("mmap of a page for a test");
        exit(1);
    }
    return page;
}

void raise_flag(atomic_int *flag) { atomic_fetch_add_explicit(flag, 1, memory_order_relaxed); }

void set_flag(atomic_int *flag, int value) { atomic_store_explicit(flag, value, memory_order_relaxed); }

int read_flag(atomic_int *flag) { return atomic_load_explicit(flag, memory_order_relaxed); }

void await_flag(atomic_int *flag, int at_least) {
    int64_t deadline = now_ns() + 30 * (int64_t)1000000000;
    while (read_flag(flag) < at_least) {
        CHECK(now_ns() < deadline);
        sleep_us(200);
    }
}

void add_waiter(waiting_threads *all) {
    int index = atomic_fetch_add_explicit(&all->count, 1, memory_order_relaxed);
    CHECK(index < (int)(sizeof all->tids / sizeof all->tids[0]));
    set_flag(&all->tids[index], (int)syscall(SYS_gettid));
}

static char state_of(int pid, int tid) {
    char path[64];
    char text[256];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid); /* qemu-user answers /proc/PID/stat itself */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end != NULL && name_end[1] == ' ' ? name_end[2] : '?';
}

/* A thread on its way to its wait may sleep, too, in the kernel or for a lock, but hardly ten times in a row. */
void await_asleep(int tid) {
    enum { LOOKS = 10 };
    int64_t deadline = now_ns() + 30 * (int64_t)1000000000;
    for (int asleep = 0; asleep < LOOKS; asleep = state_of(tid, tid) == 'S' ? asleep + 1 : 0) {
        CHECK(now_ns() < deadline);
        sleep_us(500);
    }
}

void await_waiters(waiting_threads *all, int count) {
    await_flag(&all->count, count);
    for (int i = 0; i < count; ++i) {
        await_flag(&all->tids[i], 1);
        await_asleep(read_flag(&all->tids[i]));
    }
}

static bool all_threads_are_stopped(pid_t pid) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    CHECK(threads != NULL);
    bool stopped = true;
    for (struct dirent *thread = readdir(threads); thread != NULL; thread = readdir(threads)) {
        const int tid = atoi(thread->d_name);
        stopped = stopped && (tid == 0 || state_of(pid, tid) == 'T');
    }
    closedir(threads);
    return stopped;
}

/* A signal is under way for a while, in which the process's threads go on. */
void stop_process(pid_t pid) {
    int64_t deadline = now_ns() + 30 * (int64_t)1000000000;
    CHECK_EQUAL(kill(pid, SIGSTOP), 0);
    while (!all_threads_are_stopped(pid)) {
        CHECK(now_ns() < deadline);
        sleep_us(200);
    }
}
