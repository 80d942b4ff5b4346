/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous.h"

#include <netinet/in.h>
#include <stdio.h>
#include <unistd.h>

socklen_t address_of(const place *at, struct sockaddr_storage *out) {
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

place hold_place(int family) {
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

int connect_client(int type, const struct sockaddr *address, socklen_t bytes) {
    int fd = socket(address->sa_family, type | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    for (int64_t deadline = now_ns() + 30000000000; connect(fd, address, bytes) != 0; sleep_ms(1)) {
        CHECK(now_ns() < deadline);
    }
    return fd;
}

int connect_foreign_client(const place *at) {
    struct sockaddr_storage address;
    const socklen_t bytes = address_of(at, &address);
    return connect_client(SOCK_STREAM, (const struct sockaddr *)&address, bytes);
}

scene *new_scene(int by_name) {
    scene *what = share(sizeof *what);
    what->by_name = by_name;
    what->at.holder = -1;
    if (!by_name) {
        what->at = hold_place(AF_INET);
        CHECK(what->at.holder >= 0);
    }
    return what;
}

void end_scene(scene *what) {
    if (what->at.holder >= 0) {
        close(what->at.holder);
    }
}

void over_tcp(rank_fn fn, int n) {
    scene *what = new_scene(0);
    run_processes(n, fn, what);
    end_scene(what);
}

void both_ways(rank_fn fn, int n) {
    for (int by_name = 0; by_name <= 1; ++by_name) {
        scene *what = new_scene(by_name);
        run_processes(n, fn, what);
        end_scene(what);
    }
}

static int count_looks(void *arg) {
    raise_flag(arg);
    return 0;
}

odc_config scene_config(scene *what, int rank, int size, const char *job) {
    odc_config config = config_of(rank, size, what->by_name ? job : NULL);
    config.timeout_ms = GENEROUS_MS;
    config.interrupted = count_looks;
    config.interrupted_arg = &what->looks[rank];
    if (!what->by_name) {
        config.rendezvous = what->at.text;
        config.secret = "a secret of these tests";
    }
    return config;
}

static void await_count(atomic_int *count, int least) {
    for (int64_t deadline = now_ns() + 30000000000; atomic_load(count) < least; sleep_us(200)) {
        CHECK(now_ns() < deadline);
    }
}

static int gather_by_page(void *arg, const void *mine, void *all, size_t bytes) {
    gatherer *self = arg;
    ++self->calls;
    CHECK(bytes <= sizeof self->what->inputs[0]);
    /* Wait until all have read the previous call's inputs. */
    await_count(&self->what->gathered, (self->calls - 1) * self->size);
    memcpy(self->what->inputs[self->rank], mine, bytes);
    /* The inputs must be visible after the count, as in any all-gather. */
    atomic_fetch_add(&self->what->flag, 1);
    await_count(&self->what->flag, self->calls * self->size);
    for (int rank = 0; rank < self->size; ++rank) {
        memcpy((char *)all + (size_t)rank * bytes, self->what->inputs[rank], bytes);
    }
    atomic_fetch_add(&self->what->gathered, 1);
    return self->result;
}

odc_config gather_config(gatherer *self) {
    odc_config config = config_of(self->rank, self->size, NULL);
    config.timeout_ms = GENEROUS_MS;
    config.all_gather = gather_by_page;
    config.all_gather_arg = self;
    return config;
}

/* In each round every rank runs its loop a few times after all have done so in the previous one: rank 0 listens, the others
 * send a hello, rank 0 challenges them, they prove themselves, rank 0 accepts them. */
void await_met(scene *what, int n) {
    enum { ROUNDS = 5, LOOKS = 5 };
    for (int round = 0; round < ROUNDS; ++round) {
        int before[8];
        for (int rank = 0; rank < n; ++rank) {
            before[rank] = read_flag(&what->looks[rank]);
        }
        for (int rank = 0; rank < n; ++rank) {
            await_flag(&what->looks[rank], before[rank] + LOOKS);
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

void join_and_use(const odc_config *config) {
    odc_context *context = NULL;
    CHECK_OK(odc_init(config, &context));
    use(context, config->rank, config->size);
    odc_destroy(context);
}
