/* SPDX-License-Identifier: Apache-2.0 */
/* The log: what its lines are made of, who is handed which, and that a long wait says what it waits for. */
#include "model.h"
#include "rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_LINES = 4000, LONGEST = 4096 };

/* What one rank was handed. Written on threads that are in a call of the context, one at a time here. */
typedef struct heard {
    int count;
    int level_of[MOST_LINES];
    char *lines[MOST_LINES];
    const char *awaited; /* raises the flag: a line has these words */
    atomic_int *flag;
} heard;

static void hear(void *arg, int32_t level, const char *line) {
    heard *h = arg;
    CHECK(h->count < MOST_LINES);
    h->level_of[h->count] = level;
    h->lines[h->count] = strdup(line);
    CHECK(h->lines[h->count] != NULL);
    h->count++;
    if (h->awaited != NULL && strstr(line, h->awaited) != NULL) {
        set_flag(h->flag, 1);
    }
}

static void forget(heard *h) {
    for (int i = 0; i < h->count; ++i) {
        free(h->lines[i]);
    }
    h->count = 0;
}

static int count_of(const heard *h, int level, const char *text) {
    int count = 0;
    for (int i = 0; i < h->count; ++i) {
        count += h->level_of[i] == level && strstr(h->lines[i], text) != NULL;
    }
    return count;
}

static odc_context *join_with(odc_config config, int level, heard *h) {
    config.group = "actor";
    config.log = hear;
    config.log_arg = h;
    config.log_level = level;
    odc_context *context = NULL;
    CHECK_OK(odc_init(&config, &context));
    return context;
}

static odc_context *join_logged(int rank, int size, const char *job, int level, heard *h) {
    return join_with(config_of(rank, size, job), level, h);
}

static const char *const level_names[] = {"", "error", "warn", "info", "debug", "trace"};

/* Time, level, rank, host, process, minibatch and group. */
static void check_format(const heard *h, int rank, int size) {
    char pattern[300];
    regex_t format;
    snprintf(pattern, sizeof pattern,
             "^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\\.[0-9]{6}Z odc "
             "(error|warn|info|debug|trace) rank=%d/%d host=[^ ].* pid=%d minibatch=[0-9]+ group=actor: [^ ].*$",
             rank, size, (int)getpid());
    CHECK_EQUAL(regcomp(&format, pattern, REG_EXTENDED | REG_NOSUB), 0);
    for (int i = 0; i < h->count; ++i) {
        if (regexec(&format, h->lines[i], 0, NULL, 0) != 0) {
            fprintf(stderr, "%s\nis not as %s\n", h->lines[i], pattern);
        }
        CHECK_EQUAL(regexec(&format, h->lines[i], 0, NULL, 0), 0);
        char name[16];
        snprintf(name, sizeof name, " odc %s ", level_names[h->level_of[i]]);
        CHECK(strstr(h->lines[i], name) != NULL);
        CHECK(strchr(h->lines[i], '\n') == NULL);
    }
    regfree(&format);
}

static void use(odc_context *context, tensor t) {
    float full[1000];
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_gather(t.shard, full, t.numel, NULL));
    CHECK_OK(odc_minibatch_sync(context));
}

static void tell_all(int rank, int size, const char *job, void *arg) {
    (void)arg;
    heard h = {0};
    odc_context *context = join_logged(rank, size, job, ODC_LOG_TRACE, &h);
    CHECK_EQUAL(count_of(&h, ODC_LOG_INFO, "joins job \""), 1);
    CHECK_EQUAL(count_of(&h, ODC_LOG_INFO, "has joined after"), 1);
    CHECK_EQUAL(count_of(&h, ODC_LOG_INFO, "runs libodc"), 1);
    CHECK(count_of(&h, ODC_LOG_INFO, "reaches the host memory of ") >= 1);
    CHECK_EQUAL(count_of(&h, ODC_LOG_DEBUG, "reaches the host memory of rank "), size - 1);
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    CHECK_EQUAL(count_of(&h, ODC_LOG_DEBUG, "registers shard \"layer\", here "), 1);
    use(context, t);
    CHECK_EQUAL(count_of(&h, ODC_LOG_TRACE, "calls odc_gather of shard \"layer\""), 1);
    CHECK_EQUAL(count_of(&h, ODC_LOG_DEBUG, " minibatch=0 group=actor: syncs; "), 1);
    use(context, t);
    CHECK_EQUAL(count_of(&h, ODC_LOG_DEBUG, " minibatch=1 group=actor: syncs; "), 1);
    CHECK_EQUAL(
        count_of(&h, ODC_LOG_DEBUG, ": syncs; this rank came last") + count_of(&h, ODC_LOG_DEBUG, " us after this one"),
        2);
    CHECK_ERROR(odc_gather(t.shard, NULL, 1, NULL), ODC_ERROR_ARGUMENT, "elements");
    CHECK_EQUAL(count_of(&h, ODC_LOG_DEBUG, "the buffer has 1 elements"), 1);
    CHECK_OK(odc_shutdown(context));
    CHECK_EQUAL(count_of(&h, ODC_LOG_INFO, "leaves the job in minibatch 2"), 1);
    odc_destroy(context);
    check_format(&h, rank, size);
    CHECK_EQUAL(count_of(&h, ODC_LOG_WARN, "") + count_of(&h, ODC_LOG_ERROR, ""), 0);
    forget(&h);
}

