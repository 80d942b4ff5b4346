/* SPDX-License-Identifier: Apache-2.0 */
/* odc_plan for ranks of different speeds, and with a tail that is left to be claimed: the properties of every plan, the best one
 * on small inputs by brute force, and bad input. */
#include "ranks.h"

#include <math.h>
#include <stdbool.h>

enum { MOST_SAMPLES = 600, MOST_RANKS = 24 };

typedef struct plan {
    odc_plan_request request;
    odc_plan_summary summary;
    uint64_t lengths[MOST_SAMPLES];
    double speeds[MOST_RANKS];
    int32_t rank_of[MOST_SAMPLES];
    int32_t microbatch_of[MOST_SAMPLES];
} plan;

static uint64_t state;

static uint64_t draw(uint64_t bound) { return random_below(&state, bound); }

static double cost(const odc_plan_request *request, uint64_t sample) {
    const double x = (double)request->lengths[sample] / 32000;
    return request->a * x * x + request->b * x;
}

static plan random_plan(uint64_t most_samples, uint64_t most_ranks) {
    static const char *const models[] = {"linear", "1.5b", "7b"};
    plan p;
    memset(&p, 0, sizeof p);
    p.request.struct_size = sizeof p.request;
    p.request.count = 1 + draw(most_samples);
    p.request.max_tokens = 65536;
    p.request.ranks = 1 + (int32_t)draw(most_ranks);
    p.request.policy = ODC_LB_MINI;
    assert_int_equal(odc_plan_cost(models[draw(3)], &p.request.a, &p.request.b), ODC_OK);
    const uint64_t kind = draw(3);
    for (uint64_t i = 0; i < p.request.count; ++i) {
        p.lengths[i] = kind == 0   ? 1 + draw(65536)
                       : kind == 1 ? 1 + (uint64_t)(65535.0 / (double)(1 + draw(60)))
                                   : 8000 * (1 + draw(8));
    }
    for (int rank = 0; rank < MOST_RANKS; ++rank) {
        p.speeds[rank] = draw(4) == 0 ? 1 : 0.2 + (double)draw(1000) / 500;
    }
    return p;
}

static void run(plan *p) {
    p->request.lengths = p->lengths;
    p->summary.struct_size = sizeof p->summary;
    if (odc_plan(&p->request, p->rank_of, p->microbatch_of, &p->summary) != ODC_OK) {
        fail_msg("%s", odc_last_error());
    }
}

static void assert_near(double x, double y) {
    if (fabs(x - y) > 1e-9 * fmax(fabs(x), fabs(y))) {
        fail_msg("%.17g is not %.17g", x, y);
    }
}

/* Relative to the mean. */
static double speed_of(const plan *p, int rank) {
    double sum = 0;
    for (int i = 0; i < p->request.ranks; ++i) {
        sum += p->request.speeds != NULL ? p->speeds[i] : 1;
    }
    return (p->request.speeds != NULL ? p->speeds[rank] : 1) / (sum / p->request.ranks);
}

typedef struct microbatch {
    uint64_t samples;
    uint64_t tokens;
    double cost;
} microbatch;

/* Those of a rank, or the items (-1): contiguous, within the budget, the costliest first. Returns how many. */
static int32_t read_microbatches(const plan *p, int32_t rank, microbatch *all) {
    int32_t count = 0;
    memset(all, 0, MOST_SAMPLES * sizeof *all);
    for (uint64_t i = 0; i < p->request.count; ++i) {
        if (p->rank_of[i] == rank) {
            const int32_t m = p->microbatch_of[i];
            assert_in_range(m, 0, p->request.count - 1);
            ++all[m].samples;
            all[m].tokens += p->lengths[i];
            all[m].cost += cost(&p->request, i);
            assert_true(all[m].tokens <= p->request.max_tokens);
            count = m >= count ? m + 1 : count;
        }
    }
    for (int32_t m = 0; m < count; ++m) {
        assert_true(all[m].samples > 0);
        assert_true(m == 0 || all[m - 1].cost >= all[m].cost * (1 - 1e-12));
    }
    return count;
}

/* When each rank is done with what is planned. */
static void read_loads(const plan *p, double *loads) {
    for (int32_t rank = 0; rank < p->request.ranks; ++rank) {
        microbatch all[MOST_SAMPLES];
        const int32_t count = read_microbatches(p, rank, all);
        loads[rank] = 0;
        for (int32_t m = 0; m < count; ++m) {
            loads[rank] += all[m].cost / speed_of(p, rank);
        }
    }
}

static double longest(const plan *p, const double *loads) {
    double most = 0;
    for (int32_t rank = 0; rank < p->request.ranks; ++rank) {
        most = fmax(most, loads[rank]);
    }
    return most;
}

