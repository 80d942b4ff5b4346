/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a rank, or to the way to it, is noticed on all hosts, whatever they wait in, and the error names it. */
#include "model.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { RANKS = 3, NUMEL = 200003, SILENCE_MS = 1000 };

typedef enum moment { IN_GATHER, IN_SCATTER_ADD, IN_WAIT, IN_SYNC, IN_REDUCTION, MOMENTS } moment;

static const char *const calls[MOMENTS] = {"odc_gather", "odc_scatter_add", "odc_wait", "odc_minibatch_sync",
                                           "odc_all_reduce"};

typedef struct scene {
    moment when;
    int victim;
    int signal;
    atomic_int waiting;
    atomic_int victim_pid;
    _Atomic int64_t struck_at;
    _Atomic int64_t noticed_at[RANKS];
} scene;

static tensor one_minibatch(odc_context *context) {
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 1);
    return t;
}

/* The call in which a rank waits for another that does not publish, sync or reduce. */
static odc_status wait_in(moment when, odc_context *context, tensor t) {
    float *full = new_full(NUMEL, ODC_F32);
    uint64_t operation = 0;
    odc_status status = ODC_OK;
    memset(full, 0, NUMEL * sizeof *full);
    if (when != IN_REDUCTION) {
        CHECK_OK(odc_publish(t.shard));
    }
    switch (when) {
        case IN_GATHER: status = odc_gather(t.shard, full, NUMEL, NULL); break;
        case IN_SCATTER_ADD: status = odc_scatter_add(t.shard, full, NUMEL, NULL); break;
        case IN_WAIT:
            CHECK_OK(odc_gather_start(t.shard, full, NUMEL, NULL, &operation));
            status = odc_wait(context, operation);
            break;
        case IN_SYNC: status = odc_minibatch_sync(context); break;
        default: status = odc_all_reduce(context, &(double){1}, 1, ODC_SUM); break;
    }
    free(full);
    return status;
}

static void be_struck(int rank, int size, const char *job, void *arg) {
    scene *what = arg;
    char name[32];
    char pid[32];
    char sentence[2048];
    odc_shard_desc desc = describe("another", 10, ODC_F32, ODC_F32);
    odc_shard *shard = NULL;
    odc_context *context = join(rank, size, job);
    tensor t = one_minibatch(context);
    if (rank == what->victim) {
        set_flag(&what->victim_pid, getpid());
        await_flag(&what->waiting, RANKS - 1);
        sleep_ms(50); /* they are in the call by now */
        atomic_store(&what->struck_at, now_ns());
        raise(what->signal);
        for (;;) {
            pause();
        }
    }
    await_flag(&what->victim_pid, 1);
    raise_flag(&what->waiting);
    CHECK_EQUAL(wait_in(what->when, context, t), ODC_ERROR_PEER_LOST);
    atomic_store(&what->noticed_at[rank], now_ns());
    snprintf(name, sizeof name, "rank %d", what->victim);
    snprintf(pid, sizeof pid, "pid %d", read_flag(&what->victim_pid));
    snprintf(sentence, sizeof sentence, "%s", odc_last_error());
    CHECK_SENTENCE(sentence, name, pid, "is lost");
    CHECK(strncmp(sentence, name, strlen(name)) == 0); /* nobody else is blamed */
    CHECK_KEPT(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, sentence);
    CHECK_KEPT(odc_register_shard(context, &desc, &shard), ODC_ERROR_PEER_LOST, sentence);
    odc_destroy(context);
}

/* Prints how soon the others notice, in milliseconds. */
static int64_t strike(const char *test, int signal, int64_t most_ms) {
    needs_processes("it ends or stops ranks by a signal");
    int64_t longest = 0;
    for (int when = 0; when < MOMENTS; ++when) {
        scene *what = share(sizeof *what);
        what->when = (moment)when;
        what->signal = signal;
        what->victim = when % RANKS;
        run_processes_of(test, RANKS, (uint64_t)1 << what->victim, be_struck, what);
        printf("%s, %s: noticed after", test, calls[when]);
        for (int rank = 0; rank < RANKS; ++rank) {
            if (rank != what->victim) {
                int64_t took = (atomic_load(&what->noticed_at[rank]) - atomic_load(&what->struck_at)) / 1000000;
                longest = took > longest ? took : longest;
                printf(" %lld ms", (long long)took);
            }
        }
        printf("\n");
    }
    CHECK(longest < most_ms);
    return longest;
}

static void a_killed_rank_is_named_on_all_hosts_whatever_they_wait_in(void **state) {
    (void)state;
    strike(__func__, SIGKILL, 8000); /* the peer's kernel says so, long before ODC_SILENCE_MS */
}

static void a_stopped_rank_is_named_after_its_silence(void **state) {
    (void)state;
    setenv("ODC_SILENCE_MS", "1000", 1);
    strike(__func__, SIGSTOP, 19000);
    unsetenv("ODC_SILENCE_MS");
}

int main(void) {
    setenv("ODC_TEST_HOSTS", "99", 0);
    setenv("ODC_INTERFACE", "lo", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_on_all_hosts_whatever_they_wait_in),
        cmocka_unit_test(a_stopped_rank_is_named_after_its_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
