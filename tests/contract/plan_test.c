/* SPDX-License-Identifier: Apache-2.0 */
/* odc_plan: the properties of every plan, a comparison with brute force on small inputs and with a plain Karmarkar-Karp with
 * swaps on larger ones, bad input, extremes. */
#include "ranks.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { kMaxSamples = 4200 };

static const char *const kModels[] = {"linear", "1.5b", "7b"};

/* A request and its plan. */
struct planned {
    odc_plan_request request;
    odc_plan_summary summary;
    uint64_t lengths[kMaxSamples];
    int32_t rank_of[kMaxSamples];
    int32_t microbatch_of[kMaxSamples];
};

static uint64_t random_state;

static uint64_t draw(uint64_t bound) { return random_below(&random_state, bound); }

static double cost(const odc_plan_request *request, size_t sample) {
    const double x = (double)request->lengths[sample] / 32000;
    const int linear = request->a == 0 && request->b == 0;
    return request->a * x * x + (linear ? 1 : request->b) * x;
}

static struct planned *new_request(uint64_t count, int32_t ranks, const char *model) {
    struct planned *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    assert_true(count <= kMaxSamples);
    p->request.struct_size = sizeof(p->request);
    p->request.lengths = p->lengths;
    p->request.count = count;
    p->request.max_tokens = 65536;
    p->request.ranks = ranks;
    p->request.policy = ODC_LB_MINI;
    assert_int_equal(odc_plan_cost(model, &p->request.a, &p->request.b), ODC_OK);
    return p;
}

/* Lengths as in different tasks: even, long-tailed, few distinct values, nearly all at the budget. */
static void random_lengths(struct planned *p, uint64_t kind) {
    for (uint64_t i = 0; i < p->request.count; ++i) {
        uint64_t length = 1 + draw(65536);
        if (kind == 1) {
            length = 1 + (uint64_t)(65535.0 / (double)(1 + draw(60)));
        } else if (kind == 2) {
            length = 8000 * (1 + draw(8));
        } else if (kind == 3) {
            length = draw(8) ? 65536 - draw(30) : 1 + draw(200);
        }
        p->lengths[i] = length;
    }
}

static struct planned *random_request(uint64_t most_samples, int32_t most_ranks) {
    struct planned *p = new_request(1 + draw(most_samples), 1 + (int32_t)draw((uint64_t)most_ranks), kModels[draw(3)]);
    random_lengths(p, draw(4));
    return p;
}

static odc_status run(struct planned *p, int32_t policy) {
    p->request.policy = policy;
    memset(&p->summary, 0, sizeof(p->summary));
    p->summary.struct_size = sizeof(p->summary);
    return odc_plan(&p->request, p->rank_of, p->microbatch_of, &p->summary);
}

static void assert_near(double x, double y) {
    if (fabs(x - y) > 1e-9 * fmax(fabs(x), fabs(y))) {
        fail_msg("%.17g is not %.17g", x, y);
    }
}

/* ---- What holds for every plan ---- */

struct microbatch {
    uint64_t samples;
    uint64_t tokens;
    double cost;
};

/* The microbatches of one rank; checks that they are contiguous, keep the budget, and run in the policy's order. Raises
 * slowest[i] to the cost of the i-th. */
static int32_t check_rank(const struct planned *p, int32_t rank, uint64_t *samples, double *rank_cost,
                          double *slowest) {
    const odc_plan_request *r = &p->request;
    struct microbatch *all = calloc(r->count, sizeof(*all));
    assert_non_null(all);
    int32_t count = 0;
    *samples = 0;
    *rank_cost = 0;
    for (uint64_t i = 0; i < r->count; ++i) {
        if (p->rank_of[i] != rank) {
            continue;
        }
        const int32_t m = p->microbatch_of[i];
        assert_in_range(m, 0, r->count - 1);
        ++all[m].samples;
        assert_true(p->lengths[i] <= r->max_tokens - all[m].tokens);
        all[m].tokens += p->lengths[i];
        all[m].cost += cost(r, i);
        *rank_cost += cost(r, i);
        ++*samples;
        count = m >= count ? m + 1 : count;
    }
    for (int32_t m = 0; m < count; ++m) {
        assert_true(all[m].samples > 0);
        slowest[m] = fmax(slowest[m], all[m].cost);
        if (r->policy == ODC_LOCAL_SORT) {
            assert_int_equal(all[m].samples, 1);
            assert_true(m == 0 || all[m - 1].tokens <= all[m].tokens);
        } else {
            assert_true(m == 0 || all[m - 1].cost >= all[m].cost * (1 - 1e-12));
        }
    }
    free(all);
    return count;
}

