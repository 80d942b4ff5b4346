/* SPDX-License-Identifier: Apache-2.0 */
/* odc_plan_window: what it reports, recomputed from its assignment; each minibatch's plan against odc_plan; what lookahead gains;
 * bad input. */
#include "ranks.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { kMostSamples = 16 * 4096, kMostMinibatches = 16 };

struct window {
    odc_plan_request samples;
    odc_window_request request;
    odc_window_summary summary;
    uint64_t counts[kMostMinibatches];
    uint64_t lengths[kMostSamples];
    int32_t minibatch_of[kMostSamples];
    int32_t rank_of[kMostSamples];
    int32_t microbatch_of[kMostSamples];
};

static uint64_t random_state;

static uint64_t draw(uint64_t bound) { return random_below(&random_state, bound); }

/* A window of long-tailed lengths: most are short, one in about sixty is near the budget. */
static struct window *new_window(int32_t minibatches, uint64_t samples_each, int32_t ranks) {
    struct window *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    w->samples = (odc_plan_request){.struct_size = sizeof(w->samples),
                                    .lengths = w->lengths,
                                    .count = (uint64_t)minibatches * samples_each,
                                    .max_tokens = 65536,
                                    .ranks = ranks,
                                    .policy = ODC_LB_MINI};
    assert_true(w->samples.count <= kMostSamples);
    assert_int_equal(odc_plan_cost("7b", &w->samples.a, &w->samples.b), ODC_OK);
    w->request = (odc_window_request){.struct_size = sizeof(w->request),
                                      .samples = &w->samples,
                                      .minibatches = minibatches,
                                      .order = ODC_WINDOW_EXCHANGED};
    w->summary.struct_size = sizeof(w->summary);
    for (uint64_t i = 0; i < w->samples.count; ++i) {
        w->lengths[i] = 1 + (uint64_t)(65535.0 / (double)(1 + draw(60)));
    }
    return w;
}

static odc_status run(struct window *w) {
    return odc_plan_window(&w->request, w->minibatch_of, w->rank_of, w->microbatch_of, &w->summary);
}

static uint64_t count_of(const struct window *w, int32_t minibatch) {
    return w->request.counts != NULL ? w->counts[minibatch] : w->samples.count / (uint64_t)w->request.minibatches;
}

/* The minibatch of the n-th sample in the order of the data. */
static int32_t given_minibatch(const struct window *w, uint64_t sample) {
    int32_t minibatch = 0;
    for (uint64_t end = count_of(w, 0); sample >= end; end += count_of(w, minibatch)) {
        ++minibatch;
    }
    return minibatch;
}

static int longer_first(const void *x, const void *y) {
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return a > b ? -1 : a < b;
}

static void assert_near(double x, double y) {
    if (fabs(x - y) > 1e-9 * fmax(fabs(x), fabs(y))) {
        fail_msg("%.17g is not %.17g", x, y);
    }
}

struct sums {
    double makespan, collective_makespan, tokens, squares;
};

/* Plans one minibatch by odc_plan: in the order of the data, or as the window has it, with the same assignment. */
static void add_minibatch(const struct window *w, int32_t minibatch, int in_order, struct sums *sums) {
    uint64_t *lengths = calloc(w->samples.count, sizeof(*lengths));
    uint64_t *samples = calloc(w->samples.count, sizeof(*samples));
    int32_t *rank_of = calloc(w->samples.count, sizeof(*rank_of));
    int32_t *microbatch_of = calloc(w->samples.count, sizeof(*microbatch_of));
    assert_true(lengths != NULL && samples != NULL && rank_of != NULL && microbatch_of != NULL);
    odc_plan_request request = w->samples;
    odc_plan_summary summary = {.struct_size = sizeof(summary)};
    double tokens = 0;
    request.lengths = lengths;
    request.count = 0;
    for (uint64_t i = 0; i < w->samples.count; ++i) {
        if ((in_order ? given_minibatch(w, i) : w->minibatch_of[i]) == minibatch) {
            tokens += (double)w->lengths[i];
            samples[request.count] = i;
            lengths[request.count++] = w->lengths[i];
        }
    }
    assert_int_equal(request.count, count_of(w, minibatch));
    assert_int_equal(odc_plan(&request, rank_of, microbatch_of, &summary), ODC_OK);
    for (uint64_t i = 0; !in_order && i < request.count; ++i) {
        assert_int_equal(w->rank_of[samples[i]], rank_of[i]);
        assert_int_equal(w->microbatch_of[samples[i]], microbatch_of[i]);
    }
    sums->makespan += summary.makespan;
    sums->collective_makespan += summary.collective_makespan;
    sums->tokens += tokens;
    sums->squares += tokens * tokens;
    free(lengths);
    free(samples);
    free(rank_of);
    free(microbatch_of);
}

