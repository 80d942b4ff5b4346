/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that ends within the library, by pthread_cancel or by pthread_exit in a callback, ends neither its process nor the
 * job: a cancelled call is completed first, and a call whose callback ends the thread may be repeated. */
#include "model.h"

#include <pthread.h>

typedef enum ending { CANCELLED, CANCELLED_AT_ONCE, EXITS } ending;

enum { NUMEL = 100, SALT = 8 };

static char exit_value;

typedef struct call {
    odc_status (*make)(struct call *call);
    const odc_config *config;
    odc_context *context;
    tensor t;
    void *full;
    double value;
    uint64_t operation;
    ending how;
    odc_status status;
    atomic_int returned;
    atomic_int survived;
    atomic_int asked; /* calls of `interrupted` */
    atomic_int exits; /* while 1, the callback ends its thread */
    atomic_int *step; /* the number of waits that rank 1 lets through */
} call;

static int interrupted(void *arg) {
    call *asked = arg;
    raise_flag(&asked->asked);
    if (read_flag(&asked->exits)) {
        set_flag(&asked->exits, 0);
        pthread_exit(&exit_value);
    }
    return 0;
}

static odc_status make_init(call *c) { return odc_init(c->config, &c->context); }
static odc_status make_reduce(call *c) {
    c->value = 1;
    return odc_all_reduce(c->context, &c->value, 1, ODC_SUM);
}
static odc_status make_gather(call *c) { return odc_gather(c->t.shard, c->full, NUMEL, NULL); }
static odc_status make_addition(call *c) { return odc_scatter_add(c->t.shard, c->full, NUMEL, NULL); }
static odc_status make_wait(call *c) { return odc_wait(c->context, c->operation); }
static odc_status make_sync(call *c) { return odc_minibatch_sync(c->context); }

static void *run_call(void *arg) {
    call *c = arg;
    int before;
    if (c->how == CANCELLED_AT_ONCE) {
        CHECK_EQUAL(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before), 0);
    }
    c->status = c->make(c);
    set_flag(&c->returned, 1);
    pthread_testcancel();
    set_flag(&c->survived, 1);
    return NULL;
}

static pthread_t start_call(call *c) {
    pthread_t thread;
    set_flag(&c->asked, 0);
    set_flag(&c->returned, 0);
    set_flag(&c->survived, 0);
    CHECK_EQUAL(pthread_create(&thread, NULL, run_call, c), 0);
    return thread;
}

static void *end_of(pthread_t thread) {
    void *value = NULL;
    CHECK_EQUAL(pthread_join(thread, &value), 0);
    return value;
}

/* A thread makes the call, which waits, and ends there as `how` says; then the wait ends. Finally the call is repeated. */
static void end_in(odc_status (*make)(call *), call *c) {
    c->make = make;
    if (c->how == EXITS) {
        set_flag(&c->exits, 1);
        CHECK(end_of(start_call(c)) == &exit_value);
        CHECK(!read_flag(&c->returned) && !read_flag(&c->survived));
    }
    pthread_t thread = start_call(c);
    await_flag(&c->asked, 1);
    if (c->how != EXITS) {
        CHECK_EQUAL(pthread_cancel(thread), 0);
    }
    raise_flag(c->step);
    end_of(thread);
    CHECK_EQUAL(read_flag(&c->survived), c->how == EXITS);
    if (c->how != CANCELLED_AT_ONCE) {
        CHECK(read_flag(&c->returned));
        CHECK_EQUAL(c->status, ODC_OK);
    }
}

