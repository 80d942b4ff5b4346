// SPDX-License-Identifier: Apache-2.0
// A request's end: who waits until it is no longer pending finds all done that its end does.
#include "transport/transport.h"

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

class Read final : public odc::Request {
public:
    explicit Read(OnEnd on_end) : Request(0, std::move(on_end)) {}
    void cancel() override { set_cancelled(); }
};

void a_request_is_pending_until_its_end_has_been_told(void **) {
    Read *seen = nullptr;
    std::vector<bool> ends;
    Read read([&](bool complete) {
        assert_true(seen->is_pending() && !seen->is_complete());
        ends.push_back(complete);
    });
    seen = &read;
    read.complete();
    assert_true(!read.is_pending() && read.is_complete());
    read.cancel();  // it is over
    assert_true(read.is_complete());
    assert_true(ends == std::vector<bool>{true});
}

void one_of_two_ends_is_told(void **) {
    for (int i = 0; i < 200; ++i) {
        std::atomic<int> told{0};
        Read read([&](bool) { told.fetch_add(1); });
        std::thread other([&] { read.cancel(); });
        read.complete();
        other.join();
        assert_int_equal(told.load(), 1);
        assert_false(read.is_pending());
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_pending_until_its_end_has_been_told),
        cmocka_unit_test(one_of_two_ends_is_told),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