static struct sums sums_of(const struct window *w, int in_order) {
    struct sums sums = {0};
    for (int32_t minibatch = 0; minibatch < w->request.minibatches; ++minibatch) {
        add_minibatch(w, minibatch, in_order, &sums);
    }
    return sums;
}

static void check_variation(double reported, const struct sums *sums, int32_t minibatches) {
    const double mean = sums->tokens / minibatches;
    const double variance = sums->squares / minibatches - mean * mean;
    assert_true(fabs(reported * reported - variance / (mean * mean)) < 1e-9);
}

/* No order's longest samples are shorter in sum than those of the sorted one, the largest minibatches first. */
static double longest_in_sum(const struct window *w) {
    uint64_t *lengths = malloc(w->samples.count * sizeof(*lengths));
    uint64_t counts[kMostMinibatches];
    assert_non_null(lengths);
    memcpy(lengths, w->lengths, w->samples.count * sizeof(*lengths));
    qsort(lengths, w->samples.count, sizeof(*lengths), longer_first);
    for (int32_t m = 0; m < w->request.minibatches; ++m) {
        counts[m] = count_of(w, m);
    }
    qsort(counts, (size_t)w->request.minibatches, sizeof(*counts), longer_first);
    double sum = 0;
    for (uint64_t m = 0, begin = 0; m < (uint64_t)w->request.minibatches; begin += counts[m++]) {
        const double x = (double)lengths[begin] / 32000;
        sum += w->samples.a * x * x + w->samples.b * x;
    }
    free(lengths);
    return sum;
}

static void check_window(const struct window *w) {
    const odc_window_summary *s = &w->summary;
    const struct sums before = sums_of(w, 1), after = sums_of(w, 0);
    const int is_collective = w->samples.policy == ODC_SORTED_ROWS || w->samples.policy == ODC_LB_MICRO;
    double moved = 0, displacement = 0;
    assert_near(s->makespan, after.makespan);
    assert_near(s->makespan_before, before.makespan);
    assert_near(s->collective_makespan, after.collective_makespan);
    assert_near(s->collective_makespan_before, before.collective_makespan);
    assert_true(is_collective ? s->collective_makespan <= s->collective_makespan_before
                              : s->makespan <= s->makespan_before);
    assert_true(s->lower_bound > 0 && s->lower_bound <= s->makespan);
    assert_true(s->lower_bound >= longest_in_sum(w) * (1 - 1e-9));
    for (uint64_t i = 0; i < w->samples.count; ++i) {
        const int distance = abs(w->minibatch_of[i] - given_minibatch(w, i));
        moved += distance != 0;
        displacement += distance;
    }
    assert_near(s->moved, moved / (double)w->samples.count);
    assert_near(s->displacement, displacement / (double)w->samples.count);
    if (w->request.order == ODC_WINDOW_EXCHANGED) {
        assert_true(s->moved <= (w->request.most_moved == 0 ? 0.2 : w->request.most_moved));
        assert_true(s->displacement <= (w->request.most_displacement == 0 ? 0.5 : w->request.most_displacement));
    }
    check_variation(s->token_variation, &after, w->request.minibatches);
    check_variation(s->token_variation_before, &before, w->request.minibatches);
    assert_near(s->tokens, before.tokens / w->request.minibatches);
}

static void check_that_it_repeats(const struct window *w) {
    struct window *again = malloc(sizeof(*again));
    assert_non_null(again);
    *again = *w;
    assert_int_equal(odc_plan_window(&w->request, again->minibatch_of, again->rank_of, again->microbatch_of, NULL),
                     ODC_OK);
    assert_memory_equal(again->minibatch_of, w->minibatch_of, sizeof(w->minibatch_of));
    free(again);
}