static void lines_say_who_when_and_what(void **state) {
    (void)state;
    run_processes(3, tell_all, NULL);
}

/* Lines of a process that is no rank yet have its host, process and group. */
static void fail_to_join(int rank, int size, const char *job, void *arg) {
    (void)rank, (void)arg;
    heard h = {0};
    odc_config config = config_of(size, size, job);
    config.group = "actor";
    config.log = hear;
    config.log_arg = &h;
    config.log_level = ODC_LOG_TRACE;
    odc_context *context = NULL;
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_ARGUMENT, "is not in 0..");
    CHECK_EQUAL(h.count, 1);
    char pattern[200];
    regex_t format;
    snprintf(pattern, sizeof pattern,
             "Z odc info host=[^ ]+ pid=%d group=actor: cannot join, wrong argument: ", (int)getpid());
    CHECK_EQUAL(regcomp(&format, pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&format, h.lines[0], 0, NULL, 0) != 0) {
        fprintf(stderr, "%s\nis not as %s\n", h.lines[0], pattern);
    }
    CHECK_EQUAL(regexec(&format, h.lines[0], 0, NULL, 0), 0);
    regfree(&format);
    forget(&h);
}

static void a_line_before_joining_says_where(void **state) {
    (void)state;
    run_processes(1, fail_to_join, NULL);
}

static void tell_nothing(int rank, int size, const char *job, void *arg) {
    (void)arg;
    heard h = {0};
    odc_context *context = join_logged(rank, size, job, ODC_LOG_WARN, &h);
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    use(context, t);
    odc_destroy(context);
    CHECK_EQUAL(h.count, 0);
}

static void a_healthy_job_warns_of_nothing(void **state) {
    (void)state;
    run_processes(2, tell_nothing, NULL);
}

/* Rank 1 publishes when rank 0's log has said that it waits for that. */
static void publish_when_awaited(int rank, int size, const char *job, void *arg) {
    heard h = {.awaited = rank == 0 ? "has not published shard \"layer\" in minibatch 0; it " : NULL, .flag = arg};
    odc_context *context = join_logged(rank, size, job, ODC_LOG_INFO, &h);
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    if (rank == 1) {
        CHECK_OK(odc_all_reduce(context, (double[]){1}, 1, ODC_SUM));
        await_flag(arg, 1);
    } else {
        CHECK_OK(odc_all_reduce(context, (double[]){1}, 1, ODC_SUM));
    }
    use(context, t);
    if (rank == 0) {
        CHECK(count_of(&h, ODC_LOG_INFO, " s in odc_gather: rank 1 (host ") >= 1);
    }
    odc_destroy(context);
    forget(&h);
}

static void a_long_wait_says_whom_it_waits_for(void **state) {
    (void)state;
    run_processes(2, publish_when_awaited, share(sizeof(atomic_int)));
}

/* Rank 1 comes when rank 0's log has said that it is missing. */
static void come_when_missed(int rank, int size, const char *job, void *arg) {
    heard h = {.awaited = rank == 0 ? "missing: rank 1" : NULL, .flag = arg};
    if (rank == 1) {
        await_flag(arg, 1);
    }
    odc_context *context = join_logged(rank, size, job, ODC_LOG_INFO, &h);
    odc_destroy(context);
    forget(&h);
}

static void joining_says_who_is_missing(void **state) {
    (void)state;
    needs_one_host("ranks meet in an all-gather of the test");
    run_processes(2, come_when_missed, share(sizeof(atomic_int)));
}

