// SPDX-License-Identifier: Apache-2.0
#include "api/struct_copy.h"

#include <dlfcn.h>

namespace odc {

std::string version() { return formatted("{}.{}.{}", ODC_VERSION_MAJOR, ODC_VERSION_MINOR, ODC_VERSION_PATCH); }

std::string this_libodc() {
    Dl_info info{};
    const bool found = dladdr(reinterpret_cast<const void *>(&version), &info) != 0 && info.dli_fname != nullptr;
    return formatted("this libodc, {}{}{}", version(), found ? " of " : "", found ? info.dli_fname : "");
}

}  // namespace odc