static void reports_what_it_assigns(void **state) {
    (void)state;
    static const int32_t policies[] = {ODC_LB_MINI, ODC_LB_MICRO, ODC_SORTED_ROWS, ODC_LOCAL_SORT};
    for (int i = 0; i < 60 / slowdown(); ++i) {
        const int32_t ranks = 1 + (int32_t)draw(8);
        struct window *w = new_window(1 + (int32_t)draw(kMostMinibatches), (uint64_t)ranks * (1 + draw(8)), ranks);
        w->samples.policy = policies[i % 4];
        w->request.order = i % 5 == 0 ? ODC_WINDOW_SORTED : ODC_WINDOW_EXCHANGED;
        w->request.most_moved = i % 3 == 0 ? 0 : (double)(1 + draw(10)) / 10;
        w->request.most_displacement = i % 3 == 1 ? 0 : (double)(1 + draw(20)) / 10;
        if (i % 2 == 0) { /* the last one shorter, as at the end of an epoch */
            for (int32_t m = 0; m < w->request.minibatches; ++m) {
                w->counts[m] = w->samples.count / (uint64_t)w->request.minibatches;
            }
            const uint64_t cut = draw(w->counts[0] / (uint64_t)ranks) * (uint64_t)ranks;
            w->counts[w->request.minibatches - 1] -= cut;
            w->samples.count -= cut;
            w->request.counts = w->counts;
        }
        assert_int_equal(run(w), ODC_OK);
        check_window(w);
        if (i < 12) {
            check_that_it_repeats(w);
        }
        free(w);
    }
}

static int holds(const struct window *w, int32_t minibatch, uint64_t length) {
    int count = 0;
    for (uint64_t i = 0; i < w->samples.count; ++i) {
        count += w->minibatch_of[i] == minibatch && w->lengths[i] == length;
    }
    return count;
}

/* On two ranks a long sample in each of two minibatches takes as long as both in one. */
static void long_samples_meet(void **state) {
    (void)state;
    struct window *w = new_window(2, 4, 2);
    for (uint64_t i = 0; i < 8; ++i) {
        w->lengths[i] = i % 4 == 1 ? 60000 : 1000;
    }
    w->request.most_moved = 0.25;
    assert_int_equal(run(w), ODC_OK);
    check_window(w);
    assert_int_equal(holds(w, 0, 60000) * holds(w, 1, 60000), 0);
    assert_near(w->summary.moved, 0.25);
    assert_true(w->summary.makespan < 0.6 * w->summary.makespan_before);
    w->request.most_moved = 0.2; /* one sample */
    assert_int_equal(run(w), ODC_OK);
    assert_true(w->summary.moved == 0 && w->summary.makespan == w->summary.makespan_before);
    free(w);
}

static void fill_with_capped(struct window *w, uint64_t capped, uint64_t samples_each) {
    for (uint64_t i = 0; i < w->samples.count; ++i) {
        w->lengths[i] = i % samples_each < capped ? 65536 : 1000 + draw(5000);
    }
}

/* Samples that are cut at one length: a minibatch is no shorter before its last long one has gone. */
static void capped_samples_go_together(void **state) {
    (void)state;
    static const uint64_t capped[] = {1, 31, 32, 40, 51};
    for (size_t i = 0; i < sizeof(capped) / sizeof(*capped); ++i) {
        struct window *w = new_window(2, 512, 128);
        fill_with_capped(w, capped[i], 512);
        assert_int_equal(run(w), ODC_OK);
        check_window(w);
        assert_near(w->summary.moved, (double)(2 * capped[i]) / 1024);
        assert_true(w->summary.makespan_before > 1.5 * w->summary.makespan);
        if (capped[i] > 1) {
            w->request.most_moved = (2.0 * (double)capped[i] - 0.5) / 1024; /* all but one */
            assert_int_equal(run(w), ODC_OK);
            assert_true(w->summary.moved == 0);
        }
        free(w);
    }
}

