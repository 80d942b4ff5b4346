// SPDX-License-Identifier: Apache-2.0
// A process without a CUDA driver.
#include <dlfcn.h>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

#include "transport/cuda/driver.h"

extern "C" {
#include <cmocka.h>
}

namespace {

void reports_that_there_is_none(void ** /*state*/) {
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr) {
        print_message("this machine has a CUDA driver\n");
        skip();
    }
    assert_string_equal(odc::cuda::why_not_driver().c_str(), "libcuda.so.1 not found");
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {cmocka_unit_test(reports_that_there_is_none)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
