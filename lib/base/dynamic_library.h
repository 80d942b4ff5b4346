// SPDX-License-Identifier: Apache-2.0
// A shared library that is opened at run time, so a machine may lack it. It stays loaded, also when this ends: the threads
// and handlers of those that libodc opens do not take being unloaded.
#pragma once

#include <string>

namespace odc {

class DynamicLibrary {
public:
    explicit DynamicLibrary(const char *name);

    // Of this version, or unversioned. NULL where there is none.
    template <class Pointer>
    void find(Pointer &function, const char *symbol, const char *version = nullptr) {
        function = reinterpret_cast<Pointer>(address_of(symbol, version));
    }
    // Empty: it is loaded, and has all that was looked for. Else "libcuda.so.1 not found", or what else is wrong with it.
    const std::string &why_not() const { return why_not_; }

private:
    void *address_of(const char *symbol, const char *version);

    const char *name_;
    void *handle_;
    std::string why_not_;
};

}  // namespace odc
