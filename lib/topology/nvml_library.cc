// SPDX-License-Identifier: Apache-2.0
#include "topology/nvml_library.h"

#include "base/dynamic_library.h"
#include "base/error.h"
#include "base/fork_gate.h"

namespace odc::nvml {

namespace {

struct Loaded {
    Library library{};
    std::string why_not;
};

Loaded load() {
    Loaded loaded;
    DynamicLibrary opened(libraries::kNvml);
    loaded.why_not = opened.why_not();
    if (!loaded.why_not.empty()) {
        return loaded;
    }
#define ODC_GET(name, parameters) opened.find(loaded.library.name, #name);
    ODC_NVML_FUNCTIONS(ODC_GET)
#undef ODC_GET
    opened.find(loaded.library.nvmlErrorString, "nvmlErrorString");
    if (!opened.why_not().empty()) {
        loaded.why_not = formatted("{}; that of a driver of CUDA 12.1 or later has it", opened.why_not());
    }
    return loaded;
}

const Loaded &loaded() { return made_once<Loaded>(Locks::Nvml, load); }

}  // namespace

const std::string &why_not_library() { return loaded().why_not; }

const Library &library() { return loaded().library; }

}  // namespace odc::nvml