static void ends_in_each(int rank, int size, const char *job, const ending *how, atomic_int *step) {
    odc_config config = config_of(rank, size, job);
    call c = {.config = &config, .how = *how, .step = step};
    config.interrupted = interrupted;
    config.interrupted_arg = &c;
    if (several_hosts()) { /* there the all-gather waits, and not the library */
        raise_flag(step);
        CHECK_OK(odc_init(&config, &c.context));
    } else {
        end_in(make_init, &c);
    }
    c.t = make_tensor(c.context, "layer", NUMEL, ODC_F32, ODC_F32);
    c.full = new_full(NUMEL, ODC_F32);
    void *other = new_full(NUMEL, ODC_F32);
    write_parameters(c.t, 3);
    end_in(make_reduce, &c);
    CHECK(c.value == 2);
    CHECK_OK(odc_publish_all(c.context, NULL));
    end_in(make_gather, &c);
    check_full(c.t, c.full, 3);
    CHECK_OK(odc_minibatch_sync(c.context));

    CHECK_OK(odc_publish_all(c.context, NULL));
    fill_gradients(c.t, c.full, SALT);
    end_in(make_addition, &c);
    CHECK_OK(odc_minibatch_sync(c.context));
    check_sums(c.t, (uint64_t[]){SALT}, 1);

    CHECK_OK(odc_publish_all(c.context, NULL));
    CHECK_OK(odc_gather_start(c.t.shard, other, NUMEL, NULL, &c.operation));
    end_in(make_wait, &c);
    check_full(c.t, other, 3);
    CHECK_OK(odc_minibatch_sync(c.context));

    CHECK_OK(odc_publish_all(c.context, NULL));
    CHECK_OK(odc_scatter_add_start(c.t.shard, c.full, NUMEL, NULL, &c.operation));
    end_in(make_wait, &c);
    end_in(make_sync, &c);
    check_sums(c.t, (uint64_t[]){SALT}, 1);

    CHECK_OK(odc_publish_all(c.context, NULL));
    CHECK_OK(odc_scatter_add_start(c.t.shard, c.full, NUMEL, NULL, &c.operation));
    end_in(make_sync, &c); /* the sync completes it */
    check_sums(c.t, (uint64_t[]){SALT}, 1);
    free(c.full);
    free(other);
    odc_destroy(c.context);
}

/* Rank 1 goes on when another wait of rank 0 may end. */
static void lets_through(int rank, int size, const char *job, atomic_int *step) {
    double value = 1;
    await_flag(step, 1);
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    write_parameters(t, 3);
    await_flag(step, 2);
    CHECK_OK(odc_all_reduce(context, &value, 1, ODC_SUM));
    for (int minibatch = 0; minibatch < 3; ++minibatch) {
        await_flag(step, 3 + minibatch);
        CHECK_OK(odc_publish_all(context, NULL));
        CHECK_OK(odc_minibatch_sync(context));
    }
    await_flag(step, 6);
    CHECK_OK(odc_publish_all(context, NULL));
    await_flag(step, 7);
    CHECK_OK(odc_minibatch_sync(context));
    await_flag(step, 8);
    CHECK_OK(odc_publish_all(context, NULL));
    CHECK_OK(odc_minibatch_sync(context));
    check_sums(t, (uint64_t[]){SALT}, 1);
    odc_destroy(context);
}

typedef struct end_plan {
    ending how;
    atomic_int *step;
} end_plan;

static void ends(int rank, int size, const char *job, void *arg) {
    const end_plan *plan = arg;
    if (rank == 0) {
        ends_in_each(rank, size, job, &plan->how, plan->step);
    } else {
        lets_through(rank, size, job, plan->step);
    }
}

static void run_ends(ending how) {
    end_plan plan = {how, share(sizeof(atomic_int))};
    run_processes(2, ends, &plan);
}

static void a_cancelled_thread_completes_its_call_and_ends(void **state) {
    (void)state;
    run_ends(CANCELLED);
}

static void a_thread_that_may_be_cancelled_at_any_time_completes_its_call_and_ends(void **state) {
    (void)state;
    run_ends(CANCELLED_AT_ONCE);
}

static void a_call_whose_callback_ends_the_thread_may_be_made_again(void **state) {
    (void)state;
    run_ends(EXITS);
}

/* ---- The all-gather callback ---- */

static int exits_in_all_gather(void *arg, const void *mine, void *all, size_t bytes) {
    (void)arg, (void)mine, (void)all, (void)bytes;
    pthread_exit(&exit_value);
}

static void *join_and_exit(void *arg) {
    odc_context *context = NULL;
    odc_config config = {.struct_size = sizeof config, .size = 2, .all_gather = exits_in_all_gather};
    (void)arg;
    odc_init(&config, &context);
    return NULL;
}

static void a_thread_may_end_in_the_all_gather(int rank, int size, const char *job, void *arg) {
    (void)arg;
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, join_and_exit, NULL), 0);
    CHECK(end_of(thread) == &exit_value);
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", NUMEL, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 5);
    odc_destroy(context);
}

static void a_process_whose_thread_ended_in_the_all_gather_can_join(void **state) {
    (void)state;
    run_processes(2, a_thread_may_end_in_the_all_gather, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cancelled_thread_completes_its_call_and_ends),
        cmocka_unit_test(a_thread_that_may_be_cancelled_at_any_time_completes_its_call_and_ends),
        cmocka_unit_test(a_call_whose_callback_ends_the_thread_may_be_made_again),
        cmocka_unit_test(a_process_whose_thread_ended_in_the_all_gather_can_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
