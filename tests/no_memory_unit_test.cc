// SPDX-License-Identifier: Apache-2.0
// A process without memory for so much as a sentence still gets a status and one.
#include <odc/odc.h>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
#include <cmocka.h>
}

namespace {

thread_local bool exhausted = false;

}  // namespace

void *operator new(size_t bytes) {
    void *memory = exhausted ? nullptr : std::malloc(bytes);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }

namespace {

void test_no_memory_for_words(void **) {
    exhausted = true;
    const odc_status status = odc_plan(nullptr, nullptr, nullptr, nullptr);
    exhausted = false;
    assert_int_equal(status, ODC_ERROR_NO_MEMORY);
    assert_non_null(std::strstr(odc_last_error(), "no memory left"));
    assert_int_equal(odc_plan(nullptr, nullptr, nullptr, nullptr), ODC_ERROR_ARGUMENT);
    assert_null(std::strstr(odc_last_error(), "no memory left"));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {cmocka_unit_test(test_no_memory_for_words)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
