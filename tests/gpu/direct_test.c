/* SPDX-License-Identifier: Apache-2.0 */
/* GPUDirect RDMA with simulated adapters (fake_fabric): where it is used, why it is not, and deaths in the middle of it. The
 * data is compared with the model in random_test and hosts_test. */
#include "gpu.h"
#include "hosts.h"
#include "model.h"

#include <signal.h>
#include <stdio.h>

enum { NUMEL = 3001, LARGE = 3000017 /* of f32: several times the staging */, LINE = 1000 };

static void check_routes(odc_context *context, const char *text) {
    odc_route route = {.struct_size = sizeof route};
    for (int other = 0; other < odc_size(context); ++other) {
        if (other != odc_rank(context)) {
            CHECK_OK(odc_get_route(context, other, ODC_GPU_MEMORY, &route));
            CHECK(route.transport != NULL && strcmp(route.transport, "fabric") == 0);
            CHECK(route.access != NULL && strcmp(route.access, "staged") == 0);
            if (strncmp(route.why, text, strlen(text)) != 0) {
                printf("%s\n", route.why);
            }
            CHECK(strncmp(route.why, text, strlen(text)) == 0);
        }
    }
}

/* ---- Why not ---- */

typedef struct reason {
    const char *variable;
    const char *value;
    const char *text; /* the beginning of the route's `why` */
} reason;

static void hear_why_not(void *arg, int32_t level, const char *line) {
    const char *why_not = strstr(line, "GPUDirect RDMA is asked for, but host memory goes between hosts: ");
    if (level == ODC_LOG_WARN && why_not != NULL) {
        snprintf(arg, LINE, "%s", strstr(why_not, ": ") + 2);
    }
}

/* The warning gives the same reason as the route's `why`. */
static void go_another_way(int rank, int size, const char *job, void *arg) {
    const reason *one = arg;
    const char *why_not = strstr(one->text, ", as ");
    char warning[LINE] = "";
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    config.log = hear_why_not;
    config.log_arg = warning;
    config.log_level = ODC_LOG_WARN;
    CHECK_OK(odc_init(&config, &context));
    if (why_not == NULL) {
        CHECK_EQUAL(warning[0], 0);
    } else {
        why_not += strlen(", as ");
        CHECK_EQUAL(strncmp(warning, why_not, strcspn(why_not, ";")), 0);
    }
    tensor t = make_tensor(context, "layer", NUMEL, ODC_BF16, ODC_BF16);
    check_routes(context, one->text);
    for (uint64_t minibatch = 0; minibatch < 2; ++minibatch) {
        use_once(context, &t, 1, minibatch);
    }
    odc_destroy(context);
    gpu_collect();
}

static void unusable_routes_are_explained_and_avoided(void **state) {
    static const reason reasons[] = {
        {"FAKE_FABRIC_GPU", "yes", "by GPUDirect RDMA; efa from rdmap79s0 to rdmap79s0"},
        {"FAKE_CUDA_ADAPTERS", "ordered", "by GPUDirect RDMA; "},
        {"ODC_GPU_DIRECT", "0", "through host memory; "},
        {"FAKE_FABRIC_VERSION", "1.17", "through host memory, as libfabric is 1.17, 1.18 or later is needed; "},
        {"FAKE_FABRIC_GPU", "no", "through host memory, as provider efa on rdmap79s0-rdm: fi_getinfo for GPU memory"},
        {"FAKE_FABRIC_GPU", "calls",
         "through host memory, as efa on rdmap79s0-rdm reaches GPU memory only through CUDA calls"},
        {"FAKE_FABRIC_GPU", "refused", "through host memory, as provider efa on rdmap79s0-rdm: fi_mr_reg of "},
        {"FAKE_CUDA_ADAPTERS", "none", "through host memory, as cuda:0 lets no network adapter reach its memory; "},
        {"FAKE_CUDA_ADAPTERS", "never",
         "through host memory, as cuda:0 does not tell when it sees what network adapters"},
    };
    (void)state;
    needs_processes("each process asks the driver and libfabric once");
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; ++i) {
        const char *before = getenv(reasons[i].variable);
        setenv(reasons[i].variable, reasons[i].value, 1);
        run_processes(2, go_another_way, (void *)&reasons[i]);
        if (before != NULL) {
            setenv("ODC_GPU_DIRECT", "1", 1);
        } else {
            unsetenv(reasons[i].variable);
        }
    }
}

/* Each end decides for itself: one reads and adds by GPUDirect RDMA while the other goes through host memory. */
static void go_half_way(int rank, int size, const char *job, void *arg) {
    (void)arg;
    setenv("ODC_GPU_DIRECT", rank == 1 ? "0" : "1", 1);
    odc_context *context = join(rank, size, job);
    check_routes(context, "through host memory of rank 1, as ODC_GPU_DIRECT is not 1; ");
    tensor all[2] = {make_tensor(context, "a", LARGE, ODC_F32, ODC_F16),
                     make_tensor(context, "b", NUMEL, ODC_F64, ODC_F64)};
    for (uint64_t minibatch = 0; minibatch < 3; ++minibatch) {
        use_once(context, all, 2, minibatch);
    }
    odc_destroy(context);
    gpu_collect();
}

static void one_end_may_go_through_host_memory(void **state) {
    (void)state;
    needs_processes("each rank has its own setting");
    setenv("ODC_STAGING_BYTES", "1048576", 1);
    run_processes(2, go_half_way, NULL);
    unsetenv("ODC_STAGING_BYTES");
}