/* 90 and 90, or 90, 30 and 30, would be two on some of 128 ranks, as long as in two minibatches: each 30 go to other 90. */
static void no_more_long_samples_meet_than_ranks(void **state) {
    (void)state;
    static const uint64_t capped[] = {90, 90, 30, 30};
    struct window *w = new_window(4, 512, 128);
    for (uint64_t i = 0; i < w->samples.count; ++i) {
        w->lengths[i] = i % 512 < capped[i / 512] ? 65536 : 1000;
    }
    assert_int_equal(run(w), ODC_OK);
    check_window(w);
    assert_near(w->summary.moved, 120.0 / 2048);
    assert_true(w->summary.makespan < 0.6 * w->summary.makespan_before);
    free(w);
}

/* An exchange must save half of an average sample's part of the window: on two ranks, with costs as lengths, half of a 16th of all.
 * The sample of 4000 behind the long one leaves 2000 of its minibatch's time, which is enough below a long one of 54000. */
static void an_exchange_must_pay(void **state) {
    (void)state;
    static const uint64_t longest[] = {53900, 54100};
    for (int i = 0; i < 2; ++i) {
        struct window *w = new_window(2, 4, 2);
        w->samples.a = 0;
        w->samples.b = 1;
        for (uint64_t sample = 0; sample < 8; ++sample) {
            w->lengths[sample] = sample == 0 ? longest[i] : sample == 4 ? 4000 : 1000;
        }
        w->request.most_moved = 0.25;
        assert_int_equal(run(w), ODC_OK);
        check_window(w);
        assert_near(w->summary.moved, i == 0 ? 0.25 : 0);
        free(w);
    }
}

/* Collectives need equally many microbatches. In the order of the data a long sample is in each minibatch of 7; both long ones and
 * five others cannot be divided over 4 ranks. */
static void an_order_that_cannot_be_planned_is_not_taken(void **state) {
    (void)state;
    static const int32_t policies[] = {ODC_LB_MICRO, ODC_SORTED_ROWS};
    for (size_t i = 0; i < 2; ++i) {
        struct window *w = new_window(2, 7, 4);
        w->samples.policy = policies[i];
        w->samples.max_tokens = 10;
        w->samples.a = 0;
        w->samples.b = 1;
        for (uint64_t sample = 0; sample < 14; ++sample) {
            w->lengths[sample] = sample % 7 == 0 ? 10 : 4;
        }
        for (int32_t order = ODC_WINDOW_EXCHANGED; order <= ODC_WINDOW_SORTED; ++order) {
            w->request.order = order;
            assert_int_equal(run(w), ODC_OK);
            check_window(w);
        }
        w->lengths[1] = 10; /* nor can the data's order: says which minibatch */
        w->lengths[2] = 10;
        w->lengths[3] = 10;
        CHECK_ERROR(run(w), ODC_ERROR_ARGUMENT, "minibatch 0 of the window: odc_plan: ");
        free(w);
    }
}

static void the_sorted_order_is_by_cost(void **state) {
    (void)state;
    struct window *w = new_window(4, 16, 8);
    w->request.order = ODC_WINDOW_SORTED;
    assert_int_equal(run(w), ODC_OK);
    check_window(w);
    uint64_t least[4] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}, most[4] = {0};
    for (uint64_t i = 0; i < w->samples.count; ++i) {
        const int32_t m = w->minibatch_of[i];
        least[m] = w->lengths[i] < least[m] ? w->lengths[i] : least[m];
        most[m] = w->lengths[i] > most[m] ? w->lengths[i] : most[m];
    }
    for (int m = 0; m < 3; ++m) {
        assert_true(least[m] >= most[m + 1]);
    }
    free(w);
}

/* With 2 and 4 samples a rank; in mean over some windows, as single ones differ. */
static void lookahead_shortens_long_tailed_minibatches(void **state) {
    (void)state;
    static const struct {
        int32_t minibatches;
        uint64_t samples_a_rank;
        double most;
    } cases[] = {{2, 4, 0.75}, {4, 2, 0.5}, {16, 2, 0.3}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); ++i) {
        double before = 0, after = 0;
        for (int round = 0; round < 20; ++round) {
            struct window *w = new_window(cases[i].minibatches, 32 * cases[i].samples_a_rank, 32);
            w->request.most_moved = w->request.most_displacement = 1;
            assert_int_equal(run(w), ODC_OK);
            before += w->summary.makespan_before;
            after += w->summary.makespan;
            free(w);
        }
        print_message("%d minibatches, %d samples a rank: %.2f of the time\n", (int)cases[i].minibatches,
                      (int)cases[i].samples_a_rank, after / before);
        assert_true(after < cases[i].most * before);
    }
}

