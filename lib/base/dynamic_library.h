// SPDX-License-Identifier: Apache-2.0
// A shared library that is loaded at run time, because a machine may lack it. It is never unloaded: the libraries that libodc
// loads leave threads and exit handlers behind.
#pragma once

#include <string>

namespace odc {

// All that the library opens (the command opens CUDA and NCCL itself, for its comparisons): none is needed to build a program
// or to start it. Packages recommend or suggest each (tests/cli/libraries_test.sh compares).
namespace libraries {
constexpr const char *kFabric = "libfabric.so.1";   // without it, all ranks must be on one host
constexpr const char *kCuda = "libcuda.so.1";       // without it, shards must be in host memory
constexpr const char *kNvml = "libnvidia-ml.so.1";  // without it, nothing is known of links between GPUs
constexpr const char *kPmix = "libpmix.so.2";       // without it, a launcher's PMIx server is no rendezvous
}  // namespace libraries

class DynamicLibrary {
public:
    explicit DynamicLibrary(const char *name);  // of `libraries`

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
