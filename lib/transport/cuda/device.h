// SPDX-License-Identifier: Apache-2.0
// One GPU as a context uses it: its primary context, the kernels, and what every call there begins with.
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

class CudaDevice {
public:
    // `name`: "cuda:1", the second GPU that this process sees. Loads the kernels: nothing is loaded at first use, which
    // could wait until the GPU has nothing to do. Throws ODC_ERROR_ARGUMENT for a device that does not exist,
    // ODC_ERROR_UNSUPPORTED for one that cannot be used.
    explicit CudaDevice(const std::string &name);
    ~CudaDevice();
    CudaDevice(const CudaDevice &) = delete;
    CudaDevice &operator=(const CudaDevice &) = delete;

    const std::string &name() const { return name_; }
    int ordinal() const { return ordinal_; }
    // The same in every process; the parts of a divided GPU have their own.
    const GpuUuid &uuid() const { return uuid_; }
    std::string bus_id() const;  // "0000:1b:00.0"; "" where the driver does not tell
    cuda::Stream own_stream() const { return stream_; }
    unsigned multiprocessors() const { return multiprocessors_; }
    // Whether memory that is allocated for it can be read by network adapters.
    bool has_gpu_direct_rdma() const { return gpu_direct_rdma_; }
    // Empty: what they write there can be seen by its streams. Else why not.
    std::string why_no_remote_writes() const;
    // What they have written is seen by what streams do from now on; inside a Scope.
    void settle_remote_writes() const;
    cuda::Function adder(int32_t gradient_type) const { return adders_[static_cast<size_t>(gradient_type)]; }

    // While it lives, the thread's calls break no other thread's capture.
    class Relaxed {
    public:
        Relaxed() noexcept;
        ~Relaxed();
        Relaxed(const Relaxed &) = delete;
        Relaxed &operator=(const Relaxed &) = delete;

    private:
        cuda::CaptureMode mode_ = cuda::CaptureMode::Relaxed;
        bool exchanged_;
    };
    // And the thread's current context is this device's.
    class Scope {
    public:
        explicit Scope(const CudaDevice &device) noexcept : entered_(device) {}
        Scope(const Scope &) = delete;
        Scope &operator=(const Scope &) = delete;

    private:
        struct Entered {
            explicit Entered(const CudaDevice &device) noexcept;
            ~Entered();
            bool done;  // else the calls that follow fail, and say so
        };
        Entered entered_;
        Relaxed relaxed_;  // only with a context there may be a mode to exchange
    };

    // What follows is called inside a Scope.

    // Throws ODC_ERROR_DEVICE for what `call` did not do.
    void check(cuda::Result result, const char *call) const;
    // The same, but without memory for `what` ODC_ERROR_NO_MEMORY: nothing is broken then.
    void check_memory(cuda::Result result, const char *call, const std::string &what) const;
    // Throws ODC_ERROR_DEVICE if something that was enqueued earlier has failed; then nothing works here any more.
    void check_health() const;
    // Whether something on its own stream is not done; outside of a Scope.
    bool is_busy() const;
    // Until its own stream has done all of `what`. Throws ODC_ERROR_DEVICE at the deadline, ODC_ERROR_INTERRUPTED.
    void await_own_stream(const std::string &what, const Deadline &deadline) const;
    // Keeps memory that its own stream may still write to, for `free_parked`; outside of a Scope, too.
    using Parked = std::list<std::shared_ptr<const void>>;
    void park(Parked memory) const noexcept;
    // Frees what is parked once its own stream has done everything; false: some is left. Outside of a Scope.
    bool free_parked() const;
    // The caller's stream (NULL: the legacy default stream). Throws ODC_ERROR_ARGUMENT for one of another device or one
    // that is being captured, ODC_ERROR_DEVICE where the GPU has failed already.
    cuda::Stream checked_stream(void *stream, const char *call) const;
    // Throws ODC_ERROR_ARGUMENT for memory that is not this device's.
    void check_buffer(const void *buffer, const std::string &what) const;
    // Throws ODC_ERROR_ARGUMENT for memory that the host cannot use. Needs no Scope.
    static void check_host_buffer(const void *buffer, const std::string &what);

private:
    int attribute(cuda::DeviceAttribute which) const;
    std::string why_unfit() const;
    void load_kernels();
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
    cuda::Module module_ = nullptr;
    std::array<cuda::Function, ODC_F16 + 1> adders_{};  // by gradient type
    mutable std::mutex parked_mutex_;
    mutable Parked parked_;
};

// "cuda:1": 1. Throws ODC_ERROR_ARGUMENT.
int device_ordinal(const std::string &name);

}  // namespace odc
