// SPDX-License-Identifier: Apache-2.0
// What libodc is held against on GPUs, as contestants: plain copies, a plain addition, and additions by the owner.
#pragma once

#include "bench/gpu_operation.h"
#include "gpu/device.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace odc_tool {

// The ranks' GPUs as this process uses them.
class GpuTeam {
public:
    // `ordinals`: of each rank's GPU in this process; -1: it does not see it.
    GpuTeam(const Gpu &own, int rank, std::vector<int> ordinals);

    const Gpu &own() const { return own_; }
    // Neighbouring ranks of one GPU, and their part of a tensor.
    struct Part {
        const Gpu *gpu;  // NULL: this rank's GPU cannot use its memory
        int rank;        // the first
        uint64_t first;
        uint64_t count;
    };
    // Of this rank first, and round, so that ranks are at different GPUs at any time.
    std::vector<Part> parts(const Layout &layout);

private:
    const Gpu *of(int rank);

    const Gpu &own_;
    int rank_;
    std::vector<int> ordinals_;
    std::map<int, std::unique_ptr<Gpu>> others_;
};

// Copies into the tensor from memory of this process: on the GPUs that the slices are on, pinned on the host for those
// that cannot be reached.
class PlainCopy {
public:
    PlainCopy(GpuTeam &team, const GpuTensor &tensor);
    Contestant contestant() const;
    std::string words() const;

private:
    struct Source {
        std::unique_ptr<GpuMemory> on_gpu;  // NULL: `pinned`
        std::unique_ptr<PinnedMemory> pinned;
        GpuTeam::Part part;
    };
    const GpuTensor &tensor_;
    std::vector<Source> sources_;
};

// sums += tensor by the plain kernel, in this rank's own memory.
class PlainAddition {
public:
    explicit PlainAddition(const GpuTensor &tensor);
    Contestant contestant();

private:
    const GpuTensor &tensor_;
    GpuMemory sums_;
    uint64_t additions_ = 0;
};

// What an addition would cost if owners did it: the tensor is copied into staging on the owners' GPUs, piece by piece, and
// added there by the plain kernel. A copy goes on while the piece before it is added. All GPUs must be in reach.
class OwnerAddition {
public:
    static constexpr uint64_t kPieceBytes = uint64_t{16} << 20;  // two of them stay in the cache of a large GPU

    // Empty: it can be done.
    static std::string why_not(GpuTeam &team, const Layout &layout);

    OwnerAddition(GpuTeam &team, const GpuTensor &tensor);
    Contestant contestant();
    std::string words() const;

private:
    struct Owner {
        GpuTeam::Part part;
        std::unique_ptr<GpuMemory> sums;
        std::unique_ptr<GpuMemory> staging;  // two pieces
        GpuMark copied[2];
        GpuMark added[2];
    };
    void add(Owner &owner);
    void settle() const;

    const GpuTensor &tensor_;
    std::vector<Owner> owners_;
    uint64_t additions_ = 0;
};

}  // namespace odc_tool