/* The cheapest samples, as many as the share of the cost allows, in items that are fine enough. */
static void check_tail(const plan *p, const microbatch *items) {
    double total = 0, claimed = 0, costliest = 0, cheapest_planned = INFINITY;
    for (uint64_t i = 0; i < p->request.count; ++i) {
        const double one = cost(&p->request, i);
        assert_in_range(p->rank_of[i] + 1, 0, p->request.ranks);
        total += one;
        if (p->rank_of[i] < 0) {
            claimed += one;
            costliest = fmax(costliest, one);
        } else {
            cheapest_planned = fmin(cheapest_planned, one);
        }
    }
    assert_true(costliest <= cheapest_planned);
    assert_true(claimed <= p->request.tail * total * (1 + 1e-9));
    if (isfinite(cheapest_planned)) {
        assert_true(claimed + cheapest_planned > p->request.tail * total * (1 - 1e-9));
    }
    for (uint64_t m = 0; m < p->summary.items; ++m) {
        assert_true(items[m].samples == 1 || items[m].cost <= claimed / p->request.ranks / 12 * (1 + 1e-9));
    }
}

/* Whether `rank` is done before or after `other`, beyond rounding; which of two equally fast ranks claims makes no difference. */
static bool differ(const plan *p, const double *loads, int rank, int other) {
    return fabs(loads[rank] - loads[other]) > 1e-12 * loads[other] || speed_of(p, rank) == speed_of(p, other);
}

/* Returns false where rounding decides who claims an item. */
static bool claim(const plan *p, const microbatch *items, double *loads) {
    bool decided = true;
    for (uint64_t m = 0; m < p->summary.items; ++m) {
        int first = 0;
        for (int rank = 1; rank < p->request.ranks; ++rank) {
            first = loads[rank] < loads[first] ? rank : first;
        }
        for (int rank = 0; rank < p->request.ranks; ++rank) {
            decided = decided && (loads[first] == 0 || differ(p, loads, rank, first));
        }
        loads[first] += items[m].cost / speed_of(p, first);
    }
    return decided;
}

static int compared; /* plans whose makespan a model can tell */

static void check_plan(const plan *p) {
    microbatch items[MOST_SAMPLES];
    double loads[MOST_RANKS];
    assert_int_equal(read_microbatches(p, -1, items), p->summary.items);
    check_tail(p, items);
    read_loads(p, loads);
    if (claim(p, items, loads)) {
        assert_near(longest(p, loads), p->summary.makespan);
        ++compared;
    }
    assert_true(p->summary.lower_bound <= p->summary.makespan);
}

static void plans_of_any_speeds_and_tails(void **unused) {
    (void)unused;
    state = test_seed();
    compared = 0;
    const int draws = 300 / slowdown();
    for (int i = 0; i < draws; ++i) {
        plan p = random_plan(i % 3 == 0 ? MOST_SAMPLES : 60, MOST_RANKS);
        p.request.speeds = draw(3) == 0 ? NULL : p.speeds;
        p.request.tail = draw(4) == 0 ? 1 : draw(3) == 0 ? 0 : (double)draw(100) / 100;
        run(&p);
        check_plan(&p);
        const plan before = p;
        run(&p);
        assert_memory_equal(p.rank_of, before.rank_of, sizeof p.rank_of);
        assert_memory_equal(p.microbatch_of, before.microbatch_of, sizeof p.microbatch_of);
    }
    assert_true(compared >= draws * 4 / 5);
}

static void equal_speeds_change_nothing(void **unused) {
    (void)unused;
    state = test_seed();
    for (int i = 0; i < 60 / slowdown(); ++i) {
        plan p = random_plan(200, MOST_RANKS);
        run(&p);
        const plan before = p;
        for (int rank = 0; rank < MOST_RANKS; ++rank) {
            p.speeds[rank] = 0.7;
        }
        p.request.speeds = p.speeds;
        run(&p);
        assert_memory_equal(p.rank_of, before.rank_of, sizeof p.rank_of);
        assert_memory_equal(p.microbatch_of, before.microbatch_of, sizeof p.microbatch_of);
        assert_true(p.summary.makespan == before.summary.makespan);
    }
}

static void speeds_never_make_a_plan_worse(void **unused) {
    (void)unused;
    state = test_seed();
    for (int i = 0; i < 100 / slowdown(); ++i) {
        plan p = random_plan(200, MOST_RANKS);
        double loads[MOST_RANKS];
        run(&p);
        p.request.speeds = p.speeds; /* the same plan at these speeds */
        read_loads(&p, loads);
        const double before = longest(&p, loads);
        run(&p);
        assert_true(p.summary.makespan <= before * (1 + 1e-12));
    }
}

/* Equal ranks that claim are done no later than by the plan without a tail, but for the last item that one of them takes. */
static void a_tail_costs_equal_ranks_an_item_at_most(void **unused) {
    (void)unused;
    state = test_seed();
    for (int i = 0; i < 200 / slowdown(); ++i) {
        plan p = random_plan(MOST_SAMPLES, MOST_RANKS);
        microbatch items[MOST_SAMPLES];
        run(&p);
        const double before = p.summary.makespan;
        p.request.tail = (double)(1 + draw(100)) / 100;
        run(&p);
        const int32_t count = read_microbatches(&p, -1, items); /* the costliest first */
        assert_true(p.summary.makespan <= (before + (count > 0 ? items[0].cost : 0)) * (1 + 1e-12));
    }
}

