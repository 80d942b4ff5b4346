// SPDX-License-Identifier: Apache-2.0
// The copy and add kernels with every vector instruction set that this processor has, so that what another machine would choose
// is tested here, too.
#include "memory/host_kernels.h"

#include <hwy/targets.h>
#include <odc/odc.h>

#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

extern "C" {
#include <cmocka.h>
}

namespace {

using odc::AddLoop;
using odc::CopyLoop;
using odc::Sum;

template <class Check>
void with_every_target(const Check &check) {
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
        hwy::SetSupportedTargetsForTest(target);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
        assert_string_equal(odc::vector_target(), hwy::TargetName(target));
        std::printf("%s\n", odc::vector_target());
        check();
        hwy::SetSupportedTargetsForTest(0);
        hwy::GetChosenTarget().DeInit();
    }
}

// Without vector instructions: from the bit fields of the number.
double half_value(uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) {
        return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
    }
    return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double bfloat_value(uint16_t bits) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
}

bool same(double got, double wanted) { return std::isnan(wanted) ? std::isnan(got) : got == wanted; }

void every_half_value_widens_exactly(void **) {
    std::vector<uint16_t> bits(65536);
    for (size_t i = 0; i < bits.size(); ++i) {
        bits[i] = static_cast<uint16_t>(i);
    }
    with_every_target([&] {
        for (const int32_t type : {ODC_F16, ODC_BF16}) {
            std::vector<float> sums(bits.size(), 1);
            odc::add_elements_by(AddLoop::Line, Sum::Store, type, sums.data(), bits.data(), bits.size());
            for (size_t i = 0; i < bits.size(); ++i) {
                const double wanted = type == ODC_F16 ? half_value(bits[i]) : bfloat_value(bits[i]);
                if (!same(sums[i], wanted) || std::signbit(sums[i]) != ((bits[i] & 0x8000) != 0)) {
                    std::printf("type %d, bits %zx: %g instead of %g\n", type, i, sums[i], wanted);
                    assert_true(false);
                }
            }
        }
    });
}

std::vector<size_t> telling_counts() {
    std::vector<size_t> counts(150);
    std::iota(counts.begin(), counts.end(), size_t{0});
    for (const size_t pages : {1, 2, 3, 4}) {  // long runs interleave several pages
        for (const size_t elements : {512, 1024}) {
            counts.insert(counts.end(), {pages * elements - 1, pages * elements, pages * elements + 33});
        }
    }
    return counts;
}

// Every length up to some vectors, some around pages, and every misalignment; the bytes around it must not change.
template <class Accumulator, class Gradient>
void check_lengths(AddLoop loop, int32_t type, const Gradient &two, const Gradient &four) {
    constexpr size_t kGuard = 8;
    for (const size_t count : telling_counts()) {
        for (size_t shift = 0; shift < 4; ++shift) {
            const size_t first = kGuard + shift;
            std::vector<Accumulator> sums(count + 2 * kGuard + shift, 3);
            std::vector<Gradient> from(count + shift, two);
            for (size_t i = 0; i < from.size(); i += 7) {
                from[i] = four;
            }
            const auto expect = [&](Accumulator before) {
                for (size_t i = 0; i < sums.size(); ++i) {
                    const bool inside = i >= first && i < first + count;
                    assert_true(sums[i] == (inside ? before + ((i - kGuard) % 7 == 0 ? 4 : 2) : 3));
                }
            };
            odc::add_elements_by(loop, Sum::Add, type, sums.data() + first, from.data() + shift, count);
            expect(3);
            odc::add_elements_by(loop, Sum::Store, type, sums.data() + first, from.data() + shift, count);
            expect(0);
        }
    }
}

void additions_of_any_length_touch_nothing_else(void **) {
    with_every_target([] {
        for (const AddLoop loop : odc::kAddLoops) {
            check_lengths<float>(loop, ODC_F32, 2.0F, 4.0F);
            check_lengths<double>(loop, ODC_F64, 2.0, 4.0);
            check_lengths<float>(loop, ODC_F16, uint16_t{0x4000}, uint16_t{0x4400});
            check_lengths<float>(loop, ODC_BF16, uint16_t{0x4000}, uint16_t{0x4080});
        }
    });
}

