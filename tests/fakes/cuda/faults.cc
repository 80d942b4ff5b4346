// SPDX-License-Identifier: Apache-2.0
#include "faults.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "fake_cuda.h"
#include "settings.h"

namespace fake_cuda {

namespace {

struct Fault {
    std::string function;
    unsigned nth;    // which of its calls; 0: each
    unsigned calls;  // so far
    Result result;
};

struct Faults {
    std::mutex mutex;
    std::vector<Fault> list;
};

Fault parse(const std::string &item) {
    std::istringstream words(item);
    Fault fault{"", 0, 0, Result::Unknown};
    char colon = 0;
    int result = 0;
    if (!std::getline(words, fault.function, ':') || !(words >> fault.nth >> colon >> result) || colon != ':') {
        std::fprintf(stderr, "fake CUDA: FAKE_CUDA_FAIL has \"%s\", which is not function:call:result\n", item.c_str());
        std::abort();
    }
    fault.result = Result{result};
    return fault;
}

Faults *from_environment() {
    auto *faults = new Faults;
    std::istringstream items(text_setting("FAKE_CUDA_FAIL", ""));
    for (std::string item; std::getline(items, item, ',');) {
        faults->list.push_back(parse(item));
    }
    return faults;
}

Faults &faults() {
    static Faults *one = from_environment();  // never destroyed: threads outlive main
    return *one;
}

}  // namespace

Result injected(std::string_view function) {
    Faults &all = faults();
    const std::lock_guard lock(all.mutex);
    Result result = Result::Success;
    for (Fault &fault : all.list) {
        if (fault.function == function && (++fault.calls == fault.nth || fault.nth == 0) && result == Result::Success) {
            result = fault.result;
        }
    }
    return result;
}

}  // namespace fake_cuda

void fake_cuda_fail(const char *function, unsigned nth, int result) {
    fake_cuda::Faults &all = fake_cuda::faults();
    const std::lock_guard lock(all.mutex);
    all.list.push_back({function, nth, 0, odc::cuda::Result{result}});
}

void fake_cuda_fail_no_more(void) {
    fake_cuda::Faults &all = fake_cuda::faults();
    const std::lock_guard lock(all.mutex);
    all.list.clear();
}