static double best_from(const plan *p, uint64_t sample, double *loads, double best) {
    if (sample == p->request.count) {
        return fmin(best, longest(p, loads));
    }
    for (int rank = 0; rank < p->request.ranks; ++rank) {
        const double before = loads[rank];
        loads[rank] += cost(&p->request, sample) / speed_of(p, rank);
        best = loads[rank] < best ? best_from(p, sample + 1, loads, best) : best;
        loads[rank] = before;
    }
    return best;
}

static void small_plans_are_the_best(void **unused) {
    (void)unused;
    state = test_seed();
    for (int i = 0; i < 200 / slowdown(); ++i) {
        plan p = random_plan(8, 4);
        double loads[MOST_RANKS] = {0};
        p.request.speeds = p.speeds;
        run(&p);
        const double best = best_from(&p, 0, loads, INFINITY);
        assert_near(p.summary.makespan, best);
        assert_true(p.summary.lower_bound <= best * (1 + 1e-12));
    }
}

/* A rank of half the speed gets half of the work of the others. */
static void a_slow_rank_gets_less(void **unused) {
    (void)unused;
    state = 1;
    plan p = random_plan(1, 1);
    p.request.count = MOST_SAMPLES;
    p.request.ranks = 3;
    for (int i = 0; i < MOST_SAMPLES; ++i) {
        p.lengths[i] = 1000;
    }
    p.speeds[0] = 2, p.speeds[1] = 1, p.speeds[2] = 2;
    p.request.speeds = p.speeds;
    run(&p);
    int counts[3] = {0};
    for (int i = 0; i < MOST_SAMPLES; ++i) {
        ++counts[p.rank_of[i]];
    }
    assert_true(counts[0] == 240 && counts[1] == 120 && counts[2] == 240);
}

#define REFUSED(call, ...)                             \
    do {                                               \
        assert_int_equal(call, ODC_ERROR_ARGUMENT);    \
        CHECK_SENTENCE(odc_last_error(), __VA_ARGS__); \
    } while (0)

static void wrong_speeds_and_tails_are_told(void **unused) {
    (void)unused;
    state = 1;
    plan p = random_plan(20, 3);
    p.request.lengths = p.lengths;
    p.request.ranks = 3;
    int32_t minibatch_of[MOST_SAMPLES];
    const double wrong_tails[] = {-0.1, 1.1, NAN};
    for (int i = 0; i < 3; ++i) {
        p.request.tail = wrong_tails[i];
        REFUSED(odc_plan(&p.request, p.rank_of, p.microbatch_of, NULL), "`tail` is", "from 0 to 1");
    }
    p.request.tail = 0;
    p.request.speeds = p.speeds;
    const double wrong_speeds[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; ++i) {
        p.speeds[1] = wrong_speeds[i];
        REFUSED(odc_plan(&p.request, p.rank_of, p.microbatch_of, NULL), "speed of rank 1 is", "finite and above 0");
    }
    p.speeds[1] = 1e-320;
    REFUSED(odc_plan(&p.request, p.rank_of, p.microbatch_of, NULL), "speeds from", "nearer to 1");
    p.speeds[1] = 1;
    const int32_t others[] = {ODC_LOCAL_SORT, ODC_LB_MICRO, ODC_SORTED_ROWS};
    for (int i = 0; i < 3; ++i) {
        p.request.policy = others[i];
        REFUSED(odc_plan(&p.request, p.rank_of, p.microbatch_of, NULL), "only LB-Mini", "speeds");
        p.request.speeds = NULL;
        p.request.tail = 0.25;
        REFUSED(odc_plan(&p.request, p.rank_of, p.microbatch_of, NULL), "only LB-Mini", "tail");
        p.request.tail = 0;
        p.request.speeds = p.speeds;
    }
    p.request.policy = ODC_LB_MINI;
    const odc_window_request window = {
        .struct_size = sizeof window, .samples = &p.request, .minibatches = 1, .order = ODC_WINDOW_EXCHANGED};
    REFUSED(odc_plan_window(&window, minibatch_of, p.rank_of, p.microbatch_of, NULL), "`speeds` is for odc_plan");
    p.request.speeds = NULL;
    p.request.tail = 0.25;
    REFUSED(odc_plan_window(&window, minibatch_of, p.rank_of, p.microbatch_of, NULL), "a `tail` is for odc_plan");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_of_any_speeds_and_tails),   cmocka_unit_test(equal_speeds_change_nothing),
        cmocka_unit_test(speeds_never_make_a_plan_worse),  cmocka_unit_test(a_tail_costs_equal_ranks_an_item_at_most),
        cmocka_unit_test(small_plans_are_the_best),        cmocka_unit_test(a_slow_rank_gets_less),
        cmocka_unit_test(wrong_speeds_and_tails_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
