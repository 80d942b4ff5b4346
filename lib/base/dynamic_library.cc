// SPDX-License-Identifier: Apache-2.0
#include "base/dynamic_library.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace odc {

namespace {

// dlerror() begins with `name` only if this library itself is missing: a file that was found is named by its path, a missing
// dependency by its own name.
std::string why_not_loaded(const char *name) {
    const char *error = dlerror();
    const std::string text = error != nullptr ? error : "the loader does not say why";
    const bool found = !text.starts_with(formatted("{}:", name)) || !text.ends_with(std::strerror(ENOENT));
    return found ? formatted("{} cannot be loaded: {}", name, text) : formatted("{} not found", name);
}

}  // namespace

DynamicLibrary::DynamicLibrary(const char *name) : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
        why_not_ = why_not_loaded(name);
    }
}

void *DynamicLibrary::address_of(const char *symbol, const char *version) {
    if (handle_ == nullptr) {
        return nullptr;
    }
    void *address = version == nullptr ? dlsym(handle_, symbol) : dlvsym(handle_, symbol, version);
    if (address == nullptr && why_not_.empty()) {
        why_not_ = formatted("{} lacks {}{}", name_, symbol, version == nullptr ? "" : formatted(" of {}", version));
    }
    return address;
}

}  // namespace odc
