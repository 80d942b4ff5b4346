// SPDX-License-Identifier: Apache-2.0
#include "modules.h"

#include <elf.h>

#include <cstring>
#include <vector>

#include "devices.h"
#include "functions.h"
#include "handles.h"
#include "kernels.h"
#include "settings.h"

namespace fake_cuda {

namespace {

constexpr int kLazyLoading = 12040;  // since then cuFuncLoad loads a function, or else its first launch

struct Image {
    std::vector<std::string> kernels;
    bool vectors;  // they reduce vectors
};

// The names that follow ".entry".
Image read_ptx(const std::string &text) {
    Image image{{}, text.find("add.v4.f32") != std::string::npos};
    static const std::string entry = ".entry";
    for (size_t at = text.find(entry); at != std::string::npos; at = text.find(entry, at + 1)) {
        const size_t begin = text.find_first_not_of(" \t\n", at + entry.size());
        const size_t end = text.find_first_of(" \t\n(", begin);
        if (begin == std::string::npos || end == std::string::npos) {
            break;
        }
        image.kernels.push_back(text.substr(begin, end - begin));
    }
    return image;
}

bool is_cubin(const void *image) { return std::memcmp(image, ELFMAG, SELFMAG) == 0; }

// Each kernel has a section, ".text." and its name. The lowest byte of the flags is the compute capability.
Result read_cubin(const std::byte *data, Image *image) {
    Elf64_Ehdr header;
    std::memcpy(&header, data, sizeof header);
    const int capability = static_cast<int>(header.e_flags & 0xff);
    const int mine = compute_capability();
    if (capability / 10 != mine / 10 || capability > mine || number_setting("CUDA_FORCE_PTX_JIT", 0) == 1) {
        return kNoBinaryForGpu;
    }
    std::vector<Elf64_Shdr> sections(header.e_shnum);
    std::memcpy(sections.data(), data + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
    const auto *names = reinterpret_cast<const char *>(data + sections.at(header.e_shstrndx).sh_offset);
    static const std::string text = ".text.";
    for (const Elf64_Shdr &section : sections) {
        const std::string name = names + section.sh_name;
        if (name.starts_with(text)) {
            image->kernels.push_back(name.substr(text.size()));
        }
    }
    image->vectors = capability >= 90;
    return Result::Success;
}

Result read(const void *image, Image *found) {
    if (is_cubin(image)) {
        return read_cubin(static_cast<const std::byte *>(image), found);
    }
    const std::string text = static_cast<const char *>(image);
    if (text.find(".version") == std::string::npos || text.find(".target") == std::string::npos) {
        return kInvalidPtx;
    }
    if (number_setting("CUDA_DISABLE_PTX_JIT", 0) == 1) {
        return kJitDisabled;
    }
    *found = read_ptx(text);
    return Result::Success;
}

}  // namespace

Result cuModuleLoadData(Module *handle, const void *image) {
    if (handle == nullptr || image == nullptr) {
        return Result::InvalidValue;
    }
    Image found;
    if (const Result result = read(image, &found); result != Result::Success) {
        return result;
    }
    ContextHandle &context = *current_context();
    auto module = std::make_shared<ModuleHandle>(ModuleHandle{context, {}});
    const bool loaded = interface_version() < kLazyLoading;
    for (const std::string &name : found.kernels) {
        if (has_kernel(name)) {
            auto function = std::shared_ptr<FunctionHandle>(new FunctionHandle{context, name, found.vectors, loaded});
            module->functions[name] = function;
            handles<FunctionHandle>().add(function);
        }
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
