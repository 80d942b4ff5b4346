// SPDX-License-Identifier: Apache-2.0
// A GPU and its memory, as `odc bench` uses them beside libodc. Failures throw Exit. For one thread.
#pragma once

#include "gpu/driver.h"

#include <odc/odc.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace odc_tool {

// The number of GPUs that this process sees.
int gpu_count();
// The ordinal of the GPU with this `uuid`; -1: not visible.
int gpu_of(const cuda::Uuid &uuid);
std::string uuid_text(const cuda::Uuid &uuid);

class Gpu;

// A point in a GPU's stream.
class GpuEvent {
public:
    GpuEvent() = default;
    GpuEvent(GpuEvent &&other) noexcept;
    GpuEvent &operator=(GpuEvent &&) = delete;
    ~GpuEvent();

private:
    friend class Gpu;
    const Gpu *gpu_ = nullptr;  // NULL: never recorded
    cuda::Event event_ = nullptr;
};

// Uses its primary context, as libodc does, and a non-blocking stream of its own.
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
    // Whether it has access to the memory of another of this process's GPUs.
    bool reaches(int ordinal) const;

    // The following calls enqueue work on the stream and return at once.
    void copy(void *to, const void *from, size_t bytes) const;
    void clear(void *to, size_t bytes) const;
    // sums[i] += values[i] by the plain kernel; both at multiples of 16 bytes.
    void add(odc_type type, void *sums, const void *values, uint64_t numel) const;
    void set(GpuEvent &event) const;
    // Later work waits for another GPU's event; does nothing if the event was never recorded.
    void follow(const GpuEvent &event) const;
    // Waits until all enqueued work is done.
    void synchronize() const;

    // Makes this GPU's context current in the thread for its lifetime.
    class Scope {
    public:
        explicit Scope(const Gpu &gpu) noexcept;
        ~Scope();
        Scope(const Scope &) = delete;
        Scope &operator=(const Scope &) = delete;

    private:
        bool entered_;  // if not, the calls that follow fail with an error
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

// Zeroed memory of a GPU, accessible to `users` (ordinals), too. Begins at a multiple of 2 MiB.
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

// Pinned host memory that GPUs read. `start` is its device address.
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
