// SPDX-License-Identifier: Apache-2.0
// A shared library that is loaded at run time, because a machine may lack it. It is never unloaded: the libraries that libodc
// loads leave threads and exit handlers behind.
#pragma once

#include <string>

namespace odc {

class DynamicLibrary {
public:
    explicit DynamicLibrary(const char *name);

    // Sets `function` to NULL if the library lacks the symbol. `version` NULL: the default version.
    template <class Pointer>
    void find(Pointer &function, const char *symbol, const char *version = nullptr) {
        function = reinterpret_cast<Pointer>(address_of(symbol, version));
    }
    // Empty if the library is loaded and had every symbol so far; else the reason, such as "libcuda.so.1 not found".
    const std::string &why_not() const { return why_not_; }

private:
    void *address_of(const char *symbol, const char *version);

    const char *name_;
    void *handle_;
    std::string why_not_;
};

}  // namespace odc