static void ask_wrongly(int rank, int size, const char *job, void *arg) {
    odc_context *context = NULL;
    odc_config config = config_of(rank, size, job);
    (void)arg;
    CHECK_ERROR(odc_init(&config, &context), ODC_ERROR_ARGUMENT, "ODC_GPU_DIRECT=\"yes\"", "from 0 to 1");
}

static void a_wrong_setting_is_named(void **state) {
    (void)state;
    setenv("ODC_GPU_DIRECT", "yes", 1);
    run_processes(2, ask_wrongly, NULL);
    setenv("ODC_GPU_DIRECT", "1", 1);
}

/* ---- Deaths ---- */

typedef struct end {
    atomic_int ready;
    int adds; /* otherwise it is read from */
} end;

/* Rank 1 dies while others read from it, or add to it, more than can be in flight at once. */
static void die_in_the_midst(int rank, int size, const char *job, void *arg) {
    end *shared = arg;
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", LARGE, ODC_F32, ODC_F32);
    void *full = new_buffer(t, ODC_F32);
    use_once(context, &t, 1, 1);
    CHECK_OK(odc_publish(t.shard, NULL));
    raise_flag(&shared->ready);
    await_flag(&shared->ready, size);
    if (rank == 1) {
        sleep_us(2000);
        raise(SIGKILL);
    }
    odc_status status = ODC_OK;
    while (status == ODC_OK) {
        status = shared->adds ? odc_scatter_add(t.shard, full, LARGE, NULL) : odc_gather(t.shard, full, LARGE, NULL);
    }
    CHECK_EQUAL(status, ODC_ERROR_PEER_LOST);
    CHECK_SENTENCE(odc_last_error(), "rank 1");
    odc_destroy(context); /* registered memory is deregistered before it is freed */
    free_buffer(t, full);
}

static void a_rank_may_die_in_the_midst(void **state) {
    (void)state;
    needs_processes("it kills a rank");
    setenv("ODC_SILENCE_MS", "2000", 1);
    for (int adds = 0; adds < 2; ++adds) {
        end *shared = share(sizeof *shared);
        shared->adds = adds;
        run_mortals(3, 2, die_in_the_midst, shared);
    }
    setenv("ODC_SILENCE_MS", "60000", 1);
}

/* ---- Leaving ---- */

/* A rank that has left still accepts data until its context ends; that it does not sync is reported at once. */
static void leave_before_sync(int rank, int size, const char *job, void *arg) {
    odc_context *context = join_within(rank, size, job, 60000);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    void *full = new_buffer(t, ODC_F32);
    int64_t begin = now_ns();
    CHECK_OK(odc_publish(t.shard, NULL));
    if (rank == 0) {
        CHECK_OK(odc_shutdown(context));
        raise_flag(arg);
        await_flag(arg, size);
    } else {
        await_flag(arg, 1);
        CHECK_OK(odc_scatter_add(t.shard, full, NUMEL, NULL));
        CHECK_ERROR(odc_minibatch_sync(context), ODC_ERROR_PEER_LOST, "rank 0", "left in minibatch 0");
        CHECK(now_ns() - begin < (int64_t)30000000000);
        raise_flag(arg);
    }
    odc_destroy(context);
    free_buffer(t, full);
    gpu_collect();
}

static void who_has_left_is_not_waited_for(void **state) {
    (void)state;
    run_processes(2, leave_before_sync, share(sizeof(atomic_int)));
}

/* ---- The end of a context ---- */

/* Its GPU is busy with what others have sent, copying from and to memory that is then unmapped. */
static void leave_in_the_midst(int rank, int size, const char *job, void *arg) {
    enum { TIMES = 4 };
    atomic_int *published = arg;
    for (int i = 0; i < TIMES; ++i) {
        char name[128];
        snprintf(name, sizeof name, "%s.%d", job, i);
        odc_context *context = join(rank, size, name);
        tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
        void *full = new_buffer(t, ODC_F32);
        CHECK_OK(odc_publish(t.shard, NULL));
        raise_flag(published);
        for (odc_status status = ODC_OK; status == ODC_OK && rank > 0;) {
            status = odc_scatter_add(t.shard, full, NUMEL, NULL);
        }
        if (rank == 0) {
            await_flag(published, (i + 1) * size);
            sleep_us(100000 + i * 20000);
            CHECK_OK(odc_abort(context, "enough"));
        }
        odc_destroy(context);
        free_buffer(t, full);
        for (uint64_t choice = 0; choice < 4; ++choice) {
            gpu_wait(gpu_stream(choice)); /* nothing has faulted */
        }
        CHECK(!gpu_has_failed());
        gpu_collect();
    }
}

static void a_context_may_end_while_gradients_are_added(void **state) {
    (void)state;
    needs_processes("the driver's delays are a process's");
    setenv("FAKE_CUDA_DELAY_US", "20000", 1);
    run_processes(3, leave_in_the_midst, share(sizeof(atomic_int)));
    unsetenv("FAKE_CUDA_DELAY_US");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unusable_routes_are_explained_and_avoided),
        cmocka_unit_test(one_end_may_go_through_host_memory),
        cmocka_unit_test(a_wrong_setting_is_named),
        cmocka_unit_test(a_rank_may_die_in_the_midst),
        cmocka_unit_test(who_has_left_is_not_waited_for),
        cmocka_unit_test(a_context_may_end_while_gradients_are_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
