// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/device.h"

#include <algorithm>
#include <cctype>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/element_type.h"
#include "base/settings.h"
#include "transport/cuda/gpu_error.h"
#include "transport/cuda/kernels.h"

namespace odc {

using cuda::driver;
using cuda::Result;

int device_ordinal(const std::string &name) {
    const std::string kind = "cuda:";
    const bool digits = name.size() > kind.size() && name.find_first_not_of("0123456789", kind.size()) == name.npos;
    if (name.compare(0, kind.size(), kind) != 0 || !digits || name.size() > kind.size() + 4) {
        fail(ODC_ERROR_ARGUMENT, "the device is \"{}\"; name one as cuda:0, cuda:1, ...", name);
    }
    return static_cast<int>(parse_number("the device", name.substr(kind.size()), 0, 9999));
}

CudaDevice::CudaDevice(const std::string &name) : name_(name), ordinal_(device_ordinal(name)) {
    if (const std::string &why_not = cuda::why_not_driver(); !why_not.empty()) {
        fail(ODC_ERROR_UNSUPPORTED, "{} cannot be used: {}", name_, why_not);
    }
    int count = 0;
    check(driver().cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (ordinal_ >= count) {
        fail(ODC_ERROR_ARGUMENT, "{} does not exist: this process sees {} GPU{} (CUDA_VISIBLE_DEVICES chooses)", name_,
             count, count == 1 ? "" : "s");
    }
    check(driver().cuDeviceGet(&device_, ordinal_), "cuDeviceGet");
    cuda::Uuid uuid{};
    check(driver().cuDeviceGetUuid(&uuid, device_), "cuDeviceGetUuid");
    uuid_ = std::to_array(uuid.bytes);
    if (const std::string why_not = why_unsupported(); !why_not.empty()) {
        fail(ODC_ERROR_UNSUPPORTED, "{} cannot be used: {}", name_, why_not);
    }
    multiprocessors_ = static_cast<unsigned>(attribute(cuda::DeviceAttribute::MultiprocessorCount));
    gpu_direct_rdma_ = attribute(cuda::DeviceAttribute::GpuDirectRdmaWithVmmSupported) != 0;
    orders_remote_writes_ =
        attribute(cuda::DeviceAttribute::GpuDirectRdmaWritesOrdering) >= static_cast<int>(cuda::WritesOrdering::Owner);
    flushes_remote_writes_ =
        (attribute(cuda::DeviceAttribute::GpuDirectRdmaFlushWritesOptions) & cuda::kFlushWritesByHost) != 0;
    const RelaxedCapture relaxed;
    if (const Result result = driver().cuDevicePrimaryCtxRetain(&context_, device_); result != Result::Success) {
        check_not_failed(name_, result);
        if (result == Result::OutOfMemory) {  // without a context the free memory is unknown
            fail(
                ODC_ERROR_NO_MEMORY,
                "{} cannot be used: {}; each process needs a few hundred MB there and as much host memory for CUDA itself, "
                "so let fewer ranks share it, or free memory (nvidia-smi and free show what is used)",
                name_, cuda::result_text(result));
        }
        fail(ODC_ERROR_UNSUPPORTED, "{} cannot be used: {}", name_, cuda::result_text(result));
    }
    try {
        const Scope scope(*this);
        const Result result = driver().cuStreamCreate(&stream_, cuda::kStreamNonBlocking);
        check_not_failed(name_, result);
        check_memory(result, "cuStreamCreate", "a stream");
        load_kernels(attribute(cuda::DeviceAttribute::ComputeCapabilityMajor));
    } catch (...) {
        close();
        throw;
    }
}

CudaDevice::~CudaDevice() {
    if (!free_parked()) {
        static std::mutex mutex;
        static auto &left = *new Parked;
        const std::lock_guard lock(mutex);
        left.splice(left.end(), parked_);
    }
    close();
}

std::string CudaDevice::bus_id() const {
    char text[32] = {};
    if (driver().cuDeviceGetPCIBusId(text, sizeof(text), device_) != Result::Success) {
        return "";
    }
    std::string id = text;
    std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
    return id;
}

void CudaDevice::close() {
    const RelaxedCapture relaxed;
    {
        const Scope scope(*this);
        for (cuda::Module module : {kernels_, exact_module_}) {
            if (module != nullptr) {
                driver().cuModuleUnload(module);
            }
        }
        if (stream_ != nullptr) {
            driver().cuStreamDestroy(stream_);
        }
    }
    driver().cuDevicePrimaryCtxRelease(device_);
}

CudaDevice::RelaxedCapture::RelaxedCapture() noexcept
    : exchanged_(driver().cuThreadExchangeStreamCaptureMode(&mode_) == Result::Success) {}

CudaDevice::RelaxedCapture::~RelaxedCapture() {
    if (exchanged_) {
        driver().cuThreadExchangeStreamCaptureMode(&mode_);
    }
}

CudaDevice::Scope::Entered::Entered(const CudaDevice &device) noexcept
    : done(driver().cuCtxPushCurrent(device.context_) == Result::Success) {}

CudaDevice::Scope::Entered::~Entered() {
    if (done) {
        cuda::Context popped = nullptr;
        driver().cuCtxPopCurrent(&popped);
    }
}

void CudaDevice::check(Result result, const char *call) const {
    if (result != Result::Success) {
        check_health();  // an earlier failure explains more
        fail(ODC_ERROR_DEVICE, "{} on {} failed: {}", call, name_, cuda::result_text(result));
    }
}

void CudaDevice::check_memory(Result result, const char *call, const std::string &what) const {
    if (result == Result::OutOfMemory) {
        size_t free = 0;
        size_t total = 0;
        const bool known = driver().cuMemGetInfo(&free, &total) == Result::Success;
        fail(ODC_ERROR_NO_MEMORY, "there is no memory for {} ({} on {}{})", what, call, name_,
             known ? formatted(", where {} of {} bytes are free", free, total) : "");
    }
    check(result, call);
}

void CudaDevice::check_health() const {
    const Result result = stream_ != nullptr ? driver().cuStreamQuery(stream_) : Result::Success;
    if (result != Result::Success && result != Result::NotReady) {
        fail_gpu(name_, result);
    }
}

std::string CudaDevice::why_no_remote_writes() const {
    if (!gpu_direct_rdma_) {
        return formatted("{} lets no network adapter reach its memory", name_);
    }
    return orders_remote_writes_ || flushes_remote_writes_
               ? ""
               : formatted("{} does not tell when it sees what network adapters have written", name_);
}

void CudaDevice::flush_remote_writes() const {
    if (!orders_remote_writes_) {
        check(driver().cuFlushGPUDirectRDMAWrites(cuda::FlushTarget::CurrentContext, cuda::FlushScope::Owner),
              "cuFlushGPUDirectRDMAWrites");
    }
}

bool CudaDevice::is_busy() const {
    const Scope scope(*this);
    return driver().cuStreamQuery(stream_) == Result::NotReady;
}

void CudaDevice::park(Parked memory) const noexcept {
    const std::lock_guard lock(parked_mutex_);
    parked_.splice(parked_.end(), memory);
}

bool CudaDevice::free_parked() const {
    Parked freed;
    const std::lock_guard lock(parked_mutex_);
    if (!parked_.empty() && !is_busy()) {
        freed.swap(parked_);
    }
    return parked_.empty();
}

void CudaDevice::await_own_stream(const std::string &what, const Deadline &deadline) const {
    constexpr int64_t kAskNs = 20'000'000;
    int64_t asked_ns = now_ns();
    for (;;) {
        const Result result = driver().cuStreamQuery(stream_);
        if (result == Result::Success) {
            return;
        }
        if (result != Result::NotReady) {
            check_health();
        }
        if (deadline.over()) {
            fail(ODC_ERROR_DEVICE,
                 "{} has not done {} in {:g} s: something else keeps it busy, such as a kernel that never ends", name_,
                 what, deadline.waited_s());
        }
        // Rarely, because memory that is being zeroed when the wait is interrupted stays in use until the GPU is done.
        if (const int64_t now = now_ns(); now - asked_ns >= kAskNs) {
            asked_ns = now;
            deadline.check_interrupted(what.c_str());
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

cuda::Stream CudaDevice::checked_stream(void *stream, const char *call) const {
    auto *const given = static_cast<cuda::Stream>(stream);
    // The default streams belong to the current context, so to this device.
    if (given != nullptr && given != cuda::kLegacyStream && given != cuda::kPerThreadStream) {
        cuda::Context context = nullptr;
        check_health();
        const Result result = driver().cuStreamGetCtx(given, &context);
        if (result == Result::InvalidHandle || result == Result::InvalidValue) {
            fail(ODC_ERROR_ARGUMENT, "{}: the stream {} is not a CUDA stream", call, stream);
        }
        check(result, "cuStreamGetCtx");
        if (context != context_) {
            fail(ODC_ERROR_ARGUMENT, "{}: the stream does not belong to the primary context of {}, where the shard is",
                 call, name_);
        }
    }
    cuda::CaptureStatus status = cuda::CaptureStatus::None;
    const Result result = driver().cuStreamIsCapturing(given, &status);
    if (result == Result::StreamCaptureImplicit) {
        fail(ODC_ERROR_ARGUMENT,
             "{}: the legacy default stream cannot be used while a stream that is ordered with it is being captured; "
             "give another stream, or capture one that was created with CU_STREAM_NON_BLOCKING",
             call);
    }
    check(result, "cuStreamIsCapturing");
    if (status != cuda::CaptureStatus::None) {
        fail(ODC_ERROR_ARGUMENT,
             "{}: the stream is being captured; call it outside of the capture, because a graph "
             "cannot wait for other ranks",
             call);
    }
    return given;
}

void CudaDevice::check_buffer(const void *buffer, const std::string &what) const {
    auto type = cuda::MemoryType::Unknown;
    int ordinal = -1;
    cuda::PointerAttribute attributes[] = {cuda::PointerAttribute::MemoryType, cuda::PointerAttribute::DeviceOrdinal};
    void *values[] = {&type, &ordinal};
    const Result result =
        driver().cuPointerGetAttributes(2, attributes, values, reinterpret_cast<cuda::Address>(buffer));
    if (result == Result::InvalidValue) {
        fail(ODC_ERROR_ARGUMENT, "{} is in host memory, or was freed; the shard is in that of {}", what, name_);
    }
    check(result, "cuPointerGetAttributes");
    if (type != cuda::MemoryType::Gpu) {
        fail(ODC_ERROR_ARGUMENT, "{} is in host memory, the shard in that of {}", what, name_);
    }
    if (ordinal != ordinal_) {
        fail(ODC_ERROR_ARGUMENT, "{} is in the memory of cuda:{}, the shard in that of {}", what, ordinal, name_);
    }
}

void CudaDevice::check_host_buffer(const void *buffer, const std::string &what) {
    auto type = cuda::MemoryType::Unknown;
    auto attribute = cuda::PointerAttribute::MemoryType;
    void *value = &type;
    const Result result =
        driver().cuPointerGetAttributes(1, &attribute, &value, reinterpret_cast<cuda::Address>(buffer));
    if (result == Result::Success && type == cuda::MemoryType::Gpu) {
        fail(ODC_ERROR_ARGUMENT, "{} is in GPU memory, the shard in host memory", what);
    }
}

int CudaDevice::attribute(cuda::DeviceAttribute which) const {
    int value = 0;
    check(driver().cuDeviceGetAttribute(&value, which, device_), "cuDeviceGetAttribute");
    return value;
}

std::string CudaDevice::why_unsupported() const {
    using cuda::DeviceAttribute;
    if (attribute(DeviceAttribute::ComputeCapabilityMajor) < 8) {
        return formatted("its compute capability is {}.{}, 8.0 (A100) or later is needed",
                         attribute(DeviceAttribute::ComputeCapabilityMajor),
                         attribute(DeviceAttribute::ComputeCapabilityMinor));
    }
    if (attribute(DeviceAttribute::VirtualMemoryManagementSupported) == 0 ||
        attribute(DeviceAttribute::HandleTypePosixFileDescriptorSupported) == 0) {
        return "its memory cannot be shared by file descriptors (CUDA's virtual memory management)";
    }
    if (attribute(DeviceAttribute::CanUseStreamMemOps64Bit) == 0 ||
        attribute(DeviceAttribute::HostRegisterSupported) == 0) {
        return "its streams cannot write words into host memory";
    }
    return "";
}

cuda::Function CudaDevice::kernel(cuda::Module module, const std::string &name) const {
    cuda::Function function = nullptr;
    check(driver().cuModuleGetFunction(&function, module, name.c_str()), "cuModuleGetFunction");
    if (driver().cuFuncLoad != nullptr) {  // otherwise its first launch may load it, and wait until the GPU is idle
        check_memory(driver().cuFuncLoad(function), "cuFuncLoad", "a kernel");
    }
    return function;
}

// A driver does not take machine code that it is told to compile anew (CUDA_FORCE_PTX_JIT), nor that of other GPUs.
Result CudaDevice::load(const KernelImages &images, cuda::Module *module) const {
    if (images.cubin != nullptr) {
        const Result result = driver().cuModuleLoadData(module, images.cubin);
        check_not_failed(name_, result);
        if (result == Result::Success || result == Result::OutOfMemory) {
            return result;
        }
    }
    return driver().cuModuleLoadData(module, images.ptx);
}

void CudaDevice::load_kernels(int compute_major) {
    const Result result = load(add_kernel_images(compute_major), &kernels_);
    if (const std::string cure = cure_of_loading(result); !cure.empty()) {
        fail(ODC_ERROR_UNSUPPORTED, "{} cannot be used: its driver does not load the kernels of additions ({}){}",
             name_, cuda::result_text(result), cure);
    }
    check_memory(result, "cuModuleLoadData", "the kernels");
    for (const int32_t type : {ODC_F32, ODC_F64, ODC_BF16, ODC_F16}) {
        adders_[static_cast<size_t>(type)] = kernel(kernels_, formatted("odc_add_{}", element_name(type)));
    }
}

void CudaDevice::use_scalar_reductions() {
    constexpr int kWithoutVectors = 8;
    if (attribute(cuda::DeviceAttribute::ComputeCapabilityMajor) > kWithoutVectors) {
        driver().cuModuleUnload(std::exchange(kernels_, nullptr));
        load_kernels(kWithoutVectors);
    }
}

void CudaDevice::load_exact_kernels() {
    if (exact_kernels_.converter != nullptr) {
        return;
    }
    if (exact_module_ == nullptr) {
        const Result result =
            load(exact_kernel_images(attribute(cuda::DeviceAttribute::ComputeCapabilityMajor)), &exact_module_);
        check_not_failed(name_, result);
        if (result != Result::Success && result != Result::OutOfMemory) {
            fail(ODC_ERROR_UNSUPPORTED, "{} cannot make exact sums: its driver does not load their kernels ({}){}",
                 name_, cuda::result_text(result), cure_of_loading(result));
        }
        check_memory(result, "cuModuleLoadData", "the kernels of exact sums");
    }
    ExactKernels found;
    for (const int32_t type : {ODC_F32, ODC_BF16, ODC_F16}) {
        found.adders[static_cast<size_t>(type)] =
            kernel(exact_module_, formatted("odc_exact_add_{}", element_name(type)));
    }
    found.sums_adder = kernel(exact_module_, "odc_exact_add_sums");
    found.converter = kernel(exact_module_, "odc_exact_to_f32");
    exact_kernels_ = found;
}

}  // namespace odc