static void check_plan(const struct planned *p) {
    const odc_plan_request *r = &p->request;
    const int32_t ranks = r->ranks < kMaxSamples ? r->ranks : kMaxSamples;
    double makespan = 0, by_collectives = 0;
    double *slowest = calloc(r->count, sizeof(*slowest));
    int32_t microbatches = -1;
    assert_non_null(slowest);
    for (uint64_t i = 0; i < r->count; ++i) {
        assert_in_range(p->rank_of[i], 0, ranks - 1);
        assert_true(r->policy != ODC_LOCAL_SORT || p->rank_of[i] == (int32_t)(i % (uint64_t)r->ranks));
    }
    for (int32_t rank = 0; rank < ranks; ++rank) {
        uint64_t samples = 0;
        double rank_cost = 0;
        const int32_t count = check_rank(p, rank, &samples, &rank_cost, slowest);
        makespan = fmax(makespan, rank_cost);
        if (r->policy == ODC_LB_MICRO) {
            assert_in_range(samples, r->count / (uint64_t)r->ranks,
                            (r->count + (uint64_t)r->ranks - 1) / (uint64_t)r->ranks);
        }
        if (r->policy == ODC_LB_MICRO || r->policy == ODC_SORTED_ROWS) {
            assert_true(count > 0 && (microbatches == -1 || count == microbatches));
            microbatches = count;
        }
    }
    for (uint64_t m = 0; m < r->count; ++m) {
        by_collectives += slowest[m];
    }
    free(slowest);
    assert_near(makespan, p->summary.makespan);
    assert_near(by_collectives, p->summary.collective_makespan);
    assert_true(p->summary.lower_bound > 0 && p->summary.lower_bound <= p->summary.makespan);
}

/* ---- Against brute force ---- */

/* The best makespan of all assignments, with at most `high` samples on a rank. */
static double brute_force(const odc_plan_request *r, uint64_t sample, double *sums, uint64_t *counts, uint64_t high) {
    double best = INFINITY;
    if (sample == r->count) {
        best = 0;
        for (int32_t rank = 0; rank < r->ranks; ++rank) {
            best = fmax(best, sums[rank]);
        }
        return best;
    }
    for (int32_t rank = 0; rank < r->ranks; ++rank) {
        if (counts[rank] < high) {
            const double before = sums[rank];
            sums[rank] += cost(r, sample);
            ++counts[rank];
            best = fmin(best, brute_force(r, sample + 1, sums, counts, high));
            --counts[rank];
            sums[rank] = before;
        }
    }
    return best;
}

static double optimum(const struct planned *p, uint64_t high) {
    double sums[8] = {0};
    uint64_t counts[8] = {0};
    return brute_force(&p->request, 0, sums, counts, high);
}

/* Whether the samples can fill `bins` non-empty microbatches, `per_rank` consecutive ones a rank, with at most `high` samples
 * on a rank. */
static int fills(const struct planned *p, uint64_t sample, uint64_t *tokens, uint64_t *counts, uint64_t bins,
                 uint64_t per_rank, uint64_t high) {
    if (sample == p->request.count) {
        for (uint64_t bin = 0; bin < bins; ++bin) {
            if (tokens[bin] == 0) {
                return 0;
            }
        }
        return 1;
    }
    for (uint64_t bin = 0; bin < bins; ++bin) {
        const uint64_t length = p->lengths[sample];
        if (counts[bin / per_rank] < high && tokens[bin] + length <= p->request.max_tokens) {
            tokens[bin] += length;
            ++counts[bin / per_rank];
            const int found = fills(p, sample + 1, tokens, counts, bins, per_rank, high);
            --counts[bin / per_rank];
            tokens[bin] -= length;
            if (found) {
                return 1;
            }
        }
    }
    return 0;
}

