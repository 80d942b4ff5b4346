/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a test meet: at a TCP port with a secret, or by the job's name on this host. */
#ifndef ODC_TESTS_RENDEZVOUS_H
#define ODC_TESTS_RENDEZVOUS_H

#include "ranks.h"

#include <sys/socket.h>

/* Ranks that meet have GENEROUS_MS, so that a busy machine breaks no test. Where a test waits for a deadline to pass, that is
 * DEADLINE_MS, many times the duration of a handshake. ENDLESS_MS is beyond the watchdog: something else must end such a rank.
 * */
enum { DEADLINE_MS = 3000, GENEROUS_MS = 30000, ENDLESS_MS = 600000 };

/* The port is bound but not listening while the test runs, so that the kernel gives it to no other process; SO_REUSEADDR lets
 * rank 0 listen on it. */
typedef struct place {
    char text[64];
    int family;
    int port;
    int holder;
} place;

/* Binds a socket to a free port; its holder is -1 where this machine lacks the address family. */
place hold_place(int family);
socklen_t address_of(const place *at, struct sockaddr_storage *out);
/* A socket of this type (SOCK_STREAM...), connected to the address as soon as a process listens there. */
int connect_client(int type, const struct sockaddr *address, socklen_t bytes);
int connect_foreign_client(const place *at);

typedef struct scene {
    place at;
    int by_name; /* meet by the job's name on this host instead of at `at` */
    int variant;
    atomic_int flag;
    atomic_int gathered; /* calls of gather_by_page that have read all inputs */
    atomic_int pids[8];
    atomic_int looks[8]; /* calls of each rank's `interrupted` */
    _Atomic int64_t begun_at;
    _Atomic int64_t ended_at[8];
    unsigned char inputs[8][4096];
} scene;

scene *new_scene(int by_name);
void end_scene(scene *what);
/* Runs n ranks in a scene over TCP. */
void over_tcp(rank_fn fn, int n);
/* Runs n ranks in a scene over TCP and in one by name. */
void both_ways(rank_fn fn, int n);

/* With timeout GENEROUS_MS; `interrupted` counts its calls in looks. */
odc_config scene_config(scene *what, int rank, int size, const char *job);
/* An all-gather callback through the scene's memory. */
typedef struct gatherer {
    scene *what;
    int rank;
    int size;
    int result;
    int calls;
} gatherer;
/* With timeout GENEROUS_MS. */
odc_config gather_config(gatherer *self);

/* Waits until ranks 0..n-1, which wait for another rank, have met: all were accepted by rank 0. */
void await_met(scene *what, int n);

/* odc_init, one reduction, one minibatch, odc_destroy, checked. */
void join_and_use(const odc_config *config);

/* What the rank reads whose deadline ends odc_init: rank 0's error, or that rank 0 was too busy to send it in time. Ranks with
 * later deadlines read rank 0's error in any case. */
#define AT_OWN_DEADLINE "missing|does not answer"

/* odc_init fails to meet, with an error that contains these texts. */
#define FAIL_INIT(config, ...)                                                   \
    do {                                                                         \
        odc_context *none = (odc_context *)1;                                    \
        CHECK_ERROR(odc_init(config, &none), ODC_ERROR_RENDEZVOUS, __VA_ARGS__); \
        CHECK(none == NULL);                                                     \
    } while (0)

/* The same, and not before its deadline (which ranks exchange in whole milliseconds). */
#define FAIL_INIT_LATE(config, ...)                                       \
    do {                                                                  \
        int64_t begin = now_ns();                                         \
        FAIL_INIT(config, __VA_ARGS__);                                   \
        CHECK((now_ns() - begin) / 1000000 >= (config)->timeout_ms - 10); \
    } while (0)

#endif
