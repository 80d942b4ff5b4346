/* SPDX-License-Identifier: Apache-2.0 */
/* The bare libfabric loop: what the same processes reach when nothing but chunks of a tensor moves between them, the
 * limit that the fabric transport is measured against. All ranks (one a host) meet over TCP, open endpoints, and at the
 * same time each moves a slice from or to every other rank, many chunks in flight, the next rank's first. A round's time
 * is from the first rank's start to the last one's end (ranks share the machine's clock). Rank 0 prints a JSON object
 * and a sentence. tests/hosts.sh sets the environment: ODC_RANK, ODC_SIZE, ODC_RENDEZVOUS. */
#include "fabric_peers.h"

#include <getopt.h>
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

enum { ROUND_S = 120 };
static const char *const op_names[] = {"read", "write", "send", NULL};
static const char *const wait_names[] = {"spin", "yield", "sleep", NULL};

static size_t chunks_of(const struct peers *p) { return (p->slice + p->options.chunk - 1) / p->options.chunk; }

/* How many ranks this one starts operations with, and how many push to it. */
static int targets(const struct peers *p) {
    if (!p->options.incast) {
        return p->meeting.size - 1;
    }
    if (p->options.op == OP_READ) {
        return p->meeting.rank == 0 ? p->meeting.size - 1 : 0;
    }
    return p->meeting.rank != 0;
}

static int sources(const struct peers *p) {
    return !p->options.incast || p->meeting.rank == 0 ? p->meeting.size - 1 : 0;
}

static void post_receive(struct slot *slot, size_t chunk) {
    struct endpoint *at = slot->at;
    check(fi_recv(at->ep, slot->message, chunk, fi_mr_desc(at->local_mr), FI_ADDR_UNSPEC, slot), "fi_recv");
}

static void complete(struct peers *p, struct slot *slot) {
    if (slot->message != NULL) {
        --p->to_receive;
        post_receive(slot, p->options.chunk);
        return;
    }
    --p->to_finish;
    slot->next_free = p->free_slots;
    p->free_slots = slot;
}

/* Takes what has completed; how many that were. */
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