/* Rank 0 comes when the log of rank 1 has said that nobody listens yet. */
static void come_when_looked_for(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    const char *said = what->by_name ? "rank 0 does not listen at \"" : "has not reached rank 0 yet (127.0.0.1:";
    heard h = {.awaited = rank == 1 ? said : NULL, .flag = &what->flag};
    if (rank == 0) {
        await_flag(&what->flag, 1);
    }
    odc_config config = scene_config(what, rank, size, job);
    config.host = "here";
    odc_context *context = join_with(config, ODC_LOG_TRACE, &h);
    if (rank == 1) {
        CHECK(count_of(&h, what->by_name ? ODC_LOG_TRACE : ODC_LOG_DEBUG, "; tries again") >= 1);
    } else if (!what->by_name) {
        CHECK_EQUAL(count_of(&h, ODC_LOG_DEBUG, " on here) has come to round 1, with it 2 of 2"), 1);
    }
    odc_destroy(context);
    forget(&h);
}

static void joining_says_that_it_tries_again(void **state) {
    (void)state;
    needs_one_host("ranks meet in an all-gather of the test");
    both_ways(come_when_looked_for, 2);
}

static void fail_all(int rank, int size, const char *job, void *arg) {
    (void)arg;
    heard h = {0};
    odc_context *context = join_logged(rank, size, job, ODC_LOG_ERROR, &h);
    if (rank == 1) {
        CHECK_OK(odc_abort(context, "two\nlines"));
    }
    CHECK(odc_minibatch_sync(context) == ODC_ERROR_ABORTED);
    CHECK(odc_minibatch_sync(context) == ODC_ERROR_ABORTED);
    odc_destroy(context);
    CHECK_EQUAL(h.count, 1);
    CHECK_EQUAL(count_of(&h, ODC_LOG_ERROR, ") aborted the job in minibatch 0: two lines"), 1);
    check_format(&h, rank, size);
    forget(&h);
}

static void a_job_error_is_one_line_of_each_rank(void **state) {
    (void)state;
    run_processes(3, fail_all, NULL);
}

/* Each rank's halves are much larger than staging; the line comes with a later call. */
static void fill_staging(int rank, int size, const char *job, void *arg) {
    (void)arg;
    enum { NUMEL = 1 << 20, MOST_SYNCS = 3000 };
    heard h = {0};
    CHECK_EQUAL(setenv("ODC_STAGING_BYTES", "262144", 1), 0);
    odc_context *context = join_logged(rank, size, job, ODC_LOG_DEBUG, &h);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    float *full = calloc(NUMEL, sizeof *full);
    CHECK(full != NULL);
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, NULL));
    free(full);
    int lines = 0;
    double told = 0;
    for (int i = 0; told < size; ++i) {
        CHECK(i < MOST_SYNCS);
        sleep_ms(i > 0 ? 10 : 0);
        const int now = count_of(&h, ODC_LOG_DEBUG, "staging of 262144 bytes was full ");
        CHECK_EQUAL(count_of(&h, ODC_LOG_DEBUG, " times, and the provider had no room "), now);
        lines += now;
        forget(&h);
        told = lines > 0;
        CHECK_OK(odc_minibatch_sync_reduce(context, &told, 1, ODC_SUM));
        CHECK_OK(odc_publish_all(context, NULL));
    }
    odc_destroy(context);
    forget(&h);
}

static void full_staging_is_told(void **state) {
    (void)state;
    needs_processes("it sets ODC_STAGING_BYTES");
    if (!several_hosts()) {
        puts("skipped: all ranks are on one host");
        skip();
    }
    run_processes(2, fill_staging, NULL);
}

static void check_level(int level, const char *message) {
    odc_config config = config_of(0, 1, "level");
    odc_context *context = NULL;
    config.log_level = level;
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_ARGUMENT, message);
    CHECK(context == NULL);
}

static void wrong_levels_are_refused(void **state) {
    (void)state;
    needs_processes("it sets ODC_LOG");
    check_level(6, "log_level 6 is no odc_log_level");
    check_level(-1, "log_level -1 is no odc_log_level");
    CHECK_EQUAL(setenv("ODC_LOG", "loud", 1), 0);
    check_level(0, "ODC_LOG=\"loud\" is wrong: it must be error, warn, info, debug or trace");
    odc_config config = config_of(0, 1, "level");
    odc_context *context = NULL;
    config.log_level = ODC_LOG_ERROR; /* given, so ODC_LOG is not asked */
    CHECK_OK(odc_init(&config, &context));
    odc_destroy(context);
    config.log_level = 0;
    config.reserved = 1;
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_ARGUMENT, "reserved is 1, must be 0");
    CHECK_EQUAL(unsetenv("ODC_LOG"), 0);
}

enum { BROKEN_PIPE, PIPE, TERMINAL, SOCKET, KINDS };

/* As a program has it, which writes "\r\n" for "\n": then one that takes anything may not take a line. */
static void open_terminal(int ends[2]) {
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
    CHECK(ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0);
    ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
    CHECK(ends[1] >= 0);
}

