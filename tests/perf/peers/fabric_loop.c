/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric_peers.h"

#include <poll.h>
#include <pthread.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { ROUND_S = 120 };
const char *const op_names[] = {"read", "write", "send", "add", NULL};

static size_t chunks_of(const struct peers *p) { return (p->slice + p->options.chunk - 1) / p->options.chunk; }

/* The number of ranks that this one operates on, and the number that push to it. */
static int targets(const struct peers *p) {
    if (!p->options.incast) {
        return p->bootstrap.size - 1;
    }
    if (p->options.op == OP_READ || p->options.op == OP_ADD) {
        return p->bootstrap.rank != 0 ? 0 : p->options.alone ? 1 : p->bootstrap.size - 1;
    }
    return p->bootstrap.rank != 0;
}

static int sources(const struct peers *p) {
    return !p->options.incast || p->bootstrap.rank == 0 ? p->bootstrap.size - 1 : 0;
}

static void post_receive(struct slot *slot, size_t chunk) {
    struct endpoint *at = slot->at;
    check(fi_recv(at->ep, slot->message, chunk, fi_mr_desc(at->local_mr), FI_ADDR_UNSPEC, slot), "fi_recv");
}

static void give_back(struct peers *p, struct slot *slot) {
    --p->to_finish;
    slot->next_free = p->free_slots;
    p->free_slots = slot;
}

static void complete(struct peers *p, struct slot *slot) {
    if (slot->message != NULL) {
        --p->to_receive;
        post_receive(slot, p->options.chunk);
        return;
    }
    if (p->options.op == OP_ADD) {
        slot->next_free = p->arrived;
        p->arrived = slot;
        return;
    }
    give_back(p, slot);
}

/* Processes completions; returns how many there were. */
static int progress(struct peers *p) {
    int taken = 0;
    for (int e = 0; e < p->options.endpoints; ++e) {
        struct fi_cq_entry entries[16];
        ssize_t n = fi_cq_read(p->endpoints[e].cq, entries, 16);
        for (ssize_t i = 0; i < n; ++i) {
            complete(p, entries[i].op_context);
        }
        if (n == -FI_EAVAIL) {
            struct fi_cq_err_entry error = {0};
            fi_cq_readerr(p->endpoints[e].cq, &error, 0);
            check(-error.err, "a completion");
        }
        if (n != -FI_EAGAIN) {
            check(n, "fi_cq_read");
            taken += (int)n;
        }
    }
    return taken;
}

/* Returns when a queue may have a completion, or a socket data. */
static void wait_for_any(struct peers *p, const int *sockets, int count) {
    if (p->options.wait == WAIT_YIELD) {
        sched_yield();
    }
    if (p->options.wait != WAIT_SLEEP) {
        return;
    }
    struct fid *queues[MAX_ENDPOINTS];
    struct pollfd fds[MAX_ENDPOINTS + MAX_RANKS];
    int n = p->options.endpoints;
    for (int e = 0; e < n; ++e) {
        queues[e] = &p->endpoints[e].cq->fid;
        fds[e] = (struct pollfd){.fd = p->endpoints[e].wait_fd, .events = POLLIN};
    }
    for (int i = 0; i < count; ++i) {
        fds[n++] = (struct pollfd){.fd = sockets[i], .events = POLLIN};
    }
    if (fi_trywait(p->fabric, queues, p->options.endpoints) == FI_SUCCESS) {
        poll(fds, (nfds_t)n, 1000);
    }
}

void serve(void *context, const int *sockets, int count) {
    struct peers *p = context;
    if (progress(p) == 0) {
        wait_for_any(p, sockets, count);
    }
}

