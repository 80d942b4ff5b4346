// SPDX-License-Identifier: Apache-2.0
// The contestants that libodc is compared with on GPUs: plain copies, a plain addition, and additions by the owner.
#pragma once

#include "bench/gpu_operation.h"
#include "gpu/device.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace odc_tool {

// The ranks' GPUs as seen by this process.
class GpuTeam {
public:
    // `ordinals`: each rank's GPU in this process; -1: it is not visible.
    GpuTeam(const Gpu &own, int rank, std::vector<int> ordinals);

    const Gpu &own() const { return own_; }
    // Consecutive ranks with one GPU, and their part of a tensor.
    struct Part {
        const Gpu *gpu;  // NULL: this rank's GPU cannot use its memory
        int rank;        // the first
        uint64_t first;
        uint64_t count;
    };
    // This rank's part first, then in turn, so that ranks use different GPUs at any time.
    std::vector<Part> parts(const Layout &layout);

private:
    const Gpu *of(int rank);

    const Gpu &own_;
    int rank_;
    std::vector<int> ordinals_;
    std::map<int, std::unique_ptr<Gpu>> others_;
};

// Copies into the tensor from memory of this process: on the GPUs that have the slices, or pinned on the host for those without
// peer access.
class PlainCopy {
public:
    PlainCopy(GpuTeam &team, const GpuTensor &tensor);
    Contestant contestant() const;
    std::string text() const;

private:
    struct Source {
        std::unique_ptr<GpuMemory> on_gpu;  // NULL: `pinned`
        std::unique_ptr<PinnedMemory> pinned;
        GpuTeam::Part part;
    };
    const GpuTensor &tensor_;
    std::vector<Source> sources_;
};

// Computes sums += tensor by the plain kernel, in this rank's own memory.
class PlainAddition {
public:
    explicit PlainAddition(const GpuTensor &tensor);
    Contestant contestant();

private:
    const GpuTensor &tensor_;
    GpuMemory sums_;
    uint64_t additions_ = 0;
};

// The cost of additions done by the owners: the tensor is copied into staging on the owners' GPUs, piece by piece, and added
// there by the plain kernel. A copy overlaps with the previous piece's addition. Needs peer access to all GPUs.
class OwnerAddition {
public:
    static constexpr uint64_t kPieceBytes = uint64_t{16} << 20;  // two of them stay in the cache of a large GPU

    // The reason why it is impossible; empty: it is possible.
    static std::string why_not(GpuTeam &team, const Layout &layout);

    OwnerAddition(GpuTeam &team, const GpuTensor &tensor);
    Contestant contestant();
    std::string text() const;

private:
    struct Owner {
        GpuTeam::Part part;
        std::unique_ptr<GpuMemory> sums;
        std::unique_ptr<GpuMemory> staging;  // two pieces
        GpuEvent copied[2];
        GpuEvent added[2];
    };
    void add(Owner &owner);
    void synchronize() const;

    const GpuTensor &tensor_;
    std::vector<Owner> owners_;
    uint64_t additions_ = 0;
};

}  // namespace odc_tool