static int lb_micro_exists(const struct planned *p) {
    const uint64_t ranks = (uint64_t)p->request.ranks;
    const uint64_t high = (p->request.count + ranks - 1) / ranks;
    for (uint64_t k = 1; k <= p->request.count / ranks; ++k) {
        uint64_t tokens[16] = {0};
        uint64_t counts[16] = {0};
        if (fills(p, 0, tokens, counts, ranks * k, k, high)) {
            return 1;
        }
    }
    return 0;
}

static void small_plans_are_optimal(void **state) {
    (void)state;
    for (int i = 0; i < 300 / slowdown(); ++i) {
        struct planned *p = random_request(8, 4);
        const uint64_t ranks = (uint64_t)p->request.ranks;
        const double best = optimum(p, p->request.count);
        assert_int_equal(run(p, ODC_LB_MINI), ODC_OK);
        check_plan(p);
        assert_near(p->summary.makespan, best);
        assert_true(p->summary.lower_bound <= best * (1 + 1e-12));
        if (p->request.count % ranks == 0) {
            assert_int_equal(run(p, ODC_LB_MICRO), ODC_OK);
            check_plan(p);
            assert_near(p->summary.makespan, optimum(p, p->request.count / ranks));
        }
        free(p);
    }
}

/* LB-Micro fails exactly when the samples cannot be divided into equal numbers of microbatches. */
static void lb_micro_divides_what_can_be_divided(void **state) {
    (void)state;
    int refused = 0;
    for (int i = 0; i < 500 / slowdown(); ++i) {
        struct planned *p = random_request(7, 4);
        const odc_status status = run(p, ODC_LB_MICRO);
        assert_int_equal(status, lb_micro_exists(p) ? ODC_OK : ODC_ERROR_ARGUMENT);
        if (status == ODC_OK) {
            check_plan(p);
        } else {
            ++refused;
            assert_non_null(strstr(odc_last_error(), "LB-Micro"));
        }
        free(p);
    }
    assert_in_range(refused, 1, 500 / slowdown() - 1);
}

/* ---- Against a plain Karmarkar-Karp with swaps ---- */

enum { kPlainSamples = 128, kPlainRanks = 12 };

/* A partial division: parts in descending order of cost. `items[i]` is a bit set. */
struct division {
    double sums[kPlainRanks];
    unsigned char items[kPlainRanks][kPlainSamples / 8];
};

static int costlier_first(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return a > b ? -1 : a < b;
}

static void sort_parts(struct division *d, int parts) { /* insertion sort: sums and items together */
    for (int i = 1; i < parts; ++i) {
        for (int j = i; j > 0 && d->sums[j - 1] < d->sums[j]; --j) {
            const double sum = d->sums[j];
            unsigned char items[kPlainSamples / 8];
            memcpy(items, d->items[j], sizeof(items));
            d->sums[j] = d->sums[j - 1];
            memcpy(d->items[j], d->items[j - 1], sizeof(items));
            d->sums[j - 1] = sum;
            memcpy(d->items[j - 1], items, sizeof(items));
        }
    }
}

/* Removes and returns the division with the largest spread. */
static struct division take_widest(struct division *all, int *count, int parts) {
    int widest = 0;
    for (int i = 1; i < *count; ++i) {
        if (all[i].sums[0] - all[i].sums[parts - 1] > all[widest].sums[0] - all[widest].sums[parts - 1]) {
            widest = i;
        }
    }
    const struct division out = all[widest];
    all[widest] = all[--*count];
    return out;
}

static struct division differencing(struct division *all, int count, int parts) {
    while (count > 1) {
        struct division x = take_widest(all, &count, parts);
        const struct division y = take_widest(all, &count, parts);
        for (int i = 0; i < parts; ++i) {
            x.sums[i] += y.sums[parts - 1 - i];
            for (int byte = 0; byte < kPlainSamples / 8; ++byte) {
                x.items[i][byte] |= y.items[parts - 1 - i][byte];
            }
        }
        sort_parts(&x, parts);
        all[count++] = x;
    }
    return all[0];
}