/* Returns when there may be something to take from a queue, or to read from one of the sockets. */
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
    uint64_t key = p->cards[peer].key[index], base = p->cards[peer].base;
    if (p->options.op == OP_READ) {
        return fi_read(at->ep, local, length, desc, at->peers[peer], base + offset, key, slot);
    }
    if (p->options.op == OP_WRITE) {
        uint64_t mine = (uint64_t)p->meeting.rank * p->slice + offset;
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

/* The rank that this one's operation number `next` is with: the next rank's first, then round and round. */
static int peer_of(const struct peers *p, size_t next) {
    if (p->options.incast && p->options.op != OP_READ) {
        return 0;
    }
    return (p->meeting.rank + 1 + (int)(next % (size_t)targets(p))) % p->meeting.size;
}

static void move(struct peers *p) {
    size_t total = chunks_of(p) * (size_t)targets(p), next = 0;
    while (p->to_finish > 0 || p->to_receive > 0) {
        struct slot *slot = next < total ? take_slot(p) : NULL;
        if (slot == NULL) {
            serve(p, NULL, 0);
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

/* How many messages can arrive at this rank before it looks. */
static size_t receives(const struct peers *p) {
    return p->options.op == OP_SEND ? (size_t)p->options.depth * (size_t)sources(p) : 0;
}

/* Slots for what this rank starts, and for the posted receives. */
static void fill_slots(struct peers *p) {
    size_t depth = (size_t)p->options.depth, chunk = p->options.chunk;
    p->slots = calloc(depth + receives(p), sizeof(*p->slots));
    for (size_t i = 0; i < depth; ++i) {
        p->slots[i].next_free = p->free_slots;
        p->free_slots = &p->slots[i];
    }
    for (size_t i = 0; i < receives(p); ++i) {
        struct slot *slot = &p->slots[depth + i];
        slot->message = p->local + p->options.bytes + i * chunk;
        slot->at = &p->endpoints[i % (size_t)p->options.endpoints];
        post_receive(slot, chunk);
    }
}

/* What the round needs; before the others can start it. */
static void arm(struct peers *p) {
    p->to_finish = chunks_of(p) * (size_t)targets(p);
    p->to_receive = p->options.op == OP_SEND ? chunks_of(p) * (size_t)sources(p) : 0;
}

static void *move_in_thread(void *context) {
    struct peers *p = context;
    while (sem_wait(&p->begin) == 0) {
        move(p);
        sem_post(&p->end);
    }
    return NULL;
}

/* A peer that is gone leaves operations that never end, and more that cannot begin. */
static void too_late(int signal) {
    static const char words[] = "fabric_peers: a round has not ended in time\n";
    (void)signal;
    (void)!write(STDERR_FILENO, words, sizeof(words) - 1);
    _exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds of one round, the same on all ranks. */
static double time_once(struct peers *p) {
    double times[2], all[2 * MAX_RANKS];
    alarm(ROUND_S);
    times[0] = now();
    if (p->options.thread) {
        sem_post(&p->begin);
        sem_wait(&p->end);
    } else {
        move(p);
    }
    times[1] = now();
    arm(p);
    all_gather(&p->meeting, times, sizeof(times), all, serve, p);
    for (int r = 0; r < p->meeting.size; ++r) {
        times[0] = all[2 * r] < times[0] ? all[2 * r] : times[0];
        times[1] = all[2 * r + 1] > times[1] ? all[2 * r + 1] : times[1];
    }
    return times[1] - times[0];
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const struct peers *p, double *seconds) {
    const struct options *o = &p->options;
    qsort(seconds, (size_t)o->rounds, sizeof(seconds[0]), compare);
    double moved = (double)p->slice * (p->meeting.size - 1) * 1e-9;
    double median = seconds[o->rounds / 2];
    printf(
        "{\"op\":\"%s\",\"ranks\":%d,\"provider\":\"%s\",\"bytes\":%zu,\"chunk\":%zu,\"depth\":%d,\"wait\":\"%s\","
        "\"endpoints\":%d,\"thread\":%d,\"incast\":%d,\"seconds\":%.6f,\"gbps\":%.4f,\"low\":%.4f,\"high\":%.4f}\n",
        op_names[o->op], p->meeting.size, o->provider, o->bytes, o->chunk, o->depth, wait_names[o->wait], o->endpoints,
        o->thread, o->incast, median, moved / median, moved / seconds[o->rounds - 1], moved / seconds[0]);
    printf("%s: %.3f GB/s into %s (%.3f to %.3f in %d rounds)\n", op_names[o->op], moved / median,
           o->incast ? "rank 0" : "each rank", moved / seconds[o->rounds - 1], moved / seconds[0], o->rounds);
}

/* Every float tells whose it is, so that a loop which moves nothing is noticed. */
static void mark(struct peers *p) {
    float value = (float)p->meeting.rank;
    for (size_t i = 0; i + sizeof(value) <= p->options.bytes; i += sizeof(value)) {
        memcpy(p->exposed + i, &value, sizeof(value));
        memcpy(p->local + i, &value, sizeof(value));
    }
}

/* After a round; messages, which land anywhere in the inbox, are counted only. */
static void verify(const struct peers *p) {
    const char *landed = p->options.op == OP_READ ? p->local : p->exposed;
    int expects = p->options.op == OP_READ ? targets(p) > 0 : p->options.op == OP_WRITE && sources(p) > 0;
    for (int r = 0; r < p->meeting.size && expects; ++r) {
        float first, last;
        memcpy(&first, landed + (size_t)r * p->slice, sizeof(first));
        memcpy(&last, landed + (size_t)(r + 1) * p->slice - sizeof(last), sizeof(last));
        if (first != (float)r || last != (float)r) {
            fprintf(stderr, "fabric_peers: rank %d got wrong bytes from rank %d\n", p->meeting.rank, r);
            exit(1);
        }
    }
}

static void usage(void) {
    fprintf(stderr,
            "usage: fabric_peers [--provider NAME] [--address OWN_ADDRESS] [--op read|write|send] [--bytes N]\n"
            "  [--chunk N] [--depth N] [--wait spin|yield|sleep] [--endpoints 1..4] [--rounds N]\n"
            "  [--incast]  all to rank 0    [--thread]  another thread does it all\n");
    exit(2);
}

static int choose(const char *const *names, const char *name) {
    for (int i = 0; names[i] != NULL; ++i) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    usage();
    return 0;
}

static struct options parse(int argc, char **argv) {
    struct options o = {.provider = "tcp;ofi_rxm",
                        .bytes = 64 << 20,
                        .chunk = 512 << 10,
                        .depth = 8,
                        .rounds = 31,
                        .endpoints = 1,
                        .wait = WAIT_SLEEP};
    const struct option names[] = {{"provider", 1, NULL, 'p'}, {"address", 1, NULL, 'a'},   {"op", 1, NULL, 'o'},
                                   {"bytes", 1, NULL, 'b'},    {"chunk", 1, NULL, 'c'},     {"depth", 1, NULL, 'd'},
                                   {"wait", 1, NULL, 'w'},     {"endpoints", 1, NULL, 'e'}, {"rounds", 1, NULL, 'r'},
                                   {"incast", 0, NULL, 'i'},   {"thread", 0, NULL, 't'},    {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (c) {
            case 'p': o.provider = optarg; break;
            case 'a': o.address = optarg; break;
            case 'o': o.op = (enum op)choose(op_names, optarg); break;
            case 'b': o.bytes = strtoull(optarg, NULL, 0); break;
            case 'c': o.chunk = strtoull(optarg, NULL, 0); break;
            case 'd': o.depth = atoi(optarg); break;
            case 'w': o.wait = (enum wait)choose(wait_names, optarg); break;
            case 'e': o.endpoints = atoi(optarg); break;
            case 'r': o.rounds = atoi(optarg); break;
            case 'i': o.incast = 1; break;
            case 't': o.thread = 1; break;
            default: usage();
        }
    }
    if (optind != argc || o.chunk == 0 || o.depth < 1 || o.rounds < 1 || o.rounds > MAX_ROUNDS || o.endpoints < 1 ||
        o.endpoints > MAX_ENDPOINTS) {
        usage();
    }
    return o;
}

int main(int argc, char **argv) {
    static struct peers p;
    p.options = parse(argc, argv);
    signal(SIGALRM, too_late);
    meet(&p.meeting);
    p.slice = p.options.bytes / (size_t)p.meeting.size / sizeof(float) * sizeof(float);
    if (p.slice == 0) {
        usage();
    }
    p.inbox = receives(&p) * p.options.chunk;
    open_all(&p);
    fill_slots(&p);
    mark(&p);
    arm(&p);
    pthread_t thread;
    if (p.options.thread) {
        sem_init(&p.begin, 0, 0);
        sem_init(&p.end, 0, 0);
        pthread_create(&thread, NULL, move_in_thread, &p);
    }
    char here = 1, all[MAX_RANKS];
    all_gather(&p.meeting, &here, 1, all, serve, &p);
    time_once(&p); /* connects */
    verify(&p);
    double seconds[MAX_ROUNDS];
    for (int round = 0; round < p.options.rounds; ++round) {
        seconds[round] = time_once(&p);
    }
    if (p.meeting.rank == 0) {
        report(&p, seconds);
    }
    close_all(&p);
    return 0;
}
