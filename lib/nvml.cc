// SPDX-License-Identifier: Apache-2.0
#include "nvml.h"

#include <dlfcn.h>

#include "status.h"

namespace odc::nvml {

namespace {

constexpr const char *kLibrary = "libnvidia-ml.so.1";

struct Loaded {
    Library library{};
    std::string why_not;
};

template <class Pointer>
bool get(void *handle, const char *name, Pointer &function) {
    function = reinterpret_cast<Pointer>(dlsym(handle, name));
    return function != nullptr;
}

// Empty, or why it cannot be used.
std::string fill(void *handle, Library &library) {
    constexpr const char *kOlder = "; that of a driver of CUDA 12.1 or later has it";
#define ODC_GET(name, parameters)                       \
    if (!get(handle, #name, library.name)) {            \
        return say(kLibrary, " lacks ", #name, kOlder); \
    }
    ODC_NVML_FUNCTIONS(ODC_GET)
#undef ODC_GET
    return get(handle, "nvmlErrorString", library.nvmlErrorString) ? "" : say(kLibrary, " lacks nvmlErrorString");
}

// It stays loaded, as the driver does.
Loaded load() {
    Loaded loaded;
    void *handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char *words = dlerror();
        const std::string text = words != nullptr ? words : "";
        loaded.why_not = text.find("No such file") != std::string::npos ? say(kLibrary, " not found") : text;
        return loaded;
    }
    loaded.why_not = fill(handle, loaded.library);
    return loaded;
}

const Loaded &loaded() {
    static const Loaded one = load();
    return one;
}

}  // namespace

const std::string &why_not_library() { return loaded().why_not; }

const Library &library() { return loaded().library; }

}  // namespace odc::nvml