static ssize_t start(struct peers *p, struct slot *slot, int peer, size_t offset, size_t length) {
    struct endpoint *at = slot->at;
    int index = (int)(at - p->endpoints);
    char *local = p->local + (size_t)peer * p->slice + offset;
    void *desc = fi_mr_desc(at->local_mr);
    uint64_t key = p->infos[peer].key[index], base = p->infos[peer].base;
    if (p->options.op == OP_ADD) {
        uint64_t mine = (uint64_t)p->bootstrap.rank * p->slice + offset;
        slot->offset = offset;
        slot->length = length;
        return fi_read(at->ep, slot->buffer, length, desc, at->peers[peer], base + mine, key, slot);
    }
    if (p->options.op == OP_READ) {
        return fi_read(at->ep, local, length, desc, at->peers[peer], base + offset, key, slot);
    }
    if (p->options.op == OP_WRITE) {
        uint64_t mine = (uint64_t)p->bootstrap.rank * p->slice + offset;
        return fi_write(at->ep, local, length, desc, at->peers[peer], base + mine, key, slot);
    }
    return fi_send(at->ep, local, length, desc, at->peers[peer], slot);
}

/* NULL when `depth` chunks are in flight. */
static struct slot *take_slot(struct peers *p) {
    struct slot *slot = p->free_slots;
    if (slot != NULL) {
        p->free_slots = slot->next_free;
    }
    return slot;
}

/* The peer of this rank's operation number `next`: the next rank first, then in turn. */
static int peer_of(const struct peers *p, size_t next) {
    if (p->options.incast && p->options.op != OP_READ && p->options.op != OP_ADD) {
        return 0;
    }
    if (p->options.alone) {
        return p->options.alone;
    }
    return (p->bootstrap.rank + 1 + (int)(next % (size_t)targets(p))) % p->bootstrap.size;
}

/* ---- Additions ---- */

__attribute__((always_inline)) static inline void add_loop(float *restrict sums, const float *restrict values,
                                                           size_t count) {
    for (size_t i = 0; i < count; ++i) {
        sums[i] += values[i];
    }
}

static void add_plain(float *sums, const float *values, size_t count) { add_loop(sums, values, count); }

#if defined(__x86_64__)
/* GCC must be told to vectorize. Wider vectors are no faster: the sums come from memory. */
#if defined(__clang__)
#define FOR_AVX2 __attribute__((target("avx2")))
#else
#define FOR_AVX2 __attribute__((target("avx2"), optimize("O3")))
#endif

FOR_AVX2 static void add_avx2(float *sums, const float *values, size_t count) { add_loop(sums, values, count); }
#endif

static void add_values(float *sums, const float *values, size_t count) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        add_avx2(sums, values, count);
        return;
    }
#endif
    add_plain(sums, values, count);
}

/* To the sums of this rank's slice from `offset` on, both in bytes. */
static void add_part(struct peers *p, const char *values, size_t offset, size_t length) {
    for (size_t end = offset + length, next; offset < end; values += next - offset, offset = next) {
        atomic_flag *lock = &p->locks[offset / STRIPE_BYTES];
        next = (offset / STRIPE_BYTES + 1) * STRIPE_BYTES;
        next = next < end ? next : end;
        while (atomic_flag_test_and_set_explicit(lock, memory_order_acquire)) {
            sched_yield();
        }
        add_values(p->sums + offset / sizeof(float), (const float *)(const void *)values,
                   (next - offset) / sizeof(float));
        atomic_flag_clear_explicit(lock, memory_order_release);
    }
}

/* One chunk at a time, so that peers are served in between; 0: none has arrived. */
static int add_one(struct peers *p) {
    struct slot *slot = p->arrived;
    if (slot == NULL) {
        return 0;
    }
    p->arrived = slot->next_free;
    add_part(p, slot->buffer, slot->offset, slot->length);
    give_back(p, slot);
    return 1;
}

void add_own(struct peers *p) { add_part(p, p->shared + (size_t)p->bootstrap.rank * p->slice, 0, p->slice); }

/* Past the cache, where that is known how: the lines that are written are not read first. */
static void copy(char *to, const char *from, size_t bytes) {
#if defined(__x86_64__)
    size_t head = (64 - (uintptr_t)to % 64) % 64;
    head = head < bytes ? head : bytes;
    memcpy(to, from, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
        for (size_t j = i; j < i + 64; j += 16) {
            _mm_stream_si128((__m128i *)(void *)(to + j), _mm_loadu_si128((const __m128i *)(const void *)(from + j)));
        }
    }
    _mm_sfence();
    memcpy(to + i, from + i, bytes - i);
#else
    memcpy(to, from, bytes);
#endif
}

void copy_own(struct peers *p) { copy(p->local + (size_t)p->bootstrap.rank * p->slice, p->shared, p->slice); }

