// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver.h"

#include "cli/exit.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace odc_tool::cuda {

namespace {

constexpr const char *kLibrary = "libcuda.so.1";

template <class Pointer>
void get(GetProcAddress get_address, const char *name, int version, Pointer &function) {
    void *address = nullptr;
    if (get_address(name, &address, version, kLegacyDefaultStream, nullptr) != Result::Success || address == nullptr) {
        throw Exit{1, fmt::format("the CUDA driver lacks {}; install a newer one", name)};
    }
    function = reinterpret_cast<Pointer>(address);
}

// libodc has opened it before, and explains a missing or old one better.
Functions load() {
    void *library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    const auto get_address =
        library == nullptr ? nullptr : reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    if (get_address == nullptr) {
        throw Exit{1, fmt::format("{} cannot be used; install a newer CUDA driver", kLibrary)};
    }
    Functions functions{};
#define ODC_TOOL_GET(name, pinned, parameters) get(get_address, #name, pinned, functions.name);
    ODC_CUDA_FUNCTIONS(ODC_TOOL_GET)
#undef ODC_TOOL_GET
    return functions;
}

}  // namespace

const Functions &driver() {
    static const Functions one = load();
    return one;
}

void check(Result result, const char *call) {
    if (result == Result::Success) {
        return;
    }
    const char *name = nullptr;
    const char *text = nullptr;
    driver().cuGetErrorName(result, &name);
    driver().cuGetErrorString(result, &text);
    throw Exit{1, fmt::format("{} failed: {} ({})", call, name != nullptr ? name : "a CUDA error",
                              text != nullptr ? text : std::to_string(static_cast<int>(result)))};
}

}  // namespace odc_tool::cuda