static int has(const struct division *d, int part, uint64_t item) { return d->items[part][item / 8] >> item % 8 & 1; }

/* Makes one swap between an extreme part and another that brings both strictly inside the old range. */
static int swap_once(const odc_plan_request *r, struct division *d, int extreme) {
    const int parts = r->ranks;
    const double most = d->sums[0], least = d->sums[parts - 1];
    for (int other = 0; other < parts; ++other) {
        for (uint64_t i = 0; other != extreme && i < r->count; ++i) {
            for (uint64_t j = 0; has(d, extreme, i) && j < r->count; ++j) {
                const double moved = cost(r, i) - cost(r, j);
                const double here = d->sums[extreme] - moved, there = d->sums[other] + moved;
                if (has(d, other, j) && fmax(here, there) < most - 1e-6 && fmin(here, there) > least + 1e-6) {
                    d->items[extreme][i / 8] ^= (unsigned char)(1U << i % 8);
                    d->items[other][i / 8] ^= (unsigned char)(1U << i % 8);
                    d->items[extreme][j / 8] ^= (unsigned char)(1U << j % 8);
                    d->items[other][j / 8] ^= (unsigned char)(1U << j % 8);
                    d->sums[extreme] = here;
                    d->sums[other] = there;
                    sort_parts(d, parts);
                    return 1;
                }
            }
        }
    }
    return 0;
}

/* The makespans of differencing and after swaps. */
struct plain {
    double differenced;
    double swapped;
};

/* Starts from single samples, or from groups of `group` neighbours in cost. */
static struct plain plain_makespan(const odc_plan_request *r, uint64_t group) {
    struct division *all = calloc(r->count, sizeof(*all));
    double sorted[kPlainSamples];
    unsigned char used[kPlainSamples] = {0};
    assert_non_null(all);
    for (uint64_t i = 0; i < r->count; ++i) {
        sorted[i] = cost(r, i);
    }
    qsort(sorted, r->count, sizeof(*sorted), costlier_first);
    for (uint64_t at = 0; at < r->count; ++at) {
        uint64_t item = 0;
        while (used[item] || cost(r, item) != sorted[at]) {
            ++item;
        }
        used[item] = 1;
        all[at / group].sums[at % group] = sorted[at];
        all[at / group].items[at % group][item / 8] |= (unsigned char)(1U << item % 8);
    }
    struct division d = differencing(all, (int)(r->count / group), r->ranks);
    free(all);
    struct plain out = {.differenced = d.sums[0]};
    while (r->ranks > 1 && (swap_once(r, &d, 0) || swap_once(r, &d, r->ranks - 1))) {
    }
    out.swapped = d.sums[0];
    return out;
}

/* Never more than plain differencing, with which a plan starts. The plan's local search is another one, so in thousands of
 * requests swaps end a little lower once; returns whether they did. */
static int check_against(const struct planned *p, struct plain plain) {
    assert_true(p->summary.makespan <= plain.differenced * (1 + 1e-12));
    assert_true(p->summary.makespan <= plain.swapped * 1.01);
    return p->summary.makespan > plain.swapped * (1 + 1e-12);
}

static void never_worse_than_plain_differencing(void **state) {
    (void)state;
    int worse = 0;
    for (int i = 0; i < 100 / slowdown(); ++i) {
        struct planned *p = random_request(kPlainSamples, kPlainRanks);
        const uint64_t ranks = (uint64_t)p->request.ranks;
        if (i % 2 == 0 && p->request.count >= ranks) {
            p->request.count -= p->request.count % ranks;
        }
        struct plain best = plain_makespan(&p->request, 1);
        if (p->request.count % ranks == 0) {
            const struct plain equal_counts = plain_makespan(&p->request, ranks);
            assert_int_equal(run(p, ODC_LB_MICRO), ODC_OK);
            check_plan(p);
            worse += check_against(p, equal_counts);
            best.differenced = fmin(best.differenced, equal_counts.differenced);
            best.swapped = fmin(best.swapped, equal_counts.swapped);
        }
        assert_int_equal(run(p, ODC_LB_MINI), ODC_OK);
        check_plan(p);
        worse += check_against(p, best);
        free(p);
    }
    assert_in_range(worse, 0, 1);
}