std::vector<uint8_t> counted_bytes(size_t bytes) {
    std::vector<uint8_t> from(bytes);
    for (size_t i = 0; i < from.size(); ++i) {
        from[i] = static_cast<uint8_t>(i * 7 + i / 251);
    }
    return from;
}

constexpr size_t kGuard = 256;

template <class Copy>
void check_copy(const std::vector<uint8_t> &from, size_t shift, size_t bytes, const Copy &copy) {
    std::vector<uint8_t> to(from.size(), 0xee);
    copy(to.data() + kGuard + shift, from.data() + shift / 2, bytes);
    assert_memory_equal(to.data() + kGuard + shift, from.data() + shift / 2, bytes);
    for (size_t i = 0; i < to.size(); ++i) {
        assert_true((i >= kGuard + shift && i < kGuard + shift + bytes) || to[i] == 0xee);
    }
}

void copies_of_any_length_touch_nothing_else(void **) {
    constexpr size_t kPages = size_t{64} << 10;
    const std::vector<uint8_t> from = counted_bytes(kPages + 4 * kGuard);
    with_every_target([&] {
        for (const CopyLoop loop : odc::kCopyLoops) {
            for (size_t shift = 0; shift < 130; shift += 13) {
                for (const size_t bytes : {size_t{0}, size_t{1}, size_t{127}, size_t{385}, kPages - 1, kPages,
                                           kPages + 1, kPages + 63, kPages + 257}) {
                    check_copy(from, shift, bytes, [loop](void *to, const void *source, size_t count) {
                        odc::copy_bytes_by(loop, to, source, count);
                    });
                }
            }
        }
    });
}

// Before a loop is chosen, while each is tried, and after: until all are reported as tried.
void large_copies_are_whole_while_a_loop_is_chosen(void **) {
    constexpr size_t kLarge = (size_t{1} << 20) + 257;
    const std::vector<uint8_t> from = counted_bytes(kLarge + 4 * kGuard);
    const auto has_chosen = [] { return odc::loop_figures().find("copy") != std::string::npos; };
    for (int copies = 0; copies < 10 || !has_chosen(); ++copies) {
        for (const size_t bytes : {kLarge - 258, kLarge - 257, kLarge}) {
            check_copy(from, static_cast<size_t>(copies % 10), bytes, odc::copy_bytes);
        }
    }
    std::printf("%s\n", odc::loop_figures().c_str());
    for (const CopyLoop loop : odc::kCopyLoops) {
        assert_non_null(std::strstr(odc::loop_figures().c_str(), odc::loop_name(loop)));
    }
}

void large_additions_are_whole_while_a_loop_is_chosen(void **) {
    constexpr size_t kCount = 16384;
    constexpr uint64_t kSlice = uint64_t{1} << 21;
    std::vector<float> sums(kCount);
    const std::vector<float> from(kCount, 2.0F);
    assert_null(std::strstr(odc::loop_figures().c_str(), "add f32"));
    for (int i = 1; i <= 100; ++i) {
        odc::add_elements(i == 1 ? Sum::Store : Sum::Add, ODC_F32, sums.data(), from.data(), kCount, kSlice);
        for (const float sum : sums) {
            assert_true(sum == 2.0F * static_cast<float>(i));
        }
    }
    assert_non_null(std::strstr(odc::loop_figures().c_str(), "add f32 by "));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_half_value_widens_exactly),
        cmocka_unit_test(additions_of_any_length_touch_nothing_else),
        cmocka_unit_test(copies_of_any_length_touch_nothing_else),
        cmocka_unit_test(large_copies_are_whole_while_a_loop_is_chosen),
        cmocka_unit_test(large_additions_are_whole_while_a_loop_is_chosen),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
