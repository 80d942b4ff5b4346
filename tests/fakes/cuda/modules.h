// SPDX-License-Identifier: Apache-2.0
// Modules: the names of the kernels of a PTX text, or of machine code (a cubin).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "contexts.h"

namespace odc::cuda {

struct FunctionHandle {
    ContextHandle &context;
    const std::string name;
    const bool vectors;  // it reduces vectors
    std::atomic<bool> loaded;
};

struct ModuleHandle {
    ContextHandle &context;
    std::map<std::string, std::shared_ptr<FunctionHandle>> functions;  // all that exist
};

}  // namespace odc::cuda