/* Whatever windows the same minibatches are cut into, those of the longer one are among its groups. */
static void a_longer_window_is_not_worse(void **state) {
    (void)state;
    for (int round = 0; round < 30 / slowdown(); ++round) {
        struct window *w = new_window(8, 16, 8);
        assert_int_equal(run(w), ODC_OK);
        const double whole = w->summary.makespan;
        for (int32_t minibatches = 1; minibatches <= 4; minibatches *= 2) {
            double parts = 0;
            for (int32_t begin = 0; begin < 8; begin += minibatches) {
                odc_plan_request samples = w->samples;
                odc_window_request request = w->request;
                samples.lengths += 16 * begin;
                samples.count = (uint64_t)(16 * minibatches);
                request.samples = &samples;
                request.minibatches = minibatches;
                assert_int_equal(odc_plan_window(&request, w->minibatch_of, w->rank_of, w->microbatch_of, &w->summary),
                                 ODC_OK);
                parts += w->summary.makespan;
            }
            if (whole > parts * 1.02) { /* plans may miss the bound by which groups are chosen */
                fail_msg("round %d: a window of 8 takes %.17g, windows of %d %.17g", round, whole, (int)minibatches,
                         parts);
            }
        }
        free(w);
    }
}

enum { kFew = 9, kSets = 1 << kFew };

/* The least time of few samples in three minibatches: tries every set of them as a minibatch, divided in every way. */
static double least_of_all_orders(const struct window *w) {
    static double cost[kSets], time[kSets];
    for (int set = 0; set < kSets; ++set) {
        cost[set] = 0;
        for (int i = 0; i < kFew; ++i) {
            const double x = (set >> i & 1) * (double)w->lengths[i] / 32000;
            cost[set] += w->samples.a * x * x + w->samples.b * x;
        }
        time[set] = cost[set]; /* on one rank */
    }
    for (int32_t rank = 1; rank < w->samples.ranks; ++rank) {
        for (int set = kSets - 1; set > 0; --set) {
            for (int last = set; last > 0; last = (last - 1) & set) { /* what the further rank gets */
                time[set] = fmin(time[set], fmax(cost[last], time[set ^ last]));
            }
        }
    }
    double least = INFINITY;
    for (int first = 0; first < kSets; ++first) {
        const int others = (kSets - 1) ^ first;
        for (int second = others; second > 0; second = (second - 1) & others) {
            if ((uint64_t)__builtin_popcount((unsigned)first) == w->counts[0] &&
                (uint64_t)__builtin_popcount((unsigned)second) == w->counts[1]) {
                least = fmin(least, time[first] + time[second] + time[others ^ second]);
            }
        }
    }
    return least;
}

/* The bound of one minibatch is that of its plan; the bound of few samples is below every order's plans. */
static void the_bound_holds_for_every_order(void **state) {
    (void)state;
    for (int round = 0; round < 60 / slowdown(); ++round) {
        struct window *w = new_window(1, 1 + draw(40), 1 + (int32_t)draw(8));
        odc_plan_summary alone = {.struct_size = sizeof(alone)};
        assert_int_equal(odc_plan(&w->samples, w->rank_of, w->microbatch_of, &alone), ODC_OK);
        assert_int_equal(run(w), ODC_OK);
        assert_near(w->summary.lower_bound, alone.lower_bound);
        free(w);
    }
    for (int round = 0; round < 40 / slowdown(); ++round) {
        struct window *w = new_window(3, 3, 1 + (int32_t)draw(3));
        w->request.counts = w->counts;
        w->counts[0] = 1 + draw(4);
        w->counts[1] = 1 + draw(4);
        w->counts[2] = 9 - w->counts[0] - w->counts[1];
        for (uint64_t i = 0; i < 9 && round % 3 == 0; ++i) { /* many of one length */
            w->lengths[i] = w->lengths[i % 2];
        }
        assert_int_equal(run(w), ODC_OK);
        check_window(w);
        assert_true(w->summary.lower_bound <= least_of_all_orders(w) * (1 + 1e-12));
        free(w);
    }
}

