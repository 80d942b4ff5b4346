// SPDX-License-Identifier: Apache-2.0
// One GPU as a context uses it: its primary context, the kernels, and the checks at the beginning of calls.
#pragma once

#include "base/deadline.h"
#include "base/error.h"
#include "base/gpu_uuid.h"
#include "transport/cuda/driver.h"

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

namespace odc {

struct KernelImages;

class CudaDevice {
public:
    // `name`: "cuda:1" is the second GPU that this process sees. Loads the kernels of plain sums now, because loading may wait until
    // the GPU is idle. Throws ODC_ERROR_ARGUMENT if there is no such GPU, ODC_ERROR_UNSUPPORTED if it cannot be used.
    explicit CudaDevice(const std::string &name);
    ~CudaDevice();
    CudaDevice(const CudaDevice &) = delete;
    CudaDevice &operator=(const CudaDevice &) = delete;

    const std::string &name() const { return name_; }
    int ordinal() const { return ordinal_; }
    // The same in every process; MIG instances have their own.
    const GpuUuid &uuid() const { return uuid_; }
    std::string bus_id() const;  // "0000:1b:00.0"; "" if the driver does not tell
    cuda::Stream own_stream() const { return stream_; }
    unsigned multiprocessors() const { return multiprocessors_; }
    // Whether network adapters can read memory that is allocated for that (GPUDirect RDMA).
    bool has_gpu_direct_rdma() const { return gpu_direct_rdma_; }
    // Why streams cannot be sure to see what network adapters have written; empty if they can.
    std::string why_no_remote_writes() const;
    // Makes those writes visible to work that is enqueued from now on. The caller has a Scope.
    void flush_remote_writes() const;
    cuda::Function adder(int32_t gradient_type) const { return adders_[static_cast<size_t>(gradient_type)]; }
    // The kernels of exact sums; NULL until load_exact_kernels.
    struct ExactKernels {
        std::array<cuda::Function, ODC_F16 + 1> adders{};  // by gradient type
        cuda::Function sums_adder = nullptr;
        cuda::Function converter = nullptr;
    };
    const ExactKernels &exact_kernels() const { return exact_kernels_; }

    // While this exists, calls of this thread do not invalidate other threads' stream captures.
    class RelaxedCapture {
    public:
        RelaxedCapture() noexcept;
        ~RelaxedCapture();
        RelaxedCapture(const RelaxedCapture &) = delete;
        RelaxedCapture &operator=(const RelaxedCapture &) = delete;

    private:
        cuda::CaptureMode mode_ = cuda::CaptureMode::Relaxed;
        bool exchanged_;
    };
    // Makes this device's context current, too.
    class Scope {
    public:
        explicit Scope(const CudaDevice &device) noexcept : entered_(device) {}
        Scope(const Scope &) = delete;
        Scope &operator=(const Scope &) = delete;

    private:
        struct Entered {
            explicit Entered(const CudaDevice &device) noexcept;
            ~Entered();
            bool done;  // if false, the following calls fail with an error
        };
        Entered entered_;
        RelaxedCapture relaxed_;  // after entered_: exchanging the mode may need a context
    };

    // Callers of the following have a Scope, unless noted.

    // From now on additions are element by element, for GPUs without vector reductions between them. Before the first addition;
    // may wait until the GPU is idle. Throws as the constructor.
    void use_scalar_reductions();
    // Before the first exact sums, and once; may wait until the GPU is idle. Throws ODC_ERROR_NO_MEMORY or ODC_ERROR_UNSUPPORTED,
    // which leave the GPU usable, or ODC_ERROR_DEVICE if it has failed.
    void load_exact_kernels();

    // Throws ODC_ERROR_DEVICE unless `call` succeeded.
    void check(cuda::Result result, const char *call) const;
    // The same, but if memory for `what` is lacking, ODC_ERROR_NO_MEMORY, which leaves the GPU usable.
    void check_memory(cuda::Result result, const char *call, const std::string &what) const;
    // Throws ODC_ERROR_DEVICE if earlier work has failed, after which this process cannot use the GPU any more.
    void check_health() const;
    // Whether its own stream has pending work. No Scope needed.
    bool is_busy() const;
    // Waits until its own stream is done; `what` names its work for errors. Throws ODC_ERROR_DEVICE at the deadline, or
    // ODC_ERROR_INTERRUPTED.
    void await_own_stream(const std::string &what, const Deadline &deadline) const;
    // Keeps memory that its own stream may still write to until free_parked. No Scope needed.
    using Parked = std::list<std::shared_ptr<const void>>;
    void park(Parked memory) const noexcept;
    // Frees parked memory if its own stream is done; false if some is left. No Scope needed.
    bool free_parked() const;
    // The caller's stream (NULL: the legacy default stream). Throws ODC_ERROR_ARGUMENT if it belongs to another device or is
    // being captured, ODC_ERROR_DEVICE if the GPU has failed.
    cuda::Stream checked_stream(void *stream, const char *call) const;
    // Throws ODC_ERROR_ARGUMENT if the buffer is not in this device's memory.
    void check_buffer(const void *buffer, const std::string &what) const;
    // Throws ODC_ERROR_ARGUMENT if the buffer is in GPU memory. No Scope needed.
    static void check_host_buffer(const void *buffer, const std::string &what);

private:
    int attribute(cuda::DeviceAttribute which) const;
    std::string why_unsupported() const;
    cuda::Result load(const KernelImages &images, cuda::Module *module) const;
    void load_kernels(int compute_major);
    cuda::Function kernel(cuda::Module module, const std::string &name) const;
    void close();

    std::string name_;
    int ordinal_ = -1;
    cuda::Device device_ = -1;
    GpuUuid uuid_{};
    unsigned multiprocessors_ = 0;
    bool gpu_direct_rdma_ = false;
    bool orders_remote_writes_ = false;
    bool flushes_remote_writes_ = false;
    cuda::Context context_ = nullptr;
    cuda::Stream stream_ = nullptr;
    cuda::Module kernels_ = nullptr;
    cuda::Module exact_module_ = nullptr;
    std::array<cuda::Function, ODC_F16 + 1> adders_{};  // by gradient type
    ExactKernels exact_kernels_;
    mutable std::mutex parked_mutex_;
    mutable Parked parked_;
};

// 1 for "cuda:1". Throws ODC_ERROR_ARGUMENT.
int device_ordinal(const std::string &name);

}  // namespace odc
