/* SPDX-License-Identifier: Apache-2.0 */
/* The bare libfabric loop: the speed of the same processes when only chunks of a tensor move between them, the limit with which
 * the fabric transport is compared. All ranks (one a host) meet over TCP, open endpoints, and at the same time each moves a
 * slice from or to every other rank, with many chunks in flight, the next rank's first. A round's time is from the first rank's
 * start to the last one's end (ranks share the machine's clock). Rank 0 prints a JSON object and a sentence.
 * tests/harness/hosts.sh sets the environment: ODC_RANK, ODC_SIZE, ODC_RENDEZVOUS. */
#include "fabric_peers.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const wait_names[] = {"spin", "yield", "sleep", NULL};

/* Seconds of one round, the same on all ranks. */
static double time_once(struct peers *p) {
    double times[2], all[2 * MAX_RANKS];
    allow_round();
    times[0] = now();
    if (p->options.thread) {
        move_in_thread(p, NULL);
    } else {
        move(p);
    }
    times[1] = now();
    arm(p);
    all_gather(&p->bootstrap, times, sizeof(times), all, serve, p);
    for (int r = 0; r < p->bootstrap.size; ++r) {
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
    double moved = (double)p->slice * (p->bootstrap.size - 1) * 1e-9;
    double median = seconds[o->rounds / 2];
    printf(
        "{\"op\":\"%s\",\"ranks\":%d,\"provider\":\"%s\",\"bytes\":%zu,\"chunk\":%zu,\"depth\":%d,\"wait\":\"%s\","
        "\"endpoints\":%d,\"thread\":%d,\"incast\":%d,\"seconds\":%.6f,\"gbps\":%.4f,\"low\":%.4f,\"high\":%.4f}\n",
        op_names[o->op], p->bootstrap.size, o->provider, o->bytes, o->chunk, o->depth, wait_names[o->wait],
        o->endpoints, o->thread, o->incast, median, moved / median, moved / seconds[o->rounds - 1], moved / seconds[0]);
    printf("%s: %.3f GB/s into %s (%.3f to %.3f in %d rounds)\n", op_names[o->op], moved / median,
           o->incast ? "rank 0" : "each rank", moved / seconds[o->rounds - 1], moved / seconds[0], o->rounds);
}

static void usage(void) {
    fprintf(stderr,
            "usage: fabric_peers [--provider NAME] [--address OWN_ADDRESS] [--op read|write|send|add] [--bytes N]\n"
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
        o.endpoints > MAX_ENDPOINTS ||
        (o.op == OP_ADD && (o.chunk % sizeof(float) != 0 || o.bytes % sizeof(float) != 0))) {
        usage();
    }
    return o;
}

int main(int argc, char **argv) {
    static struct peers p;
    p.options = parse(argc, argv);
    meet(&p.bootstrap);
    p.slice = p.options.bytes / (size_t)p.bootstrap.size / sizeof(float) * sizeof(float);
    if (p.slice == 0) {
        usage();
    }
    p.receive_buffer = (p.options.op == OP_ADD ? (size_t)p.options.depth : receives(&p)) * p.options.chunk;
    open_all(&p);
    fill_slots(&p);
    mark(&p);
    arm(&p);
    if (p.options.thread) {
        start_thread(&p);
    }
    char here = 1, all[MAX_RANKS];
    all_gather(&p.bootstrap, &here, 1, all, serve, &p);
    time_once(&p); /* connects */
    verify(&p);
    double seconds[MAX_ROUNDS];
    for (int round = 0; round < p.options.rounds; ++round) {
        seconds[round] = time_once(&p);
    }
    if (p.bootstrap.rank == 0) {
        report(&p, seconds);
    }
    close_all(&p);
    return 0;
}
