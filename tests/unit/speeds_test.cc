// SPDX-License-Identifier: Apache-2.0
// A rank's measured speed: what of a minibatch counts, and how it is averaged.
#include "core/speeds.h"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

extern "C" {
#include <cmocka.h>
}

namespace {

constexpr int64_t kSecond = 1'000'000'000;

// A minibatch of `cost` that takes `seconds`, of which `waited` are for others' publishes.
double run(odc::SpeedMeter &meter, double cost, int64_t seconds, int64_t waited) {
    static int64_t now = 7 * kSecond;
    static uint64_t all_waited = 3;
    meter.begin(now, all_waited);
    now += seconds * kSecond;
    all_waited += static_cast<uint64_t>(waited * kSecond);
    meter.report(cost);
    const double speed = meter.end(now, all_waited);
    now += kSecond;
    return speed;
}

void the_newest_minibatch_counts_three_tenths(void **) {
    odc::SpeedMeter meter;
    assert_float_equal(run(meter, 100, 10, 0), 10, 1e-5);
    assert_float_equal(run(meter, 100, 5, 0), 0.7 * 10 + 0.3 * 20, 1e-5);
    assert_float_equal(run(meter, 100, 5, 0), 0.7 * 13 + 0.3 * 20, 1e-5);
}

void waiting_for_a_publish_is_not_the_ranks_own_time(void **) {
    odc::SpeedMeter meter;
    assert_float_equal(run(meter, 100, 10, 8), 50, 1e-5);
}

void a_minibatch_without_cost_changes_nothing(void **) {
    odc::SpeedMeter meter;
    assert_float_equal(run(meter, 0, 10, 0), 0, 0);
    assert_float_equal(run(meter, 60, 10, 0), 6, 1e-5);
    assert_float_equal(run(meter, 0, 10, 0), 6, 1e-5);
    assert_float_equal(meter.end(0, 0), 6, 1e-5);  // without a publish
}

}  // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_minibatch_counts_three_tenths),
        cmocka_unit_test(waiting_for_a_publish_is_not_the_ranks_own_time),
        cmocka_unit_test(a_minibatch_without_cost_changes_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
