/* SPDX-License-Identifier: Apache-2.0 */
/* Moves an f32 tensor through MPI as `odc bench` moves it through libodc: every rank gets all of it, or adds to all of it, at
 * the same time. Prints a JSON object a line: {"op","ranks","bytes","gbps"}; GB/s are the tensor's bytes by the time from the
 * first rank's start to the last one's end, the median of all rounds. */
#include <mpi.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_ROUNDS = 31, MAX_ROUNDS = 1000 };

struct tensor {
    int rank;
    int size;
    int rounds;
    int count;            /* elements of a slice */
    float *full;          /* size * count elements: gathered into, or added from */
    float *slice;         /* this rank's part, in a window */
    float *private_slice; /* for collectives */
    MPI_Win window;
};

static void get(struct tensor *t) {
    for (int i = 0; i < t->size; ++i) {
        int owner = (t->rank + i) % t->size;
        MPI_Get(t->full + (size_t)owner * t->count, t->count, MPI_FLOAT, owner, 0, t->count, MPI_FLOAT, t->window);
    }
    MPI_Win_flush_all(t->window);
}

static void accumulate(struct tensor *t) {
    for (int i = 0; i < t->size; ++i) {
        int owner = (t->rank + i) % t->size;
        MPI_Accumulate(t->full + (size_t)owner * t->count, t->count, MPI_FLOAT, owner, 0, t->count, MPI_FLOAT, MPI_SUM,
                       t->window);
    }
    MPI_Win_flush_all(t->window);
}

static void allgather(struct tensor *t) {
    MPI_Allgather(t->private_slice, t->count, MPI_FLOAT, t->full, t->count, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(struct tensor *t) {
    MPI_Reduce_scatter_block(t->full, t->private_slice, t->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Seconds of one operation; the same on all ranks. */
static double time_once(struct tensor *t, void (*operate)(struct tensor *), int repeats) {
    operate(t);
    MPI_Barrier(MPI_COMM_WORLD);
    double times[2]; /* minus the begin, and the end: one MAX reduction finds the first and the last */
    times[0] = -MPI_Wtime();
    for (int i = 0; i < repeats; ++i) {
        operate(t);
    }
    times[1] = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, times, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return (times[1] + times[0]) / repeats;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_seconds(struct tensor *t, void (*operate)(struct tensor *)) {
    double once = time_once(t, operate, 1);
    int repeats = once < 0.005 ? (int)(0.01 / once) + 1 : 2;
    double seconds[MAX_ROUNDS];
    for (int round = 0; round < t->rounds; ++round) {
        seconds[round] = time_once(t, operate, repeats);
    }
    qsort(seconds, (size_t)t->rounds, sizeof(seconds[0]), compare);
    return seconds[t->rounds / 2];
}

static void measure(struct tensor *t, const char *op, void (*operate)(struct tensor *)) {
    double bytes = (double)t->size * t->count * sizeof(float);
    double seconds = median_seconds(t, operate);
    if (t->rank == 0) {
        printf("{\"op\":\"%s\",\"ranks\":%d,\"bytes\":%.0f,\"gbps\":%.4f}\n", op, t->size, bytes,
               bytes / seconds * 1e-9);
        fflush(stdout);
    }
}

static void set(float *values, size_t count, float value) {
    for (size_t i = 0; i < count; ++i) {
        values[i] = value;
    }
}

/* A barrier after which slices, accessed directly, agree with the window. */
static void meet(struct tensor *t) {
    MPI_Win_sync(t->window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(t->window);
}

/* Checks each operation once with known numbers. */
static void check(struct tensor *t) {
    size_t numel = (size_t)t->size * t->count;
    set(t->slice, t->count, (float)t->rank);
    set(t->full, numel, -1);
    meet(t);
    get(t);
    int wrong = t->full[numel - 1] != (float)(t->size - 1);
    meet(t);
    set(t->slice, t->count, 0);
    set(t->full, numel, 1);
    meet(t);
    accumulate(t);
    meet(t);
    wrong |= t->slice[t->count - 1] != (float)t->size;
    reduce_scatter(t);
    wrong |= t->private_slice[t->count - 1] != (float)t->size;
    if (wrong) {
        fprintf(stderr, "mpi_peers: rank %d got wrong numbers\n", t->rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    struct tensor t;
    MPI_Comm_rank(MPI_COMM_WORLD, &t.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t.size);
    long long bytes = argc > 1 ? atoll(argv[1]) : 64LL << 20;
    t.rounds = argc > 2 ? atoi(argv[2]) : DEFAULT_ROUNDS;
    if (argc > 3 || t.rounds < 1 || t.rounds > MAX_ROUNDS || bytes < (long long)(t.size * sizeof(float)) ||
        bytes / (long long)sizeof(float) / t.size > INT32_MAX) {
        fprintf(stderr, "usage: mpi_peers [BYTES [ROUNDS]]   (of the whole tensor; default 67108864 and 31)\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    t.count = (int)(bytes / (long long)sizeof(float) / t.size);
    size_t slice_bytes = (size_t)t.count * sizeof(float);
    t.full = malloc(slice_bytes * (size_t)t.size);
    t.private_slice = malloc(slice_bytes);
    if (t.full == NULL || t.private_slice == NULL) {
        fprintf(stderr, "mpi_peers: no memory for %lld bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(t.private_slice, 0, slice_bytes);
    MPI_Win_allocate((MPI_Aint)slice_bytes, sizeof(float), MPI_INFO_NULL, MPI_COMM_WORLD, &t.slice, &t.window);
    MPI_Win_lock_all(0, t.window);
    check(&t);
    measure(&t, "MPI_Get", get);
    measure(&t, "MPI_Accumulate", accumulate);
    measure(&t, "MPI_Allgather", allgather);
    measure(&t, "MPI_Reduce_scatter_block", reduce_scatter);
    MPI_Win_unlock_all(t.window);
    MPI_Win_free(&t.window);
    free(t.full);
    free(t.private_slice);
    MPI_Finalize();
    return 0;
}
