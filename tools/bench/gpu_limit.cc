// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_limit.h"

#include "bench/limit.h"
#include "bench/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace odc_tool {

namespace {

size_t sums_bytes(const Layout &layout, uint64_t count) { return count * element_bytes(accumulator_of(layout.type())); }

std::byte *place(const GpuTensor &tensor, uint64_t first) {
    return tensor.full() + first * element_bytes(tensor.layout().type());
}

}  // namespace

// ---- GpuTeam ----

GpuTeam::GpuTeam(const Gpu &own, int rank, std::vector<int> ordinals)
    : own_(own), rank_(rank), ordinals_(std::move(ordinals)) {}

const Gpu *GpuTeam::of(int rank) {
    const int ordinal = ordinals_[static_cast<size_t>(rank)];
    if (ordinal == own_.ordinal()) {
        return &own_;
    }
    if (!own_.reaches(ordinal)) {
        return nullptr;
    }
    std::unique_ptr<Gpu> &other = others_[ordinal];
    if (other == nullptr) {
        other = std::make_unique<Gpu>(ordinal);
    }
    return other.get();
}

std::vector<GpuTeam::Part> GpuTeam::parts(const Layout &layout) {
    std::vector<Part> parts;
    size_t own = 0;
    for (int rank = 0; rank < static_cast<int>(ordinals_.size()); ++rank) {
        const Gpu *gpu = of(rank);
        if (parts.empty() || parts.back().gpu != gpu) {
            parts.push_back({gpu, rank, layout.first(rank), 0});
        }
        parts.back().count += layout.count(rank);
        own = rank == rank_ ? parts.size() - 1 : own;
    }
    std::rotate(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(own), parts.end());
    return parts;
}

// ---- PlainCopy ----

PlainCopy::PlainCopy(GpuTeam &team, const GpuTensor &tensor) : tensor_(tensor) {
    const Layout &layout = tensor_.layout();
    for (const GpuTeam::Part &part : team.parts(layout)) {
        const size_t bytes = part.count * element_bytes(layout.type());
        Source source{nullptr, nullptr, part};
        if (part.gpu != nullptr) {
            source.on_gpu = std::make_unique<GpuMemory>(*part.gpu, bytes, std::vector<int>{team.own().ordinal()});
            fill_gpu(*part.gpu, layout.type(), source.on_gpu->start(), part.first, part.count);
        } else {
            source.pinned = std::make_unique<PinnedMemory>(team.own(), bytes);
            fill_pattern(layout.type(), source.pinned->host(), part.first, part.count);
        }
        sources_.push_back(std::move(source));
    }
}

Contestant PlainCopy::contestant() const {
    return {[this] { tensor_.clear(); },
            [this] {
                const size_t element = element_bytes(tensor_.layout().type());
                for (const Source &source : sources_) {
                    const std::byte *from = source.on_gpu ? source.on_gpu->start() : source.pinned->start();
                    if (source.part.count > 0) {
                        tensor_.gpu().copy(place(tensor_, source.part.first), from, source.part.count * element);
                    }
                }
            },
            [this] { tensor_.check("the bytes of the plain copy"); }, [this] { tensor_.gpu().synchronize(); }};
}

std::string PlainCopy::text() const {
    const auto pinned =
        std::count_if(sources_.begin(), sources_.end(), [](const Source &one) { return one.pinned != nullptr; });
    const auto others = std::count_if(sources_.begin(), sources_.end(), [this](const Source &one) {
        return one.part.gpu != nullptr && one.part.gpu != &tensor_.gpu();
    });
    if (pinned == 0 && others == 0) {
        return "cuMemcpyAsync from device to device";
    }
    std::string text = fmt::format("cuMemcpyAsync of {} pieces", sources_.size());
    text += others > 0 ? fmt::format(", {} from other GPUs", others) : "";
    return text + (pinned > 0 ? fmt::format(", {} from pinned host memory", pinned) : "");
}

// ---- PlainAddition ----

PlainAddition::PlainAddition(const GpuTensor &tensor)
    : tensor_(tensor), sums_(tensor.gpu(), sums_bytes(tensor.layout(), tensor.layout().numel())) {}