/* ---- All policies together ---- */

static void policies_keep_their_promises(void **state) {
    (void)state;
    for (int i = 0; i < 40 / slowdown(); ++i) {
        struct planned *p = random_request(300, 40);
        assert_int_equal(run(p, ODC_LOCAL_SORT), ODC_OK);
        check_plan(p);
        double others = p->summary.makespan;
        if (run(p, ODC_LB_MICRO) == ODC_OK) {
            check_plan(p);
            others = fmin(others, p->summary.makespan);
            const double lb_micro = p->summary.collective_makespan;
            assert_int_equal(run(p, ODC_SORTED_ROWS), ODC_OK);
            check_plan(p);
            others = fmin(others, p->summary.makespan);
            assert_true(p->summary.collective_makespan <= lb_micro * (1 + 1e-12));
        } else {
            assert_true(p->request.count % (uint64_t)p->request.ranks != 0);
        }
        assert_int_equal(run(p, ODC_LB_MINI), ODC_OK);
        check_plan(p);
        assert_true(p->summary.makespan <= others * (1 + 1e-12)); /* equal sums may differ by rounding */

        struct planned *again = malloc(sizeof(*again));
        assert_non_null(again);
        *again = *p;
        again->request.lengths = again->lengths;
        assert_int_equal(odc_plan(&again->request, again->rank_of, again->microbatch_of, NULL), ODC_OK);
        assert_memory_equal(again->rank_of, p->rank_of, sizeof(p->rank_of));
        assert_memory_equal(again->microbatch_of, p->microbatch_of, sizeof(p->microbatch_of));
        free(again);
        free(p);
    }
}

/* 4,096 samples over 512 ranks; how long it takes (the bar is a second) is printed. */
static void large_plans(void **state) {
    (void)state;
    double longest = 0;
    for (uint64_t kind = 0; kind < 4; ++kind) {
        struct planned *p = new_request(4096, 512, kModels[kind % 3]);
        random_lengths(p, kind);
        for (int32_t policy = ODC_LOCAL_SORT; policy <= ODC_SORTED_ROWS; ++policy) {
            const clock_t begin = clock();
            assert_int_equal(run(p, policy), ODC_OK);
            longest = fmax(longest, (double)(clock() - begin) / CLOCKS_PER_SEC);
            check_plan(p);
        }
        free(p);
    }
    printf("4096 samples over 512 ranks: %.2f s of processor time at most\n", longest);
}

static void extremes(void **state) {
    (void)state;
    struct planned *p = new_request(5, INT32_MAX, "7b"); /* more ranks than samples */
    random_lengths(p, 0);
    for (int32_t policy = ODC_LOCAL_SORT; policy <= ODC_LB_MINI; policy += 2) {
        assert_int_equal(run(p, policy), ODC_OK);
        check_plan(p);
        assert_near(p->summary.makespan, p->summary.lower_bound);
    }
    p->request.ranks = 2; /* the tokens' sum overflows 64 bits */
    p->request.max_tokens = UINT64_MAX;
    for (uint64_t i = 0; i < p->request.count; ++i) {
        p->lengths[i] = UINT64_MAX - i;
    }
    assert_int_equal(run(p, ODC_LB_MINI), ODC_OK);
    check_plan(p);
    p->request.count = 4;
    assert_int_equal(run(p, ODC_LB_MICRO), ODC_OK);
    check_plan(p);
    p->request.a = p->request.b = 0; /* means linear */
    p->lengths[0] = p->lengths[1] = p->lengths[2] = p->lengths[3] = 16000;
    assert_int_equal(run(p, ODC_LB_MICRO), ODC_OK);
    assert_near(p->summary.makespan, 1);
    assert_near(p->summary.lower_bound, 1);
    assert_int_equal(p->microbatch_of[0] + p->microbatch_of[1] + p->microbatch_of[2] + p->microbatch_of[3], 0);
    free(p);
}