/* 16 minibatches of 4,096 samples over 512 ranks; how long it takes (the bar is 2 s) is printed. */
static void large_windows(void **state) {
    (void)state;
    const int32_t ranks = slowdown() > 1 ? 64 : 512;
    struct window *w = new_window(kMostMinibatches, 8 * (uint64_t)ranks, ranks);
    const clock_t begin = clock();
    assert_int_equal(run(w), ODC_OK);
    print_message("16 x %d samples over %d ranks: %.2f s of processor time, %.3f of the time before\n", 8 * (int)ranks,
                  (int)ranks, (double)(clock() - begin) / CLOCKS_PER_SEC,
                  w->summary.makespan / w->summary.makespan_before);
    if (slowdown() == 1) {
        assert_true(w->summary.makespan < 0.7 * w->summary.makespan_before);
        check_window(w);
    }
    free(w);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    struct window *good = new_window(2, 4, 2);
    struct window *w = new_window(2, 4, 2);
    assert_int_equal(odc_plan_window(NULL, w->minibatch_of, w->rank_of, w->microbatch_of, NULL), ODC_ERROR_ARGUMENT);
    assert_int_equal(odc_plan_window(&w->request, NULL, w->rank_of, w->microbatch_of, NULL), ODC_ERROR_ARGUMENT);
    assert_int_equal(odc_plan_window(&w->request, w->minibatch_of, NULL, w->microbatch_of, NULL), ODC_ERROR_ARGUMENT);
    assert_int_equal(odc_plan_window(&w->request, w->minibatch_of, w->rank_of, NULL, NULL), ODC_ERROR_ARGUMENT);
#define REFUSED(change, text)                                       \
    do {                                                            \
        *w = *good;                                                 \
        w->samples.lengths = w->lengths;                            \
        w->request.samples = &w->samples;                           \
        change;                                                     \
        CHECK_ERROR(run(w), ODC_ERROR_ARGUMENT, text);              \
        assert_true(w->summary.makespan == good->summary.makespan); \
    } while (0)
    REFUSED(w->request.samples = NULL, "request->samples is NULL");
    REFUSED(w->samples.count = 0, "no samples");
    REFUSED(w->samples.policy = 9, "policy 9");
    REFUSED(w->lengths[5] = 0, "sample 5 has 0 tokens");
    REFUSED(w->request.minibatches = 0, "`minibatches` is 0");
    REFUSED(w->request.minibatches = 17, "`minibatches` is 17; a window has 1 to 16");
    REFUSED(w->request.minibatches = 3, "8 samples are not equally many for each of 3 minibatches");
    REFUSED(w->request.order = 0, "no order 0");
    REFUSED(w->request.most_moved = 1.5, "`most_moved` is 1.5");
    REFUSED(w->request.most_moved = NAN, "`most_moved` is");
    REFUSED(w->request.most_displacement = -1, "`most_displacement` is -1");
    REFUSED((w->request.counts = w->counts, w->counts[0] = 8), "minibatch 1 has 0 samples, of 0 that are left");
    REFUSED((w->request.counts = w->counts, w->counts[0] = 5, w->counts[1] = UINT64_MAX), "minibatch 1 has");
    REFUSED((w->request.counts = w->counts, w->counts[0] = w->counts[1] = 3),
            "`counts` are 6 samples in all, `count` is 8");
    REFUSED((w->samples.policy = ODC_LB_MICRO, w->samples.ranks = 5), "LB-Micro");
#undef REFUSED
    free(w);
    free(good);
}

int main(void) {
    random_state = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_what_it_assigns),
        cmocka_unit_test(long_samples_meet),
        cmocka_unit_test(capped_samples_go_together),
        cmocka_unit_test(no_more_long_samples_meet_than_ranks),
        cmocka_unit_test(an_exchange_must_pay),
        cmocka_unit_test(an_order_that_cannot_be_planned_is_not_taken),
        cmocka_unit_test(the_sorted_order_is_by_cost),
        cmocka_unit_test(lookahead_shortens_long_tailed_minibatches),
        cmocka_unit_test(a_longer_window_is_not_worse),
        cmocka_unit_test(the_bound_holds_for_every_order),
        cmocka_unit_test(large_windows),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
