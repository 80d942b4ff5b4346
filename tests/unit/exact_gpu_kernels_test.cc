// SPDX-License-Identifier: Apache-2.0
// The GPU kernels of exact sums on the CPU, compared bit by bit with those of host memory.
#include "transport/cuda/kernels/exact.h"

#include <odc/odc.h>

#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "base/element_type.h"
#include "fakes/cuda/kernels.h"
#include "memory/exact_kernels.h"
#include "transport/cuda/kernels.h"

extern "C" {
#include <cmocka.h>
}

namespace {

using odc::ExactAddends;
using odc::ExactTotals;
using odc::kNotFinite;
using Random = std::mt19937_64;

constexpr int kExponents[] = {odc::kLeastExponent, -40, 0, 10, 16, 90, odc::kMostExponent};

// A slice's sums with what follows them.
class Slice {
public:
    explicit Slice(size_t numel) : numel_(numel), words_(numel + odc::exact_totals_bytes(numel) / 8 + 1) {
        words_.back() = kGuard;
    }

    size_t numel() const { return numel_; }
    long long *sums() { return words_.data(); }
    ExactTotals *totals() { return reinterpret_cast<ExactTotals *>(words_.data() + numel_); }
    bool is_not_finite(size_t i) { return odc::NotFiniteBit(totals(), sums() + i).is_set(); }
    bool is_guarded() const { return words_.back() == kGuard; }

    void add(const char *kernel, const void *from, size_t first, size_t count, double scale, uint64_t additions) {
        ExactAddends one{};
        one.addends[0] = {{from, sums() + first, count}, totals(), additions};
        one.count = 1;
        one.scale = scale;
        void *parameters[] = {&one};
        assert_true(run_kernel(kernel, 3, 64, parameters));
    }
    void convert(int exponent) {
        odc::ExactWave wave = odc::before_waves(sums(), totals(), std::ldexp(1.0, exponent - odc::kExactBits));
        for (wave = next_wave(wave, numel_); wave.begin < wave.end; wave = next_wave(wave, numel_)) {
            void *parameters[] = {&wave};
            assert_true(run_kernel("odc_exact_to_f32", wave.begin == 0 ? 1 : 5, odc::kAddThreads, parameters));
        }
    }

private:
    static constexpr long long kGuard = 0x1234567;
    size_t numel_;
    std::vector<long long> words_;
};

const char *kernel_of(int32_t type) {
    return type == ODC_F32 ? "odc_exact_add_f32" : type == ODC_BF16 ? "odc_exact_add_bf16" : "odc_exact_add_f16";
}

// All values of a 16-bit type, or random bits.
std::vector<std::byte> gradients(int32_t type, Random &random) {
    constexpr size_t kCount = 65536;
    std::vector<std::byte> bytes(kCount * odc::element_size(type));
    for (size_t i = 0; i < kCount; ++i) {
        const auto bits = static_cast<uint32_t>(type == ODC_F32 ? random() : i);
        std::memcpy(bytes.data() + i * odc::element_size(type), &bits, odc::element_size(type));
    }
    return bytes;
}

// Adds all, and a part again, which begins at an odd address.
void check_additions(int32_t type, int exponent, Random &random) {
    const std::vector<std::byte> all = gradients(type, random);
    const size_t size = odc::element_size(type);
    const size_t numel = all.size() / size;
    constexpr size_t kFirst = 1003;
    constexpr size_t kPart = 20001;
    std::vector<std::byte> part(kPart * size + 1);
    std::memcpy(part.data() + 1, all.data() + 5000 * size, kPart * size);
    std::vector<int64_t> due(numel);
    odc::Special special = odc::add_exactly_by(odc::AddLoop::Line, odc::Sum::Store, odc::Found::Any, type, exponent,
                                               due.data(), all.data(), numel);
    const odc::Special again = odc::add_exactly_by(odc::AddLoop::Line, odc::Sum::Add, odc::Found::Any, type, exponent,
                                                   due.data() + kFirst, part.data() + 1, kPart);
    Slice slice(numel);
    const double scale = std::ldexp(1.0, odc::kExactBits - exponent);
    slice.add(kernel_of(type), all.data(), 0, numel, scale, 1);
    slice.add(kernel_of(type), part.data() + 1, kFirst, kPart, scale, 0);
    for (size_t i = 0; i < numel; ++i) {
        const bool same = slice.is_not_finite(i) ? due[i] == kNotFinite : due[i] == slice.sums()[i];
        if (!same) {
            std::printf("type %d, exponent %d, element %zu: %lld instead of %lld\n", type, exponent, i, slice.sums()[i],
                        static_cast<long long>(due[i]));
        }
        assert_true(same);
    }
    assert_int_equal(slice.totals()->clamped, special.clamped + again.clamped);
    assert_int_equal(slice.totals()->not_finite, special.not_finite + again.not_finite);
    assert_int_equal(slice.totals()->additions, 1);
    assert_true(slice.is_guarded());
}

void additions_are_those_of_host_memory(void **) {
    Random random(1);
    for (const int32_t type : {ODC_F32, ODC_BF16, ODC_F16}) {
        for (const int exponent : kExponents) {
            check_additions(type, exponent, random);
        }
    }
}

// As a GPU of one thread at a time, where each is a warp.
struct CountedAtomics {
    using Number = unsigned long long;
    static void add(Number *to, Number value) {
        ++additions;
        *to += value;
    }
    static void add_of_warp(Number *to, unsigned count) {
        ++of_warps;
        *to += count;
    }
    static void set(unsigned *word, unsigned bits) { *word |= bits; }