/* ---- Bad input ---- */

static struct planned *good_request(void) {
    struct planned *p = new_request(4, 2, "7b");
    p->summary.struct_size = sizeof(p->summary);
    random_lengths(p, 0);
    p->lengths[0] = p->lengths[1] = 65536; /* together long enough for a cost beyond the range of double */
    return p;
}

static void bad_input_is_refused(void **state) {
    (void)state;
    struct planned *good = good_request();
    struct planned *p = good_request();
    assert_int_equal(odc_plan(NULL, p->rank_of, p->microbatch_of, NULL), ODC_ERROR_ARGUMENT);
    assert_int_equal(odc_plan(&p->request, NULL, p->microbatch_of, NULL), ODC_ERROR_ARGUMENT);
    assert_int_equal(odc_plan(&p->request, p->rank_of, NULL, NULL), ODC_ERROR_ARGUMENT);
#define REFUSED(change, text)                                                                                    \
    do {                                                                                                         \
        *p = *good;                                                                                              \
        p->request.lengths = p->lengths;                                                                         \
        change;                                                                                                  \
        CHECK_ERROR(odc_plan(&p->request, p->rank_of, p->microbatch_of, &p->summary), ODC_ERROR_ARGUMENT, text); \
    } while (0)
    REFUSED(p->request.lengths = NULL, "no samples");
    REFUSED(p->request.count = 0, "no samples");
    REFUSED(p->request.count = UINT64_MAX, "samples are more than");
    REFUSED(p->request.ranks = 0, "`ranks` is 0");
    REFUSED(p->request.ranks = -3, "`ranks` is -3");
    REFUSED(p->request.policy = 0, "policy 0");
    REFUSED(p->request.policy = 5, "policy 5");
    REFUSED(p->request.max_tokens = 0, "`max_tokens` is 0");
    REFUSED(p->lengths[2] = 65537, "sample 2 has 65537 tokens");
    REFUSED(p->lengths[3] = 0, "sample 3 has 0 tokens");
    REFUSED(p->request.a = -1, "a=-1");
    REFUSED(p->request.b = -0.5, "b=-0.5");
    REFUSED(p->request.a = NAN, "a=nan");
    REFUSED(p->request.b = INFINITY, "b=inf");
    REFUSED(p->request.b = 1e308, "double's range");
    REFUSED((p->request.ranks = 5, p->request.policy = ODC_LB_MICRO), "LB-Micro");
    REFUSED((p->request.ranks = 5, p->request.policy = ODC_SORTED_ROWS), "sorted rows");
#undef REFUSED
    free(p);
    free(good);
}

static void cost_models(void **state) {
    (void)state;
    double a = -1, b = -1;
    assert_int_equal(odc_plan_cost("linear", &a, &b), ODC_OK);
    assert_true(a == 0 && b == 1);
    assert_int_equal(odc_plan_cost("1.5b", &a, &b), ODC_OK);
    assert_true(a == 1.982122 && b == 2.611821);
    assert_int_equal(odc_plan_cost("7b", &a, &b), ODC_OK);
    assert_true(a == 4.348357 && b == 8.768377);
    assert_int_equal(odc_plan_cost("70b", &a, &b), ODC_ERROR_ARGUMENT);
    assert_non_null(strstr(odc_last_error(), "70b"));
    assert_true(a == 4.348357 && b == 8.768377);
    assert_int_equal(odc_plan_cost(NULL, &a, &b), ODC_ERROR_ARGUMENT);
    assert_int_equal(odc_plan_cost("7b", NULL, &b), ODC_ERROR_ARGUMENT);
    assert_int_equal(odc_plan_cost("7b", &a, NULL), ODC_ERROR_ARGUMENT);
}

int main(void) {
    random_state = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_plans_are_optimal),
        cmocka_unit_test(lb_micro_divides_what_can_be_divided),
        cmocka_unit_test(never_worse_than_plain_differencing),
        cmocka_unit_test(policies_keep_their_promises),
        cmocka_unit_test(large_plans),
        cmocka_unit_test(extremes),
        cmocka_unit_test(bad_input_is_refused),
        cmocka_unit_test(cost_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
