// SPDX-License-Identifier: Apache-2.0
// The GPU kernels' body on the CPU, with and without vector reductions: compared with sums of small whole numbers, which are
// exact in every type and order, and with the CPU's own kernels.
#include "transport/cuda/kernels/add.h"

#include <elf.h>
#include <odc/odc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#include "fakes/cuda/kernels.h"
#include "memory/host_kernels.h"
#include "transport/cuda/kernels.h"

extern "C" {
#include <cmocka.h>
}

namespace {

using odc::Addend;
using odc::Addends;
using odc::Bfloat16;
using odc::Float16;
using Random = std::mt19937_64;

std::atomic<size_t> additions_by_one;
std::atomic<size_t> misaligned_fours;
std::atomic<const void *> first_place;  // the first address that was added to

template <unsigned kVector>
struct Recording {
    static constexpr unsigned kWidth = kVector;

    template <class Accumulator>
    static void add(Accumulator *to, Accumulator value) {
        const void *nowhere = nullptr;
        first_place.compare_exchange_strong(nowhere, to);
        std::atomic_ref<Accumulator>(*to).fetch_add(value, std::memory_order_relaxed);
    }
    template <class Accumulator>
    static void one(Accumulator *to, Accumulator value) {
        ++additions_by_one;
        add(to, value);
    }
    static void four(float *to, float a, float b, float c, float d) {
        misaligned_fours += reinterpret_cast<uintptr_t>(to) % 16 != 0 ? 1 : 0;
        add(to, a);
        add(to + 1, b);
        add(to + 2, c);
        add(to + 3, d);
    }
};

// Runs a grid on `workers` threads at the same time.
struct Grid {
    unsigned blocks;
    unsigned threads;
    unsigned workers;
};

template <class Gradient, class Accumulator, class Reduce>
void launch(const Addends &additions, const Grid &grid) {
    additions_by_one = 0;
    misaligned_fours = 0;
    first_place = nullptr;
    const auto work = [&](unsigned worker) {
        for (unsigned i = worker; i < grid.blocks * grid.threads; i += grid.workers) {
            odc::add<Gradient, Accumulator, Reduce>(additions, i % grid.blocks, grid.blocks, i / grid.blocks,
                                                    grid.threads);
        }
    };
    std::vector<std::thread> workers;
    for (unsigned worker = 1; worker < grid.workers; ++worker) {
        workers.emplace_back(work, worker);
    }
    work(0);
    for (std::thread &worker : workers) {
        worker.join();
    }
}

// Pages between two inaccessible ones.
class Fenced {
public:
    explicit Fenced(size_t bytes) : bytes_((bytes + kPage) / kPage * kPage) {
        void *start = mmap(nullptr, bytes_ + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert_true(start != MAP_FAILED);
        start_ = static_cast<std::byte *>(start) + kPage;
        assert_int_equal(mprotect(start_, bytes_, PROT_READ | PROT_WRITE), 0);
    }
    Fenced(const Fenced &) = delete;
    Fenced &operator=(const Fenced &) = delete;
    ~Fenced() { munmap(start_ - kPage, bytes_ + 2 * kPage); }

    std::byte *start() const { return start_; }
    std::byte *end() const { return start_ + bytes_; }

private:
    static constexpr size_t kPage = 4096;
    size_t bytes_;
    std::byte *start_;
};

// A random number from 1 to 8.
template <class Gradient>
Gradient encoded(unsigned number) {
    if constexpr (std::is_same_v<Gradient, Float16>) {
        static constexpr uint16_t kHalves[] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0x4800};
        return {kHalves[number - 1]};
    } else if constexpr (std::is_same_v<Gradient, Bfloat16>) {
        static constexpr uint16_t kHalves[] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100};
        return {kHalves[number - 1]};
    } else {
        return static_cast<Gradient>(number);
    }
}

