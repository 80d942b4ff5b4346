/* SPDX-License-Identifier: Apache-2.0 */
/* The test harness: a run is a set of forked children; a failed check prints a message and ends its process, and the parent
 * fails the cmocka test. */
#include "gpu.h"
#include "hosts.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { MAX_RANKS = 64, MAX_EXTRA = 64, RUN_TIMEOUT_MS = 90000, LAST_ERRORS_MS = 4000 };

/* Written by the ranks, read by the watchdog. `file` is a literal, so its address is the same in the parent. */
typedef struct trace {
    struct {
        const char *_Atomic file;
        atomic_int line;
    } ranks[MAX_RANKS];
    atomic_int extra[MAX_EXTRA]; /* see kill_at_end */
    atomic_int extra_count;
} trace;

typedef struct run {
    const char *test;
    const char *job;
    int n;
    uint64_t mortal;
    rank_fn fn;
    void *arg;
} run;

static trace *trace_page;
static int inside_rank; /* whether this process was forked by a run */
static _Thread_local int current_rank = -1;

/* ---- Randomness ---- */

static uint64_t random_word(void) {
    uint64_t word = 0;
    if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word) {
        perror("getrandom");
        exit(1);
    }
    return word;
}

uint64_t test_seed(void) {
    const char *given = getenv("ODC_TEST_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : random_word() >> 16;
    printf("seed: ODC_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t random_below(uint64_t *state, uint64_t bound) { return next_random(state) % bound; }

/* ---- Checks ---- */

static void note_place(const char *file, int line) {
    if (current_rank >= 0 && trace_page != NULL) {
        atomic_store_explicit(&trace_page->ranks[current_rank].file, file, memory_order_relaxed);
        atomic_store_explicit(&trace_page->ranks[current_rank].line, line, memory_order_relaxed);
    }
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

__attribute__((format(printf, 3, 4))) static void give_up(const char *file, int line, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (inside_rank) {
        char who[32] = "a thread of a rank";
        if (current_rank >= 0) {
            snprintf(who, sizeof who, "rank %d", current_rank);
        }
        fflush(stdout);
        fprintf(stderr, "%s:%d: %s: %s\n", base_name(file), line, who, text);
        _exit(1);
    }
    fail_msg("%s:%d: %s", base_name(file), line, text);
}

void check_that(int holds, const char *what, const char *file, int line) {
    note_place(file, line);
    if (!holds) {
        give_up(file, line, "does not hold: %s", what);
    }
}

void check_equal(long long left, long long right, const char *what, const char *file, int line) {
    note_place(file, line);
    if (left != right) {
        give_up(file, line, "does not hold: %s (%lld and %lld)", what, left, right);
    }
}

void check_status(odc_status got, odc_status wanted, const char *call, const char *file, int line) {
    note_place(file, line);
    if (got != wanted) {
        give_up(file, line, "%s returned %d (%s), expected %d: %s", call, got, odc_status_string(got), wanted,
                got == ODC_OK ? "" : odc_last_error());
    }
}

/* "a|b" matches where a or b is. */
static int has_word(const char *sentence, const char *word) {
    char choices[256];
    snprintf(choices, sizeof choices, "%s", word);
    char *rest = choices;
    for (char *choice = strsep(&rest, "|"); choice != NULL; choice = strsep(&rest, "|")) {
        if (strcasestr(sentence, choice) != NULL) {
            return 1;
        }
    }
    return 0;
}

void check_sentence(const char *sentence, const char *what, const char *file, int line, const char **expected) {
    note_place(file, line);
    size_t length = strlen(sentence);
    if (length < 15 || length > 1000 || strchr(sentence, '\n') != NULL) {
        give_up(file, line, "%s: not one clear sentence: \"%s\"", what, sentence);
    }
    for (; *expected != NULL; ++expected) {
        if (!has_word(sentence, *expected)) {
            give_up(file, line, "%s: the error does not say \"%s\": \"%s\"", what, *expected, sentence);
        }
    }
}

void check_error(odc_status got, odc_status wanted, const char *call, const char *file, int line,
                 const char **expected) {
    check_status(got, wanted, call, file, line);
    check_sentence(odc_last_error(), call, file, line, expected);
}

void check_kept(odc_status got, odc_status wanted, const char *sentence, const char *call, const char *file, int line) {
    check_status(got, wanted, call, file, line);
    if (strcmp(odc_last_error(), sentence) != 0) {
        give_up(file, line, "%s: the error changed from \"%s\" to \"%s\"", call, sentence, odc_last_error());
    }
}

/* ---- Which kind of run ---- */

int ranks_are_threads(void) {
    const char *kind = getenv("ODC_TEST_RANKS");
    return kind != NULL && strcmp(kind, "threads") == 0;
}

void needs_processes(const char *why) {
    if (ranks_are_threads()) {
        printf("skipped, ranks are threads here: %s\n", why);
        skip();
    }
}

void needs_no_sanitizer(const char *why) {
    if (SANITIZED) {
        printf("skipped under a sanitizer: %s\n", why);
        skip();
    }
}

int slowdown(void) { return SANITIZED ? 20 : 1; }

int time_scale(void) {
    const char *times = getenv("ODC_TEST_TIME_SCALE");
    return times != NULL && atoi(times) > 1 ? atoi(times) : 1;
}

void kill_at_end(pid_t pid) {
    int index = atomic_fetch_add(&trace_page->extra_count, 1);
    CHECK(index < MAX_EXTRA);
    atomic_store(&trace_page->extra[index], pid);
}

static void outlive_rank(pid_t child) {
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        pause();
        _exit(0);
    }
    kill_at_end(child);
}

void leave_child(void) { outlive_rank(fork()); }

void leave_cloned_child(void) { outlive_rank((pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL)); }

void replace_program(void) {
    alarm(0); /* exec keeps an alarm; the run ends the program */
    execlp("sleep", "sleep", "1000", (char *)NULL);
    CHECK(0);
}

/* ---- Running ---- */

odc_config config_of(int rank, int size, const char *job) {
    odc_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.rank = rank;
    config.size = size;
    config.job = job;
    config.timeout_ms = 20000 * time_scale();
    config.device = gpu_of(rank);
    place_on_host(&config);
    return config;
}

odc_context *join_within(int rank, int size, const char *job, int64_t timeout_ms) {
    odc_config config = config_of(rank, size, job);
    config.timeout_ms = timeout_ms;
    odc_context *context = NULL;
    CHECK_OK(odc_init(&config, &context));
    return context;
}

odc_context *join(int rank, int size, const char *job) {
    return join_within(rank, size, job, config_of(rank, size, job).timeout_ms);
}

static void run_one(const run *what, int rank) {
    current_rank = rank;
    if (tests_gpu()) {
        gpu_choose(rank);
    }
    what->fn(rank, what->n, what->job, what->arg);
}

typedef struct thread_start {
    const run *what;
    int rank;
} thread_start;

static void *run_thread(void *arg) {
    const thread_start *start = arg;
    run_one(start->what, start->rank);
    return NULL;
}

static void run_threads(const run *what) {
    pthread_t threads[MAX_RANKS];
    thread_start starts[MAX_RANKS];
    for (int rank = 0; rank < what->n; ++rank) {
        starts[rank] = (thread_start){what, rank};
        CHECK(pthread_create(&threads[rank], NULL, run_thread, &starts[rank]) == 0);
    }
    for (int rank = 0; rank < what->n; ++rank) {
        pthread_join(threads[rank], NULL);
    }
}

/* Forks rank `rank`, or all ranks as threads of one child if rank is -1. exit(), not _exit(): leak checkers report at exit. */
static pid_t fork_child(const run *what, int rank) {
    fflush(NULL);
    pid_t parent = getpid();
    pid_t child = fork();
    if (child != 0) {
        return child;
    }
    inside_rank = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    alarm((unsigned)(2 * RUN_TIMEOUT_MS / 1000 * time_scale()));
    if (rank < 0) {
        run_threads(what);
    } else {
        run_one(what, rank);
    }
    exit(0);
}

static int is_mortal(const run *what, int rank) { return ((what->mortal >> rank) & 1) != 0; }

static void print_where(const run *what, int rank, const char *state) {
    const char *file = atomic_load(&trace_page->ranks[rank].file);
    fprintf(stderr, "%s: rank %d %s; its last check was %s:%d\n", what->test, rank, state,
            file != NULL ? base_name(file) : "none", atomic_load(&trace_page->ranks[rank].line));
}

/* Whether the child ended as the test wants. */
static int ended_well(const run *what, int rank, int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return 1;
    }
    if (WIFSIGNALED(status) && is_mortal(what, rank)) {
        return 1;
    }
    char state[64] = "failed";
    if (WIFSIGNALED(status)) {
        snprintf(state, sizeof state, "was ended by signal %d", WTERMSIG(status));
    } else if (WEXITSTATUS(status) != 1) {
        snprintf(state, sizeof state, "exited with status %d", WEXITSTATUS(status));
    }
    print_where(what, rank, state);
    return 0;
}

/* Sleeps until one of the children may have ended. */
static void wait_for_any(const int *pidfds, int count, int timeout_ms) {
    struct pollfd fds[MAX_RANKS];
    nfds_t used = 0;
    for (int i = 0; i < count; ++i) {
        if (pidfds[i] >= 0) {
            fds[used++] = (struct pollfd){pidfds[i], POLLIN, 0};
        }
    }
    if (used > 0) {
        poll(fds, used, timeout_ms);
    }
}

/* The children of a run that have not ended, by rank; -1 for those that have. */
typedef struct watching {
    const run *what;
    pid_t children[MAX_RANKS];
    int pidfds[MAX_RANKS];
    int count;
    int left;
    int good;
    int killed; /* the rest has been killed: how it ends does not count */
} watching;

static void reap_ended(watching *all) {
    for (int i = 0; i < all->count; ++i) {
        int status = 0;
        if (all->pidfds[i] < 0 || waitpid(all->children[i], &status, WNOHANG) != all->children[i]) {
            continue;
        }
        close(all->pidfds[i]);
        all->pidfds[i] = -1;
        --all->left;
        if (!all->killed && !ended_well(all->what, i, status)) {
            all->good = 0;
        }
    }
}

static int is_only_mortals_left(const watching *all) {
    int others = 0; /* children that are or were immortal */
    for (int i = 0; i < all->count; ++i) {
        if (!is_mortal(all->what, i)) {
            ++others;
            if (all->pidfds[i] >= 0) {
                return 0;
            }
        }
    }
    return others > 0;
}

/* The kernel's stack and state of a process that is stuck. */
static void print_doing(pid_t child) {
    static const char *const names[] = {"stat", "wchan", "syscall"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        char path[64];
        char line[128] = "unknown";
        snprintf(path, sizeof path, "/proc/%d/%s", (int)child, names[i]);
        FILE *file = fopen(path, "re");
        if (file != NULL) {
            if (fgets(line, sizeof line, file) == NULL) {
                snprintf(line, sizeof line, "empty");
            }
            fclose(file);
        }
        line[strcspn(line, "\n")] = '\0';
        fprintf(stderr, "  %s: %s\n", path, line);
    }
}

/* Of a child's rank, or of all ranks that are its threads. */
static void print_all_where(const watching *all, int child, const char *state) {
    const int as_threads = all->count < all->what->n;
    for (int rank = as_threads ? 0 : child; rank < (as_threads ? all->what->n : child + 1); ++rank) {
        print_where(all->what, rank, state);
    }
}

static void kill_left(watching *all, const char *state) {
    for (int i = 0; i < all->count; ++i) {
        if (all->pidfds[i] >= 0) {
            if (state != NULL) {
                print_all_where(all, i, state);
                print_doing(all->children[i]);
            }
            kill(all->children[i], SIGKILL);
        }
    }
    all->killed = 1;
}

/* Used where processes cannot be watched by pidfd. */
static int kill_unwatched(const watching *all) {
    for (int i = 0; i < all->count; ++i) {
        kill(all->children[i], SIGKILL);
        waitpid(all->children[i], NULL, 0);
    }
    return 0;
}

/* Kills the rest when all immortal children have ended, when the deadline has passed, or a while after the first failure.
 * Returns whether all ended well. */
static int watch(watching *all) {
    int64_t deadline = now_ns() + RUN_TIMEOUT_MS * (int64_t)1000000 * time_scale();
    for (int i = 0; i < all->count; ++i) {
        all->pidfds[i] = (int)syscall(SYS_pidfd_open, all->children[i], 0);
        if (all->pidfds[i] < 0) {
            fprintf(stderr, "%s: pidfd_open: %s\n", all->what->test, strerror(errno));
            return kill_unwatched(all);
        }
    }
    all->left = all->count;
    all->good = 1;
    while (all->left > 0) {
        int was_good = all->good;
        reap_ended(all);
        if (was_good && !all->good) {
            deadline = now_ns() + LAST_ERRORS_MS * (int64_t)1000000;
        }
        if (!all->killed && all->good && is_only_mortals_left(all)) {
            kill_left(all, NULL);
        } else if (!all->killed && now_ns() > deadline) {
            kill_left(all, all->good ? "was stuck" : "was still running");
            all->good = 0;
        }
        wait_for_any(all->pidfds, all->count, 1000);
    }
    return all->good;
}

/* A job may leave no socket with its name. */
static int left_socket(const run *what) {
    char line[512];
    int found = 0;
    FILE *file = fopen("/proc/net/unix", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        found |= strstr(line, what->job) != NULL;
    }
    if (file != NULL) {
        fclose(file);
    }
    if (found) {
        fprintf(stderr, "%s: left a socket named after job %s\n", what->test, what->job);
    }
    return found;
}

static void kill_extras(void) {
    for (int i = 0; i < atomic_load(&trace_page->extra_count); ++i) {
        pid_t pid = atomic_load(&trace_page->extra[i]);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

void run_processes_of(const char *test, int n, uint64_t mortal, rank_fn fn, void *arg) {
    char job[64];
    int as_threads = ranks_are_threads() && mortal == 0;
    watching all;
    snprintf(job, sizeof job, "test-%016llx", (unsigned long long)random_word());
    run what = {test, job, n, mortal, fn, arg};
    if (trace_page == NULL) {
        trace_page = share(sizeof *trace_page);
    }
    memset(trace_page, 0, sizeof *trace_page);
    prepare_hosts();
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans of killed ranks become this process's children and are reaped */
    memset(&all, 0, sizeof all);
    all.what = &what;
    all.count = as_threads ? 1 : n;
    for (int i = 0; i < all.count; ++i) {
        all.children[i] = fork_child(&what, as_threads ? -1 : i);
        if (all.children[i] < 0) {
            perror("fork");
            exit(1);
        }
    }
    int good = watch(&all);
    kill_extras();
    if (left_socket(&what) || !good) {
        fail_msg("%s failed; see above", test);
    }
}

typedef struct context_run {
    context_fn fn;
    void *arg;
} context_run;

static void run_context(int rank, int size, const char *job, void *arg) {
    const context_run *what = arg;
    odc_context *context = join(rank, size, job);
    what->fn(context, what->arg);
    odc_destroy(context);
}

void run_ranks_of(const char *test, int n, context_fn fn, void *arg) {
    context_run what = {fn, arg};
    run_processes_of(test, n, 0, run_context, &what);
}
