// SPDX-License-Identifier: Apache-2.0
#include "base/dynamic_library.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace odc {

namespace {

// The loader names a file that it found by its path, and a library that this one needs by that one's name.
std::string why_not_loaded(const char *name) {
    const char *error = dlerror();
    const std::string words = error != nullptr ? error : "the loader does not say why";
    const bool found = !words.starts_with(say(name, ':')) || !words.ends_with(std::strerror(ENOENT));
    return found ? say(name, " cannot be loaded: ", words) : say(name, " not found");
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
        why_not_ = say(name_, " lacks ", symbol, version == nullptr ? "" : say(" of ", version));
    }
    return address;
}

}  // namespace odc