Contestant PlainAddition::contestant() {
    const Layout &layout = tensor_.layout();
    return {[this, &layout] {
                additions_ = 0;
                tensor_.gpu().clear(sums_.start(), sums_bytes(layout, layout.numel()));
            },
            [this, &layout] {
                ++additions_;
                tensor_.gpu().add(layout.type(), sums_.start(), tensor_.full(), layout.numel());
            },
            [this, &layout] {
                check_gpu(tensor_.gpu(), accumulator_of(layout.type()), sums_.start(), 0, layout.numel(), additions_,
                          "the sums of the plain addition");
            },
            [this] { tensor_.gpu().synchronize(); }};
}

// ---- OwnerAddition ----

std::string OwnerAddition::why_not(GpuTeam &team, const Layout &layout) {
    for (const GpuTeam::Part &part : team.parts(layout)) {
        if (part.gpu == nullptr) {
            return fmt::format("as {} cannot use the memory of rank {}'s GPU", team.own().device(), part.rank);
        }
    }
    return "";
}

OwnerAddition::OwnerAddition(GpuTeam &team, const GpuTensor &tensor) : tensor_(tensor) {
    const std::vector<int> users = {team.own().ordinal()};
    for (const GpuTeam::Part &part : team.parts(tensor_.layout())) {
        Owner owner{};
        owner.part = part;
        owner.sums = std::make_unique<GpuMemory>(*part.gpu, sums_bytes(tensor_.layout(), part.count));
        owner.staging = std::make_unique<GpuMemory>(*part.gpu, 2 * kPieceBytes, users);
        owners_.push_back(std::move(owner));
    }
}

void OwnerAddition::add(Owner &owner) {
    const odc_type type = tensor_.layout().type();
    const size_t element = element_bytes(type);
    // At least four, so that copies and additions overlap; sums begin at multiples of 16 bytes.
    const uint64_t quarter = (owner.part.count / 4 + 63) / 64 * 64;
    const uint64_t piece = std::clamp<uint64_t>(quarter, 64, kPieceBytes / element);
    const Gpu &own = tensor_.gpu();
    const Gpu &other = *owner.part.gpu;
    size_t half = 0;
    for (uint64_t i = 0; i < owner.part.count; i += piece, half = 1 - half) {
        const uint64_t count = std::min(piece, owner.part.count - i);
        std::byte *const staged = owner.staging->start() + half * kPieceBytes;
        own.follow(owner.added[half]);
        own.copy(staged, place(tensor_, owner.part.first + i), count * element);
        own.set(owner.copied[half]);
        other.follow(owner.copied[half]);
        other.add(type, owner.sums->start() + sums_bytes(tensor_.layout(), i), staged, count);
        other.set(owner.added[half]);
    }
}

void OwnerAddition::synchronize() const {
    tensor_.gpu().synchronize();
    for (const Owner &owner : owners_) {
        owner.part.gpu->synchronize();
    }
}

Contestant OwnerAddition::contestant() {
    const Layout &layout = tensor_.layout();
    return {[this, &layout] {
                additions_ = 0;
                for (const Owner &owner : owners_) {
                    owner.part.gpu->clear(owner.sums->start(), sums_bytes(layout, owner.part.count));
                }
                synchronize();
            },
            [this] {
                ++additions_;
                std::for_each(owners_.begin(), owners_.end(), [this](Owner &owner) { add(owner); });
            },
            [this, &layout] {
                for (const Owner &owner : owners_) {
                    check_gpu(*owner.part.gpu, accumulator_of(layout.type()), owner.sums->start(), owner.part.first,
                              owner.part.count, additions_, "the sums that an owner added");
                }
            },
            [this] { synchronize(); }};
}

std::string OwnerAddition::text() const {
    const bool local = std::all_of(owners_.begin(), owners_.end(),
                                   [this](const Owner &one) { return one.part.gpu == &tensor_.gpu(); });
    return fmt::format("in pieces of at most {} MiB copied to staging {} and added there by the plain kernel",
                       kPieceBytes >> 20, local ? "on the same GPU" : "on the owners' GPUs");
}

}  // namespace odc_tool
