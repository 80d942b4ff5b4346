// SPDX-License-Identifier: Apache-2.0
// Random takes and puts, compared with a map of single bytes.
#include "memory/free_ranges.h"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" {
#include <cmocka.h>
}

namespace {

using odc::FreeRanges;
using odc::Range;
using odc::Segment;

constexpr uint64_t kBytes = 500;
constexpr Segment kSegments[2] = {{0, kBytes}, {kBytes, kBytes}};

const Segment &segment_of(uint64_t byte) { return kSegments[byte / kBytes]; }

class Model {
public:
    Model() : taken_(2 * kBytes, true) {}
    bool is_free(uint64_t begin, uint64_t end) const {
        for (uint64_t byte = begin; byte < end; ++byte) {
            if (taken_[byte]) {
                return false;
            }
        }
        return true;
    }
    void set(uint64_t begin, uint64_t end, bool taken) {
        for (uint64_t byte = begin; byte < end; ++byte) {
            taken_[byte] = taken;
        }
    }
    // The free range around a free byte; it does not cross a segment's end.
    Range around(uint64_t byte) const {
        const Segment &segment = segment_of(byte);
        Range range{byte, byte + 1};
        while (range.begin > segment.offset && !taken_[range.begin - 1]) {
            --range.begin;
        }
        while (range.end < segment.offset + segment.bytes && !taken_[range.end]) {
            ++range.end;
        }
        return range;
    }
    // The smallest of at least `bytes`; 0: none.
    uint64_t smallest(uint64_t bytes) const {
        uint64_t best = 0;
        for (uint64_t byte = 0; byte < taken_.size(); ++byte) {
            if (!taken_[byte]) {
                const Range range = around(byte);
                const uint64_t room = range.end - range.begin;
                best = room >= bytes && (best == 0 || room < best) ? room : best;
                byte = range.end - 1;
            }
        }
        return best;
    }

private:
    std::vector<bool> taken_;
};

void takes_and_puts_agree_with_a_map_of_bytes(void **) {
    const char *given = std::getenv("ODC_TEST_SEED");
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("seed: ODC_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    for (int round = 0; round < 200; ++round) {
        FreeRanges ranges;
        Model model;
        for (const Segment &segment : kSegments) {
            ranges.put(segment, {segment.offset, segment.offset + segment.bytes});
            model.set(segment.offset, segment.offset + segment.bytes, false);
        }
        std::vector<Range> held;
        for (int step = 0; step < 200; ++step) {
            if (random() % 2 == 0) {
                const uint64_t bytes = 1 + random() % 80;
                const uint64_t room = model.smallest(bytes);
                const auto taken = ranges.take(bytes);
                assert_int_equal(taken.has_value(), room != 0);
                if (taken) {
                    assert_true(model.is_free(taken->offset, taken->offset + bytes));
                    const Range from = model.around(taken->offset);
                    assert_int_equal(from.end - from.begin, room);
                    assert_int_equal(taken->segment.offset, segment_of(taken->offset).offset);
                    assert_int_equal(taken->segment.bytes, kBytes);
                    model.set(taken->offset, taken->offset + bytes, true);
                    held.push_back({taken->offset, taken->offset + bytes});
                }
            } else if (!held.empty()) {
                const uint64_t which = random() % held.size();
                const Range mine = held[which];
                held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
                model.set(mine.begin, mine.end, false);
                const Range whole = ranges.put(segment_of(mine.begin), mine);
                const Range wanted = model.around(mine.begin);
                assert_int_equal(whole.begin, wanted.begin);
                assert_int_equal(whole.end, wanted.end);
            }
        }
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(takes_and_puts_agree_with_a_map_of_bytes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
