// SPDX-License-Identifier: Apache-2.0
// The choice among loops: each is tried, the slow one is not chosen, and each piece is processed exactly once.
#include "memory/loop_choice.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

extern "C" {
#include <cmocka.h>
}

namespace {

using odc::LoopChoice;

constexpr size_t kBytes = 1 << 20;

void spin_ms(int64_t ms) {
    const int64_t end = odc::now_ns() + ms * 1'000'000;
    while (odc::now_ns() < end) {
    }
}

// Two of three loops take 20 ms longer, more than preemption costs a quarter of the third one's trials.
void the_fastest_is_chosen_after_equal_turns(void **) {
    for (int fastest = 0; fastest < 3; ++fastest) {
        LoopChoice choice(3);
        std::vector<int> turns(3);
        while (choice.chosen() < 0) {
            choice.run(kBytes, [&](int loop) {
                ++turns[static_cast<size_t>(loop)];
                spin_ms(loop == fastest ? 0 : 20);
            });
        }
        assert_int_equal(choice.chosen(), fastest);
        assert_in_range(turns[1] + 1, turns[0], turns[0] + 1);
        assert_in_range(turns[2] + 1, turns[1], turns[1] + 1);
        for (int loop = 0; loop < 3; ++loop) {
            assert_true(choice.speed(loop) > 0);
            assert_true(choice.speed(loop) <= choice.speed(fastest));
        }
        choice.run(kBytes, [&](int loop) { assert_int_equal(loop, fastest); });
    }
}

int chosen_by(const std::vector<int64_t> &ns) {
    LoopChoice choice(static_cast<int>(ns.size()));
    while (choice.chosen() < 0) {
        const int loop = choice.loop_of(choice.next_turn());
        choice.note(loop, kBytes, ns[static_cast<size_t>(loop)]);
    }
    return choice.chosen();
}

void a_later_loop_is_chosen_where_it_is_clearly_faster(void **) {
    assert_int_equal(chosen_by({100000, 100000, 100000}), 0);
    assert_int_equal(chosen_by({100000, 97000, 96000}), 0);
    assert_int_equal(chosen_by({100000, 94000, 93000}), 1);
    assert_int_equal(chosen_by({100000, 94000, 88000}), 2);
    assert_int_equal(chosen_by({90000, 94000, 88000}), 0);
}

void turns_with_page_faults_do_not_count(void **) {
    constexpr size_t kPieces = 200;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    auto *memory = static_cast<volatile char *>(
        mmap(nullptr, kPieces * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));  // in small pages
    assert_true(memory != MAP_FAILED);
    LoopChoice choice(2);
    for (size_t i = 0; i < kPieces; ++i) {
        assert_false(choice.run(page, [&](int) { memory[i * page] = 1; }));
    }
    assert_int_equal(choice.speed(0), 0);
    assert_int_equal(choice.chosen(), -1);
    for (size_t i = 0; choice.chosen() < 0; i = (i + 1) % kPieces) {
        choice.run(page, [&](int) { memory[i * page] = 2; });
    }
    munmap(const_cast<char *>(memory), kPieces * page);
}

void a_loop_is_chosen_although_all_turns_have_page_faults(void **) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    LoopChoice choice(2);
    while (choice.chosen() < 0) {
        void *memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(memory != MAP_FAILED);
        choice.run(page, [&](int) { *static_cast<volatile char *>(memory) = 1; });
        munmap(memory, page);
    }
}

void threads_choose_together(void **) {
    constexpr int kThreads = 4;
    constexpr int kPieces = 200;
    LoopChoice choice(4);
    assert_int_equal(choice.chosen(), -1);
    assert_int_equal(choice.speed(0), 0);
    std::atomic<int> done = 0;
    std::vector<std::thread> threads(kThreads);
    for (std::thread &thread : threads) {
        thread = std::thread([&] {
            for (int piece = 0; piece < kPieces; ++piece) {
                choice.run(kBytes, [&](int loop) { done += loop >= 0 && loop < 4 ? 1 : kThreads * kPieces; });
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    assert_int_equal(done, kThreads * kPieces);
    assert_in_range(choice.chosen(), 0, 3);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {cmocka_unit_test(the_fastest_is_chosen_after_equal_turns),
                                cmocka_unit_test(a_later_loop_is_chosen_where_it_is_clearly_faster),
                                cmocka_unit_test(turns_with_page_faults_do_not_count),
                                cmocka_unit_test(a_loop_is_chosen_although_all_turns_have_page_faults),
                                cmocka_unit_test(threads_choose_together)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
