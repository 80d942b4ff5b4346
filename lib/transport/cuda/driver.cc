// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/driver.h"

#include "base/dynamic_library.h"
#include "base/error.h"
#include "base/fork_gate.h"

namespace odc::cuda {

namespace {

constexpr int kOldestVersion = 12010;  // the kernels' PTX needs it, too

struct Loaded {
    Driver driver{};
    std::string why_not;
};

std::string version_text(int version) { return formatted("{}.{}", version / 1000, version % 1000 / 10); }

template <class Pointer>
bool get(GetProcAddress get_address, const char *name, int version, Pointer &function) {
    void *address = nullptr;
    if (get_address(name, &address, version, kLegacyDefaultStream, nullptr) != Result::Success) {
        return false;
    }
    function = reinterpret_cast<Pointer>(address);
    return function != nullptr;
}

// Fills the table; returns why the driver cannot be used, or "".
std::string fill(Driver &driver, GetProcAddress get_address) {
    if (!get(get_address, "cuDriverGetVersion", 2020, driver.cuDriverGetVersion) ||
        driver.cuDriverGetVersion(&driver.version) != Result::Success) {
        return formatted("{} does not report its version", libraries::kCuda);
    }
    if (driver.version < kOldestVersion) {
        return formatted("the driver is of CUDA {}; {} or later is needed", version_text(driver.version),
                         version_text(kOldestVersion));
    }
#define ODC_GET(name, pinned, parameters)                                                       \
    if (!get(get_address, #name, pinned, driver.name)) {                                        \
        return formatted("the driver (CUDA {}) lacks {}", version_text(driver.version), #name); \
    }
    ODC_CUDA_FUNCTIONS(ODC_GET)
#undef ODC_GET
#define ODC_GET_NEWER(name, pinned, parameters) get(get_address, #name, pinned, driver.name);
    ODC_CUDA_NEWER_FUNCTIONS(ODC_GET_NEWER)
#undef ODC_GET_NEWER
    return "";
}

std::string initialize(const Driver &driver) {
    const Result result = driver.cuInit(0);
    int count = 0;
    if (result == Result::NoDevice ||
        (result == Result::Success && (driver.cuDeviceGetCount(&count) != Result::Success || count == 0))) {
        return "the driver finds no GPU (CUDA_VISIBLE_DEVICES hides them, if it is set)";
    }
    if (result != Result::Success) {
        const char *name = nullptr;
        const char *text = nullptr;
        driver.cuGetErrorName(result, &name);
        driver.cuGetErrorString(result, &text);
        return formatted("cuInit failed: {} ({})", name != nullptr ? name : "an unknown error",
                         text != nullptr ? text : "");
    }
    return "";
}

Loaded load() {
    Loaded loaded;
    DynamicLibrary library(libraries::kCuda);
    loaded.why_not = library.why_not();
    if (!loaded.why_not.empty()) {
        return loaded;
    }
    GetProcAddress get_address = nullptr;
    library.find(get_address, "cuGetProcAddress_v2");
    if (get_address == nullptr) {
        loaded.why_not = formatted("{} is older than CUDA {}", libraries::kCuda, version_text(kOldestVersion));
        return loaded;
    }
    loaded.why_not = fill(loaded.driver, get_address);
    if (loaded.why_not.empty()) {
        loaded.why_not = initialize(loaded.driver);
    }
    return loaded;
}

const Loaded &loaded() { return made_once<Loaded>(Locks::Cuda, load); }

}  // namespace

const std::string &why_not_driver() { return loaded().why_not; }

const Driver &driver() { return loaded().driver; }

std::string result_text(Result result) {
    const char *name = nullptr;
    const char *text = nullptr;
    driver().cuGetErrorName(result, &name);
    driver().cuGetErrorString(result, &text);
    return name == nullptr ? formatted("CUDA error {}", static_cast<int>(result)) : formatted("{} ({})", name, text);
}

}  // namespace odc::cuda
