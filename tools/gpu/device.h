// SPDX-License-Identifier: Apache-2.0
// A GPU and its memory as `odc bench` uses them beside libodc. What fails throws Exit. For one thread.
#pragma once

#include "gpu/driver.h"

#include <odc/odc.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace odc_tool {

// How many this process sees.
int gpu_count();
// The one of those that is `uuid`; -1: none.
int gpu_of(const cuda::Uuid &uuid);
std::string uuid_text(const cuda::Uuid &uuid);

class Gpu;

// A point in what a GPU was told to do.
class GpuMark {
public:
    GpuMark() = default;
    GpuMark(GpuMark &&other) noexcept;
    GpuMark &operator=(GpuMark &&) = delete;
    ~GpuMark();

private:
    friend class Gpu;
    const Gpu *gpu_ = nullptr;  // NULL: never set
    cuda::Event event_ = nullptr;
};

// By its primary context, which libodc uses, too, and a stream of its own that nobody else's default stream waits for.
class Gpu {
public:
    explicit Gpu(int ordinal);
    ~Gpu();
    Gpu(const Gpu &) = delete;
    Gpu &operator=(const Gpu &) = delete;

    int ordinal() const { return ordinal_; }
    std::string device() const;  // "cuda:0"
    const std::string &name() const { return name_; }
    const cuda::Uuid &uuid() const { return uuid_; }
    cuda::Stream stream() const { return stream_; }
    struct Room {
        size_t free;
        size_t total;
    };
    Room room() const;  // in bytes
    // Whether it reads and writes the memory of that one of this process's GPUs.
    bool reaches(int ordinal) const;

    // The rest is enqueued on the stream and returns at once.
    void copy(void *to, const void *from, size_t bytes) const;
    void clear(void *to, size_t bytes) const;
    // sums[i] += values[i] by the plain kernel; both at multiples of 16 bytes.
    void add(odc_type type, void *sums, const void *values, uint64_t numel) const;
    void set(GpuMark &mark) const;
    // What comes later waits for the mark, which is another's; for nothing if it has never been set.
    void follow(const GpuMark &mark) const;
    // Until all that was enqueued is done.
    void settle() const;

    // While it lives the thread's current context is this GPU's.
    class Scope {
    public:
        explicit Scope(const Gpu &gpu) noexcept;
        ~Scope();
        Scope(const Scope &) = delete;
        Scope &operator=(const Scope &) = delete;

    private:
        bool entered_;  // else the calls that follow fail, and say so
    };

private:
    int ordinal_;
    cuda::Device device_ = -1;
    std::string name_;
    cuda::Uuid uuid_{};
    cuda::Context context_ = nullptr;
    cuda::Stream stream_ = nullptr;
    cuda::Module module_ = nullptr;
    std::array<cuda::Function, ODC_F16 + 1> adders_{};  // by type
};

// Zeros in a GPU's memory, which `users` (ordinals), too, may read and write. Begins at a multiple of 2 MiB.
class GpuMemory {
public:
    GpuMemory(const Gpu &gpu, size_t bytes, const std::vector<int> &users = {});
    ~GpuMemory();
    GpuMemory(const GpuMemory &) = delete;
    GpuMemory &operator=(const GpuMemory &) = delete;

    std::byte *start() const { return reinterpret_cast<std::byte *>(address_); }

private:
    const Gpu &gpu_;
    size_t bytes_ = 0;
    cuda::Memory memory_ = 0;
    cuda::Address address_ = 0;
};

// Pages of the host that GPUs read. `start` is their address for the GPU.
class PinnedMemory {
public:
    PinnedMemory(const Gpu &gpu, size_t bytes);
    ~PinnedMemory();
    PinnedMemory(const PinnedMemory &) = delete;
    PinnedMemory &operator=(const PinnedMemory &) = delete;

    std::byte *host() const { return static_cast<std::byte *>(pages_); }
    std::byte *start() const { return reinterpret_cast<std::byte *>(address_); }

private:
    const Gpu &gpu_;
    size_t bytes_;
    void *pages_ = nullptr;
    cuda::Address address_ = 0;
};

}  // namespace odc_tool
