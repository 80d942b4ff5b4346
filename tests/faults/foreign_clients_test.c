/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that do not belong to the job: without the secret or with a wrong one, garbage and silence at rank 0's port or
 * name, another program in rank 0's place. None of them keeps the ranks from joining, and the error for missing ranks mentions
 * them. */
#include "rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/un.h>
#include <unistd.h>

enum { CLIENTS = 70 };

/* ---- Secrets ---- */

/* Rank 2 is refused at once; then rank 1 comes, and its deadline ends odc_init. */
static void one_wrong_secret(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    config.timeout_ms = rank == 1 ? DEADLINE_MS : ENDLESS_MS;
    if (rank == 2) {
        config.secret = "another";
        FAIL_INIT(&config, what->at.text, "rank 0", "rank 2", "ODC_SECRET");
        set_flag(&what->flag, 1);
        return;
    }
    if (rank == 1) {
        await_flag(&what->flag, 1);
        FAIL_INIT_LATE(&config, AT_OWN_DEADLINE);
        return;
    }
    FAIL_INIT(&config, what->at.text, "rank 2", "missing", "1 connection", "127.0.0.1: wrong secret");
}

static void test_wrong_secret(void **state) {
    (void)state;
    over_tcp(one_wrong_secret, 3);
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
    over_tcp(no_secret, 2);
}

/* ---- Another program in rank 0's place ---- */

/* Another program listens on rank 0's port: variant 0 sends nothing, 1 speaks another protocol. */
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
    if (what->variant == 1) {
        FAIL_INIT(&config, what->at.text, "not rank 0 of a libodc job");
    } else {
        config.timeout_ms = 1000;
        FAIL_INIT_LATE(&config, what->at.text, "rank 0", "does not answer");
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

/* ---- Foreign clients at the port ---- */

static void say_garbage(int fd, int kind) {
    unsigned char bytes[512];
    memset(bytes, 0xa5, sizeof bytes);
    memcpy(bytes, kind % 2 == 0 ? "GET / HTTP/1.1\r\n\r\n" : "odc meet", kind % 2 == 0 ? 18 : 8);
    size_t sizes[] = {0, 1, 5, 128, 300, sizeof bytes};
    size_t size = sizes[(size_t)kind % 6];
    if (size > 0) {
        /* The connection may be closed while it still sends. */
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        CHECK(sent > 0 || errno == EPIPE || errno == ECONNRESET);
    }
    if (kind % 7 == 6) {
        shutdown(fd, SHUT_WR);
    }
}

/* Waits until rank 0 has closed the connection. */
static void await_dismissed(int fd) {
    char byte = 0;
    struct pollfd entry = {fd, POLLIN, 0};
    CHECK(poll(&entry, 1, 30000) == 1);
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    CHECK(got == 0 || (got < 0 && errno == ECONNRESET));
}

/* If rank 0 served one after the other, the silent ones would delay it beyond the deadline. */
static void foreign_clients_come_first(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size, job);
    int fds[CLIENTS];
    if (rank == 1) {
        for (int i = 0; i < CLIENTS; ++i) {
            fds[i] = connect_foreign_client(&what->at);
            say_garbage(fds[i], i);
        }
    }
    int64_t begin = now_ns();
    join_and_use(&config);
    if (rank == 1) {
        what->begun_at = begin;
        what->ended_at[rank] = now_ns();
        for (int i = 0; i < CLIENTS; ++i) {
            close(fds[i]);
        }
    }
}

static void test_foreign_clients_at_the_port(void **state) {
    (void)state;
    scene *what = new_scene(0);
    run_processes(3, foreign_clients_come_first, what);
    printf("%s: met and used beside %d foreign clients within %.0f ms\n", __func__, (int)CLIENTS,
           (double)(what->ended_at[1] - what->begun_at) * 1e-6);
    end_scene(what);
}

/* Rank 2 does not come; the deadline of rank 1, which begins after the clients were dismissed, ends odc_init. */
static void foreign_clients_are_reported(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size + 1, job);
    config.timeout_ms = rank == 1 ? DEADLINE_MS : ENDLESS_MS;
    if (rank == 1) {
        close(connect_foreign_client(&what->at));
        int garbage = connect_foreign_client(&what->at);
        say_garbage(garbage, 4);
        await_dismissed(garbage);
        close(garbage);
        FAIL_INIT_LATE(&config, AT_OWN_DEADLINE);
        return;
    }
    FAIL_INIT(&config, "missing", "rank 2", "127.0.0.1: not a rank", "127.0.0.1: closed");
}

static void test_foreign_clients_are_reported(void **state) {
    (void)state;
    over_tcp(foreign_clients_are_reported, 2);
}

static void a_client_is_silent(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    odc_config config = scene_config(what, rank, size + 1, job);
    config.timeout_ms = rank == 1 ? DEADLINE_MS : ENDLESS_MS;
    if (rank == 1) {
        int silent = connect_foreign_client(&what->at);
        await_dismissed(silent);
        close(silent);
        FAIL_INIT_LATE(&config, AT_OWN_DEADLINE);
        return;
    }
    FAIL_INIT(&config, "missing", "rank 2", "127.0.0.1: silent");
}

static void test_silent_client(void **state) {
    (void)state;
    over_tcp(a_client_is_silent, 2);
}

/* ---- Foreign clients at the name ---- */

/* The abstract Unix socket with the job's name, as the kernel lists it. */
static socklen_t find_unix_socket(const char *job, struct sockaddr_un *address) {
    char line[512];
    for (int64_t deadline = now_ns() + 30000000000; now_ns() < deadline; sleep_ms(5)) {
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

static void foreign_clients_at_name(int rank, int size, const char *job, void *arg) {
    odc_config config = scene_config(arg, rank, size, job);
    int fds[CLIENTS];
    if (rank == 1) {
        struct sockaddr_un address;
        socklen_t bytes = find_unix_socket(job, &address);
        for (int i = 0; i < CLIENTS; ++i) {
            fds[i] = connect_client(SOCK_SEQPACKET, (const struct sockaddr *)&address, bytes);
            say_garbage(fds[i], i);
        }
    }
    join_and_use(&config);
    if (rank == 1) {
        for (int i = 0; i < CLIENTS; ++i) {
            close(fds[i]);
        }
    }
}

static void test_foreign_clients_at_the_name(void **state) {
    (void)state;
    scene *what = new_scene(1);
    run_processes(3, foreign_clients_at_name, what);
    end_scene(what);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_secret),
        cmocka_unit_test(test_missing_secret),
        cmocka_unit_test(test_port_of_another_program),
        cmocka_unit_test(test_foreign_clients_at_the_port),
        cmocka_unit_test(test_foreign_clients_are_reported),
        cmocka_unit_test(test_silent_client),
        cmocka_unit_test(test_foreign_clients_at_the_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