// Random addends and the expected sums.
template <class Gradient, class Accumulator>
class Model {
public:
    explicit Model(Random &random) {
        const size_t most = random() % 8 == 0 ? odc::kMostAddends : 6;
        additions_.count = static_cast<unsigned>(random() % (most + 1));
        additions_.first = additions_.count == 0 ? 0 : static_cast<unsigned>(random() % additions_.count);
        size_t length = 0;
        std::vector<size_t> places;
        for (unsigned i = 0; i < additions_.count; ++i) {
            const size_t numel = random_numel(random, most);
            additions_.addends[i].numel = numel;
            length += 1 + random() % 40;
            places.push_back(length);
            length += numel;
        }
        sums_.assign(length + 40, Accumulator{100});
        due_ = sums_;
        for (unsigned i = 0; i < additions_.count; ++i) {
            additions_.addends[i].to = sums_.data() + places[i];
            additions_.addends[i].from = gradients(random, additions_.addends[i].numel, places[i]);
        }
    }

    const Addends &additions() const { return additions_; }
    // The expected memory after `times` launches; bytes between the addends must not change.
    bool is_due(int times) const {
        for (size_t i = 0; i < sums_.size(); ++i) {
            const Accumulator due = 100 + static_cast<Accumulator>(times) * (due_[i] - 100);
            if (sums_[i] != due) {
                std::printf("element %zu is %g, not %g\n", i, static_cast<double>(sums_[i]), static_cast<double>(due));
                return false;
            }
        }
        return true;
    }

private:
    static size_t random_numel(Random &random, size_t most) {
        switch (random() % 4) {
            case 0: return random() % 3;
            case 1: return random() % 200;
            case 2: return odc::kAddTile - 40 + random() % 80;
            default: return random() % (most > 6 ? 500 : 3 * odc::kAddTile);
        }
    }

    // Ends at, or begins after, an inaccessible page, aligned to any number of bytes.
    const void *gradients(Random &random, size_t numel, size_t place) {
        const size_t bytes = numel * sizeof(Gradient);
        const size_t shift = random() % 3 == 0   ? 0
                             : random() % 2 == 0 ? random() % 17
                                                 : random() % 17 * sizeof(Gradient);
        fences_.push_back(std::make_unique<Fenced>(bytes + 256));
        std::byte *from = random() % 2 == 0 ? fences_.back()->start() + shift : fences_.back()->end() - bytes - shift;
        for (size_t i = 0; i < numel; ++i) {
            const unsigned number = 1 + static_cast<unsigned>(random() % 8);
            const auto gradient = encoded<Gradient>(number);
            std::memcpy(from + i * sizeof(Gradient), &gradient, sizeof(Gradient));
            due_[place + i] += static_cast<Accumulator>(number);
        }
        return from;
    }

    Addends additions_{};
    std::vector<Accumulator> sums_;
    std::vector<Accumulator> due_;
    std::vector<std::unique_ptr<Fenced>> fences_;
};

template <class Check>
void with_every_type(const Check &check) {
    check(float{}, float{});
    check(double{}, double{});
    check(Bfloat16{}, float{});
    check(Float16{}, float{});
}

