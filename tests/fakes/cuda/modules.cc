// SPDX-License-Identifier: Apache-2.0
#include "modules.h"

#include "devices.h"
#include "functions.h"
#include "handles.h"
#include "kernels.h"

namespace fake_cuda {

namespace {

constexpr int kLazyLoading = 12040;  // since then cuFuncLoad loads a function, or else its first launch

// The names that follow ".entry".
std::shared_ptr<ModuleHandle> parse(ContextHandle &context, const std::string &text) {
    auto module = std::make_shared<ModuleHandle>(ModuleHandle{context, {}});
    const bool vectors = text.find("add.v4.f32") != std::string::npos;
    const bool loaded = interface_version() < kLazyLoading;
    static const std::string entry = ".entry";
    for (size_t at = text.find(entry); at != std::string::npos; at = text.find(entry, at + 1)) {
        const size_t begin = text.find_first_not_of(" \t\n", at + entry.size());
        const size_t end = text.find_first_of(" \t\n(", begin);
        if (begin == std::string::npos || end == std::string::npos) {
            break;
        }
        const std::string name = text.substr(begin, end - begin);
        if (has_kernel(name)) {
            module->functions[name] =
                std::shared_ptr<FunctionHandle>(new FunctionHandle{context, name, vectors, loaded});
        }
    }
    return module;
}

}  // namespace

Result cuModuleLoadData(Module *handle, const void *image) {
    if (handle == nullptr || image == nullptr) {
        return Result::InvalidValue;
    }
    const std::string text = static_cast<const char *>(image);
    if (text.find(".version") == std::string::npos || text.find(".target") == std::string::npos) {
        return kInvalidPtx;
    }
    auto module = parse(*current_context(), text);
    for (const auto &[name, function] : module->functions) {
        handles<FunctionHandle>().add(function);
    }
    *handle = handles<ModuleHandle>().add(std::move(module));
    return Result::Success;
}

Result cuModuleUnload(Module handle) {
    const auto module = handles<ModuleHandle>().take(handle);
    if (module == nullptr) {
        return Result::InvalidHandle;
    }
    for (const auto &[name, function] : module->functions) {
        handles<FunctionHandle>().take(function.get());
    }
    return Result::Success;
}

Result cuModuleGetFunction(Function *handle, Module module_handle, const char *name) {
    const auto module = handles<ModuleHandle>().find(module_handle);
    if (module == nullptr || name == nullptr) {
        return module == nullptr ? Result::InvalidHandle : Result::InvalidValue;
    }
    const auto found = module->functions.find(name);
    if (found == module->functions.end()) {
        return Result::NotFound;
    }
    *handle = found->second.get();
    return Result::Success;
}

Result cuFuncLoad(Function handle) {
    const auto function = handles<FunctionHandle>().find(handle);
    if (function == nullptr) {
        return Result::InvalidHandle;
    }
    function->loaded = true;
    return Result::Success;
}

}  // namespace fake_cuda