/* Makes standard error something that nobody reads. Returns its reading end, or -1; *before: standard error. */
static int spoil_stderr(int kind, int *before) {
    int ends[2];
    if (kind == TERMINAL) {
        open_terminal(ends);
    } else {
        CHECK_EQUAL(kind == SOCKET ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends), 0);
    }
    *before = dup(STDERR_FILENO);
    CHECK(*before >= 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    close(ends[1]);
    if (kind == BROKEN_PIPE) {
        close(ends[0]);
        return -1;
    }
    CHECK_EQUAL(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    return ends[0];
}

/* Reads what there is, and what comes within 10 ms of it. */
static void drain(int reader, char *text, size_t room) {
    size_t length = 0;
    struct pollfd entry = {reader, POLLIN, 0};
    while (poll(&entry, 1, 10) == 1) {
        const ssize_t more = read(reader, text + length, room - length - 1);
        CHECK(more > 0);
        length += (size_t)more;
    }
    text[length] = '\0';
}

/* What was lost is told once there is room. */
static int tells_of_lost_lines(int reader, odc_shard *shard) {
    static char text[1 << 20];
    const int64_t until = now_ns() + 30000000000;
    do {
        CHECK_ERROR(odc_gather(shard, NULL, 1, NULL), ODC_ERROR_ARGUMENT, "elements"); /* a line */
        drain(reader, text, sizeof text);
        if (strstr(text, " odc warn rank=") != NULL &&
            strstr(text, " lines are lost: standard error had no room") != NULL) {
            return 1;
        }
    } while (now_ns() < until);
    return 0;
}

static void print_in_vain(int rank, int size, const char *job, void *arg) {
    enum { MINIBATCHES = 300 }; /* of more than 1 KB each, more than any of them takes */
    int before = -1;
    int reader = spoil_stderr(*(const int *)arg, &before);
    odc_config config = config_of(rank, size, job);
    config.log_level = ODC_LOG_TRACE;
    odc_context *context = NULL;
    CHECK_OK(odc_init(&config, &context));
    tensor t = make_tensor(context, "layer", 1000, ODC_F32, ODC_F32);
    for (int i = 0; i < MINIBATCHES; ++i) { /* all ranks go on */
        use(context, t);
    }
    const int told = reader < 0 || tells_of_lost_lines(reader, t.shard);
    CHECK_EQUAL(dup2(before, STDERR_FILENO), STDERR_FILENO);
    CHECK(told);
    odc_destroy(context);
}

static void standard_error_that_nobody_reads_stops_nobody(void **state) {
    (void)state;
    needs_processes("each has a standard error of its own");
    for (int kind = 0; kind < KINDS; ++kind) {
        run_processes(2, print_in_vain, &kind);
    }
}

typedef struct cancelled {
    const char *job;
    atomic_int entered;
    atomic_int returned;
    atomic_int survived;
} cancelled;

static void *join_in_vain(void *arg) {
    cancelled *self = arg;
    odc_config config = config_of(0, 2, self->job);
    config.timeout_ms = 500;
    config.log_level = ODC_LOG_TRACE;
    odc_context *context = NULL;
    set_flag(&self->entered, 1);
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_RENDEZVOUS, "missing: rank 1");
    set_flag(&self->returned, 1);
    pthread_testcancel();
    set_flag(&self->survived, 1);
    return NULL;
}

static void cancel_one_that_logs(int rank, int size, const char *job, void *arg) {
    cancelled one = {.job = job};
    pthread_t thread;
    (void)rank, (void)size, (void)arg;
    CHECK_EQUAL(pthread_create(&thread, NULL, join_in_vain, &one), 0);
    await_flag(&one.entered, 1);
    CHECK_EQUAL(pthread_cancel(thread), 0);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK(read_flag(&one.returned) && !read_flag(&one.survived));
}

static void a_cancelled_thread_logs_its_error(void **state) {
    (void)state;
    needs_one_host("there the all-gather waits, and not the library");
    run_processes(1, cancel_one_that_logs, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_say_who_when_and_what),
        cmocka_unit_test(a_line_before_joining_says_where),
        cmocka_unit_test(a_healthy_job_warns_of_nothing),
        cmocka_unit_test(a_long_wait_says_whom_it_waits_for),
        cmocka_unit_test(joining_says_who_is_missing),
        cmocka_unit_test(joining_says_that_it_tries_again),
        cmocka_unit_test(a_job_error_is_one_line_of_each_rank),
        cmocka_unit_test(full_staging_is_told),
        cmocka_unit_test(wrong_levels_are_refused),
        cmocka_unit_test(standard_error_that_nobody_reads_stops_nobody),
        cmocka_unit_test(a_cancelled_thread_logs_its_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