Random seeded() {
    const char *given = std::getenv("ODC_TEST_SEED");
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("seed: ODC_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return Random(seed);
}

Grid random_grid(Random &random, unsigned workers) {
    const auto threads = static_cast<unsigned>(random() % 2 == 0 ? 1 + random() % 40 : odc::kAddThreads);
    return {1 + static_cast<unsigned>(random() % 12), threads, workers};
}

void each_element_is_added_once(void **) {
    Random random = seeded();
    with_every_type([&](auto gradient, auto accumulator) {
        using Gradient = decltype(gradient);
        using Accumulator = decltype(accumulator);
        for (int round = 0; round < 40; ++round) {
            const Model<Gradient, Accumulator> model(random);
            launch<Gradient, Accumulator, Recording<4>>(model.additions(), random_grid(random, 1));
            assert_true(model.is_due(1));
            assert_int_equal(misaligned_fours, 0);
            launch<Gradient, Accumulator, Recording<1>>(model.additions(), random_grid(random, 1));
            assert_true(model.is_due(2));
        }
    });
}

void additions_at_the_same_time_lose_nothing(void **) {
    Random random = seeded();
    with_every_type([&](auto gradient, auto accumulator) {
        using Gradient = decltype(gradient);
        using Accumulator = decltype(accumulator);
        for (int round = 0; round < 5; ++round) {
            const Model<Gradient, Accumulator> model(random);
            const Grid grid = random_grid(random, 2);
            std::thread other([&] { launch<Gradient, Accumulator, Recording<4>>(model.additions(), grid); });
            launch<Gradient, Accumulator, Recording<1>>(model.additions(), grid);
            other.join();
            assert_true(model.is_due(2));
        }
    });
}

// Only the ends of an addend, less than a group each, are added element by element, whatever the alignment of `from`.
void groups_of_four_are_added_together(void **) {
    alignas(128) static float sums[3 * odc::kAddTile];
    alignas(16) static uint16_t from[3 * odc::kAddTile];
    for (unsigned to_shift = 0; to_shift < 5; ++to_shift) {
        for (unsigned from_shift = 0; from_shift < 9; ++from_shift) {
            Addends additions{};
            additions.addends[0] = {from + from_shift, sums + to_shift, 2 * odc::kAddTile + 5};
            additions.count = 1;
            launch<Bfloat16, float, Recording<4>>(additions, {2, odc::kAddThreads, 1});
            const size_t head = (4 - to_shift % 4) % 4;
            assert_int_equal(additions_by_one, head + (2 * odc::kAddTile + 5 - head) % 4);
        }
    }
}

void additions_begin_with_the_first(void **) {
    static float sums[8][100];
    static const float from[100] = {};
    Addends additions{};
    additions.count = 8;
    for (unsigned i = 0; i < 8; ++i) {
        additions.addends[i] = {from, sums[i], 100};
    }
    for (additions.first = 0; additions.first < 8; ++additions.first) {
        launch<float, float, Recording<4>>(additions, {1, 1, 1});
        const auto *place = static_cast<const float *>(first_place.load());
        assert_true(place >= sums[additions.first] && place < sums[additions.first] + 100);
    }
}

// 30 addends of a tile each give each of 6 blocks 5 tiles.
void tiles_of_all_addends_are_divided(void **) {
    static float sums[100];
    static const float from[100] = {};
    Addends additions{};
    additions.count = 30;
    std::fill_n(additions.addends, 30, Addend{from, sums, 100});
    for (unsigned block = 0; block < 6; ++block) {
        additions_by_one = 0;
        odc::add<float, float, Recording<1>>(additions, block, 6, 0, 1);
        assert_int_equal(additions_by_one, 500);
    }
}

// Only some blocks' tiles of a buffer whose pages are allocated on first use.
void elements_beyond_2_to_the_32_are_added(void **) {
    constexpr unsigned long long kNumel = (1ULL << 32) + 3 * odc::kAddTile / 2;
    constexpr unsigned kTiles = kNumel / odc::kAddTile + 1;
    const auto map = [](size_t bytes) {
        return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    };
    void *from = map(kNumel * sizeof(Bfloat16));
    void *to = map(kNumel * sizeof(float));
    if (from == MAP_FAILED || to == MAP_FAILED) {
        std::printf("this system does not promise more memory than it has\n");
        skip();
    }
    auto *gradients = static_cast<Bfloat16 *>(from);
    auto *sums = static_cast<float *>(to);
    const unsigned long long telling[] = {0,          odc::kAddTile - 1, 1ULL << 31, (1ULL << 32) - 1,
                                          1ULL << 32, (1ULL << 32) + 1,  kNumel - 1};
    for (const unsigned long long i : telling) {
        gradients[i] = encoded<Bfloat16>(7);
    }
    Addends additions{};
    additions.addends[0] = {from, to, kNumel};
    additions.count = 1;
    for (const unsigned long long i : telling) {
        const auto block = static_cast<unsigned>(i / odc::kAddTile);
        sums[i] = 0;  // in case its tile has been added to
        for (unsigned thread = 0; thread < odc::kAddThreads; ++thread) {
            odc::add<Bfloat16, float, Recording<4>>(additions, block, kTiles, thread, odc::kAddThreads);
        }
        assert_true(sums[i] == 7);
    }
    munmap(from, kNumel * sizeof(Bfloat16));
    munmap(to, kNumel * sizeof(float));
}

template <class Number>
bool same(Number got, Number wanted) {
    return std::isnan(wanted) ? std::isnan(got) : std::memcmp(&got, &wanted, sizeof(got)) == 0;
}

void every_half_value_is_widened_as_on_the_cpu(void **) {
    std::vector<uint16_t> bits(65536);
    for (size_t i = 0; i < bits.size(); ++i) {
        bits[i] = static_cast<uint16_t>(i);
    }
    for (const int32_t type : {ODC_BF16, ODC_F16}) {
        std::vector<float> widened(bits.size());
        odc::add_elements_by(odc::AddLoop::Line, odc::Sum::Store, type, widened.data(), bits.data(), bits.size());
        std::vector<float> sums(bits.size(), 1);
        std::vector<float> due = sums;
        odc::add_elements_by(odc::AddLoop::Line, odc::Sum::Add, type, due.data(), bits.data(), bits.size());
        Addends additions{};
        additions.addends[0] = {bits.data(), sums.data(), bits.size()};
        additions.count = 1;
        void *parameters[] = {&additions};
        assert_true(run_kernel(type == ODC_BF16 ? "odc_add_bf16" : "odc_add_f16", 3, 100, parameters));
        for (size_t i = 0; i < bits.size(); ++i) {
            const float got = type == ODC_BF16 ? odc::widen(Bfloat16{bits[i]}) : odc::widen(Float16{bits[i]});
            if (!same(got, widened[i]) || !same(sums[i], due[i])) {
                std::printf("type %d, bits %zx: %a instead of %a\n", type, i, got, widened[i]);
                assert_true(false);
            }
        }
    }
}

void kernels_are_run_by_their_names(void **) {
    double sums[3] = {1, 2, 3};
    float few[3] = {1, 2, 3};
    const double doubles[3] = {4, 5, 6};
    const float floats[3] = {4, 5, 6};
    Addends additions{};
    additions.count = 1;
    void *parameters[] = {&additions};
    additions.addends[0] = {doubles, sums, 3};
    assert_true(run_kernel("odc_add_f64", 1, 32, parameters));
    additions.addends[0] = {floats, few, 3};
    assert_true(run_kernel("odc_add_f32", 1, 32, parameters));
    for (int i = 0; i < 3; ++i) {
        assert_true(sums[i] == 5 + 2 * i && few[i] == sums[i]);
    }
    assert_false(run_kernel("odc_add_f8", 1, 32, parameters));
}

void each_gpu_gets_the_machine_code_that_it_takes(void **) {
    for (const int major : {8, 9, 10, 12}) {
        for (const void *cubin : {odc::add_kernel_images(major).cubin, odc::exact_kernel_images(major).cubin}) {
            assert_true((cubin == nullptr) == (major > 9));
            if (cubin != nullptr) {
                Elf64_Ehdr header;
                std::memcpy(&header, cubin, sizeof header);
                assert_memory_equal(header.e_ident, ELFMAG, SELFMAG);
                assert_int_equal(header.e_flags & 0xff, 10 * major);
            }
        }
    }
}

void each_gpu_gets_the_ptx_that_it_takes(void **) {
    for (const int major : {8, 9, 10, 12}) {
        const char *ptx = odc::add_kernel_images(major).ptx;
        assert_non_null(std::strstr(ptx, major == 8 ? ".target sm_80" : ".target sm_90"));
        for (const char *kernel : {"odc_add_f32(", "odc_add_f64(", "odc_add_bf16(", "odc_add_f16("}) {
            assert_non_null(std::strstr(ptx, kernel));
        }
        assert_true(ptx[std::strlen(ptx) - 2] == '}');  // the end of the file
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(each_element_is_added_once),
        cmocka_unit_test(additions_at_the_same_time_lose_nothing),
        cmocka_unit_test(groups_of_four_are_added_together),
        cmocka_unit_test(additions_begin_with_the_first),
        cmocka_unit_test(tiles_of_all_addends_are_divided),
        cmocka_unit_test(elements_beyond_2_to_the_32_are_added),
        cmocka_unit_test(every_half_value_is_widened_as_on_the_cpu),
        cmocka_unit_test(kernels_are_run_by_their_names),
        cmocka_unit_test(each_gpu_gets_the_machine_code_that_it_takes),
        cmocka_unit_test(each_gpu_gets_the_ptx_that_it_takes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
