/* SPDX-License-Identifier: Apache-2.0 */
#include "bootstrap.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TIMEOUT_S = 30, PAUSE_US = 100000 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int number(const char *name) {
    const char *text = getenv(name);
    if (text == NULL) {
        fprintf(stderr, "%s is not set; tests/harness/hosts.sh sets it\n", name);
        exit(2);
    }
    return atoi(text);
}

static struct addrinfo *rendezvous(void) {
    const char *text = getenv("ODC_RENDEZVOUS");
    char host[64];
    const char *colon = text != NULL ? strrchr(text, ':') : NULL;
    if (colon == NULL || (size_t)(colon - text) >= sizeof(host)) {
        fprintf(stderr, "ODC_RENDEZVOUS is not address:port\n");
        exit(2);
    }
    int bracket = text[0] == '[';
    snprintf(host, sizeof(host), "%.*s", (int)(colon - text) - 2 * bracket, text + bracket);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *out;
    int status = getaddrinfo(host, colon + 1, &hints, &out);
    if (status != 0) {
        fprintf(stderr, "ODC_RENDEZVOUS %s: %s\n", text, gai_strerror(status));
        exit(2);
    }
    return out;
}

static int no_delay(int socket) {
    int one = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return socket;
}

static void receive(int socket, void *out, size_t bytes) {
    if (recv(socket, out, bytes, MSG_WAITALL) != (ssize_t)bytes) {
        fprintf(stderr, "a rank has gone\n");
        exit(1);
    }
}

static void give(int socket, const void *in, size_t bytes) {
    if (send(socket, in, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
        fprintf(stderr, "a rank has gone\n");
        exit(1);
    }
}

static void receive_all(struct bootstrap *m, const struct addrinfo *at) {
    struct timeval timeout = {.tv_sec = TIMEOUT_S};
    int one = 1, listener = socket(at->ai_family, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    if (bind(listener, at->ai_addr, at->ai_addrlen) != 0 || listen(listener, MAX_RANKS) != 0) {
        fail("listening at ODC_RENDEZVOUS");
    }
    for (int i = 1; i < m->size; ++i) {
        int peer = accept(listener, NULL, NULL), rank;
        if (peer < 0) {
            fail("waiting for the other ranks");
        }
        receive(no_delay(peer), &rank, sizeof(rank));
        if (rank < 1 || rank >= m->size) {
            fprintf(stderr, "a rank says that it is %d of %d\n", rank, m->size);
            exit(1);
        }
        m->sockets[rank] = peer;
    }
    close(listener);
}

static void go_to_first(struct bootstrap *m, const struct addrinfo *at) {
    for (int i = 0; i < TIMEOUT_S * 1000000 / PAUSE_US; ++i) {
        m->sockets[0] = no_delay(socket(at->ai_family, SOCK_STREAM, 0));
        if (connect(m->sockets[0], at->ai_addr, at->ai_addrlen) == 0) {
            give(m->sockets[0], &m->rank, sizeof(m->rank));
            return;
        }
        close(m->sockets[0]);
        usleep(PAUSE_US);
    }
    fail("connecting to ODC_RENDEZVOUS");
}

void meet(struct bootstrap *out) {
    out->rank = number("ODC_RANK");
    out->size = number("ODC_SIZE");
    if (out->size < 2 || out->size > MAX_RANKS || out->rank < 0 || out->rank >= out->size) {
        fprintf(stderr, "ODC_SIZE must be 2..%d and ODC_RANK below it\n", MAX_RANKS);
        exit(2);
    }
    struct addrinfo *at = rendezvous();
    if (out->rank == 0) {
        receive_all(out, at);
    } else {
        go_to_first(out, at);
    }
    struct sockaddr_storage own;
    socklen_t length = sizeof(own);
    getsockname(out->sockets[out->rank == 0 ? 1 : 0], (struct sockaddr *)&own, &length);
    getnameinfo((struct sockaddr *)&own, length, out->address, sizeof(out->address), NULL, 0, NI_NUMERICHOST);
    freeaddrinfo(at);
}

static void await(struct bootstrap *m, int from, void *out, size_t bytes, meanwhile *fn, void *context) {
    struct pollfd fd = {.fd = m->sockets[from], .events = POLLIN};
    while (poll(&fd, 1, 0) == 0) {
        fn(context, &fd.fd, 1);
    }
    receive(fd.fd, out, bytes);
}

void all_gather(struct bootstrap *m, const void *mine, size_t bytes, void *all, meanwhile *fn, void *context) {
    if (m->rank != 0) {
        give(m->sockets[0], mine, bytes);
        await(m, 0, all, bytes * (size_t)m->size, fn, context);
        return;
    }
    memcpy(all, mine, bytes);
    for (int r = 1; r < m->size; ++r) {
        await(m, r, (char *)all + bytes * (size_t)r, bytes, fn, context);
    }
    for (int r = 1; r < m->size; ++r) {
        give(m->sockets[r], all, bytes * (size_t)m->size);
    }
}
