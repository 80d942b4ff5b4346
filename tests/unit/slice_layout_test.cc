// SPDX-License-Identifier: Apache-2.0
// The arithmetic of slices beyond 2^32 elements, for which no test machine has the memory.
#include "memory/slice_layout.h"
#include "transport/shm/stripe_lock.h"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

extern "C" {
#include <cmocka.h>
}

namespace {

using odc::Slices;

// The slices are consecutive and cover the whole shard.
void check_covers(const Slices &slices, uint64_t numel) {
    uint64_t end = 0;
    for (uint64_t i = 0; i < slices.count(); ++i) {
        assert_true(slices.begin(i) == end);
        end += slices.numel(i);
    }
    assert_true(end == numel);
    assert_true(slices.begin(slices.count()) == numel);
}

void equal_slices_are_torch_chunks(void **) {
    for (uint64_t count = 1; count <= 9; ++count) {
        for (uint64_t numel = 1; numel <= 100; ++numel) {
            const Slices slices(numel, count);
            const uint64_t chunk = (numel + count - 1) / count;
            check_covers(slices, numel);
            for (uint64_t i = 0; i < count && i * chunk < numel; ++i) {
                assert_int_equal(slices.begin(i), i * chunk);
                assert_int_equal(slices.numel(i), numel - i * chunk < chunk ? numel - i * chunk : chunk);
            }
        }
    }
}

void equal_slices_beyond_2_to_the_32_elements(void **) {
    const uint64_t numel = (uint64_t{1} << 33) + 3;
    const Slices slices(numel, 2);
    check_covers(slices, numel);
    assert_true(slices.begin(1) == (uint64_t{1} << 32) + 2);
    assert_true(slices.numel(1) == (uint64_t{1} << 32) + 1);
    for (const uint64_t many : {(uint64_t{1} << 40) + 1, UINT64_MAX / 16, UINT64_MAX - 1, UINT64_MAX}) {
        for (const uint64_t count : {1, 2, 3, 7, 512, 4096, 1 << 20}) {
            check_covers(Slices(many, count), many);
        }
    }
}

void given_slices_beyond_2_to_the_32_elements(void **) {
    const uint64_t large = uint64_t{5} << 32;
    const Slices slices({large, 0, large + 1, 1, 0});
    check_covers(slices, 2 * large + 2);
    assert_true(slices.begin(2) == large);
    assert_true(slices.numel(2) == large + 1);
    assert_true(slices.begin(3) == 2 * large + 1);
    assert_true(slices.numel(4) == 0);
}

void stripes_beyond_2_to_the_32_elements(void **) {
    const uint64_t bytes = (uint64_t{1} << 33) * sizeof(double) + 8;
    assert_true(odc::stripe_count(bytes) == bytes / odc::kStripeBytes + 1);
    assert_true(odc::stripe_count(0) == 0);
    assert_true(odc::stripe_count(1) == 1);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(equal_slices_are_torch_chunks),
        cmocka_unit_test(equal_slices_beyond_2_to_the_32_elements),
        cmocka_unit_test(given_slices_beyond_2_to_the_32_elements),
        cmocka_unit_test(stripes_beyond_2_to_the_32_elements),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