    static inline size_t additions = 0;
    static inline size_t of_warps = 0;
};

// A gradient that is NaN or clamped from end to end must not make one reduction an element on one word.
void a_warp_adds_once_what_it_has_counted(void **) {
    constexpr size_t kNumel = 60000;
    constexpr unsigned kThreads = 64;
    constexpr size_t kAdded[] = {0, kNumel};
    for (const size_t added : kAdded) {
        const std::vector<float> from(kNumel, added == 0 ? NAN : 2048.0F);
        Slice slice(kNumel);
        ExactAddends one{};
        one.addends[0] = {{from.data(), slice.sums(), kNumel}, slice.totals(), 1};
        one.count = 1;
        one.scale = std::ldexp(1.0, odc::kExactBits - 10);
        CountedAtomics::additions = CountedAtomics::of_warps = 0;
        for (unsigned thread = 0; thread < kThreads; ++thread) {
            odc::add_exactly<float, CountedAtomics>(one, 0, 1, thread, kThreads);
        }
        assert_int_equal(slice.totals()->clamped, added);
        assert_int_equal(slice.totals()->not_finite, kNumel - added);
        assert_int_equal(CountedAtomics::additions, added + 1);  // of sums, and of the number of additions
        assert_int_equal(CountedAtomics::of_warps, 2 * kThreads);
    }
}

// A number of any magnitude; some are halfway between two f32, or next to that.
long long random_sum(Random &random) {
    const auto shift = static_cast<int>(random() % 64);
    long long sum = static_cast<long long>(random()) >> shift;
    if (random() % 3 == 0) {
        const auto bits = static_cast<int>(random() % 38);
        const long long half = 1LL << bits;
        sum = (static_cast<long long>(random() >> 40) * 2 + 1) * half + static_cast<long long>(random() % 3) - 1;
        sum = random() % 2 == 0 ? sum : -sum;
    }
    return sum == kNotFinite ? 0 : sum;
}

void sums_of_host_memory_are_added(void **) {
    constexpr size_t kNumel = 9000;
    Random random(2);
    Slice slice(kNumel);
    std::vector<long long> from(kNumel);
    for (int round = 1; round <= 2; ++round) {
        for (size_t i = 0; i < kNumel; ++i) {
            from[i] = i % 100 == 7 ? kNotFinite : static_cast<long long>(i) * (i % 2 == 0 ? 1 : -1);
        }
        slice.add("odc_exact_add_sums", from.data(), 0, kNumel, 0, 5);
        for (size_t i = 0; i < kNumel; ++i) {
            assert_int_equal(slice.is_not_finite(i), i % 100 == 7);
            assert_true(i % 100 == 7 || slice.sums()[i] == round * from[i]);
        }
    }
    assert_int_equal(slice.totals()->additions, 10);
    assert_true(slice.is_guarded());
}

bool same(float got, float wanted) {
    return std::isnan(wanted) ? std::isnan(got) : std::memcmp(&got, &wanted, sizeof(got)) == 0;
}

void check_conversion(size_t numel, int exponent, Random &random) {
    Slice slice(numel);
    std::vector<int64_t> sums(numel);
    std::vector<long long> marks(numel);
    for (size_t i = 0; i < numel; ++i) {
        marks[i] = random() % 50 == 0 ? kNotFinite : 0;
        sums[i] = marks[i] == kNotFinite ? kNotFinite : random_sum(random);
    }
    if (exponent % 2 == 0) {
        slice.add("odc_exact_add_sums", marks.data(), 0, numel, 0, 0);
    }
    for (size_t i = 0; i < numel; ++i) {
        sums[i] = slice.is_not_finite(i) ? kNotFinite : sums[i] == kNotFinite ? 3 : sums[i];
        slice.sums()[i] = slice.is_not_finite(i) ? random_sum(random) : sums[i];
    }
    std::vector<float> due(numel);
    const double largest = odc::exact_sums_to_f32(due.data(), sums.data(), numel, exponent);
    slice.convert(exponent);
    for (size_t i = 0; i < numel; ++i) {
        float got = 0;
        std::memcpy(&got, reinterpret_cast<std::byte *>(slice.sums()) + i * sizeof(float), sizeof(got));
        if (!same(got, due[i])) {
            std::printf("%zu elements, exponent %d, element %zu: %a instead of %a\n", numel, exponent, i, got, due[i]);
            assert_true(false);
        }
    }
    assert_true(odc::same_bits<double>(slice.totals()->largest) == largest);
    assert_true(slice.is_guarded());
}

void f32_in_place_is_that_of_host_memory(void **) {
    Random random(3);
    constexpr size_t kTile = odc::kConvertTile;
    for (const size_t numel : {size_t{1}, size_t{2}, size_t{777}, kTile - 1, kTile, kTile + 1, 2 * kTile, 2 * kTile + 1,
                               4 * kTile - 3, 9 * kTile + 5, 20 * kTile}) {
        for (const int exponent : kExponents) {
            check_conversion(numel, exponent, random);
        }
    }
}

void all_kernels_are_in_the_ptx(void **) {
    const char *ptx = odc::exact_kernel_images(9).ptx;
    for (const char *kernel : {"odc_exact_add_f32(", "odc_exact_add_bf16(", "odc_exact_add_f16(", "odc_exact_add_sums(",
                               "odc_exact_to_f32("}) {
        assert_non_null(std::strstr(ptx, kernel));
    }
    assert_true(ptx[std::strlen(ptx) - 2] == '}');  // the end of the file
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(additions_are_those_of_host_memory), cmocka_unit_test(a_warp_adds_once_what_it_has_counted),
        cmocka_unit_test(sums_of_host_memory_are_added),      cmocka_unit_test(f32_in_place_is_that_of_host_memory),
        cmocka_unit_test(all_kernels_are_in_the_ptx),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