/* ---- A round ---- */

void move(struct peers *p) {
    size_t total = chunks_of(p) * (size_t)targets(p), next = 0;
    while (p->to_finish > 0 || p->to_receive > 0) {
        struct slot *slot = next < total ? take_slot(p) : NULL;
        if (slot == NULL) {
            if (!add_one(p)) {
                serve(p, NULL, 0);
            } else {
                progress(p);
            }
            continue;
        }
        size_t chunk = next / (size_t)targets(p), offset = chunk * p->options.chunk;
        size_t length = offset + p->options.chunk <= p->slice ? p->options.chunk : p->slice - offset;
        slot->at = &p->endpoints[chunk % (size_t)p->options.endpoints];
        ssize_t status;
        while ((status = start(p, slot, peer_of(p, next), offset, length)) == -FI_EAGAIN) {
            progress(p);
        }
        check(status, op_names[p->options.op]);
        ++next;
    }
}

static void *move_often(void *context) {
    struct peers *p = context;
    while (sem_wait(&p->begin) == 0) {
        move(p);
        sem_post(&p->end);
    }
    return NULL;
}

void start_thread(struct peers *p) {
    pthread_t thread;
    sem_init(&p->begin, 0, 0);
    sem_init(&p->end, 0, 0);
    if (pthread_create(&thread, NULL, move_often, p) != 0) {
        fprintf(stderr, "bare loop: no thread\n");
        exit(1);
    }
}

void move_in_thread(struct peers *p, void (*own)(struct peers *)) {
    sem_post(&p->begin);
    if (own != NULL) {
        own(p);
    }
    while (sem_wait(&p->end) != 0) {
    }
}

size_t receives(const struct peers *p) {
    return p->options.op == OP_SEND ? (size_t)p->options.depth * (size_t)sources(p) : 0;
}

void fill_slots(struct peers *p) {
    size_t depth = (size_t)p->options.depth, chunk = p->options.chunk;
    p->slots = calloc(depth + receives(p), sizeof(*p->slots));
    for (size_t i = 0; i < depth; ++i) {
        p->slots[i].next_free = p->free_slots;
        p->slots[i].buffer = p->receive_buffer > 0 ? p->local + p->options.bytes + i * chunk : NULL;
        p->free_slots = &p->slots[i];
    }
    for (size_t i = 0; i < receives(p); ++i) {
        struct slot *slot = &p->slots[depth + i];
        slot->message = p->local + p->options.bytes + i * chunk;
        slot->at = &p->endpoints[i % (size_t)p->options.endpoints];
        post_receive(slot, chunk);
    }
}

void arm(struct peers *p) {
    p->to_finish = chunks_of(p) * (size_t)targets(p);
    p->to_receive = p->options.op == OP_SEND ? chunks_of(p) * (size_t)sources(p) : 0;
}

static void too_late(int signal) {
    static const char message[] = "a round of the bare loop has not ended in time\n";
    (void)signal;
    (void)!write(STDERR_FILENO, message, sizeof(message) - 1);
    _exit(1);
}

void allow_round(void) {
    signal(SIGALRM, too_late);
    alarm(ROUND_S);
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void mark(struct peers *p) {
    float value = (float)p->bootstrap.rank;
    for (size_t i = 0; i + sizeof(value) <= p->options.bytes; i += sizeof(value)) {
        memcpy(p->shared + i, &value, sizeof(value));
        memcpy(p->local + i, &value, sizeof(value));
    }
}

void verify(const struct peers *p) {
    const char *landed = p->options.op == OP_READ ? p->local : p->shared;
    int expects = p->options.op == OP_READ ? targets(p) > 0 : p->options.op == OP_WRITE && sources(p) > 0;
    for (int r = 0; r < p->bootstrap.size && expects; ++r) {
        float first, last;
        memcpy(&first, landed + (size_t)r * p->slice, sizeof(first));
        memcpy(&last, landed + (size_t)(r + 1) * p->slice - sizeof(last), sizeof(last));
        if (first != (float)r || last != (float)r) {
            fprintf(stderr, "the bare loop brought rank %d wrong bytes from rank %d\n", p->bootstrap.rank, r);
            exit(1);
        }
    }
}
