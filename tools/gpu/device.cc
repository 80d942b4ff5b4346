// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.h"

#include "cli/exit.h"
#include "gpu/kernels.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace odc_tool {

using cuda::check;
using cuda::driver;
using cuda::Result;

namespace {

constexpr unsigned kThreads = 256;  // of a block
constexpr auto kDeadline = std::chrono::seconds(600);

cuda::Address address_of(const void *memory) { return reinterpret_cast<cuda::Address>(memory); }

const char *adder_name(odc_type type) {
    switch (type) {
        case ODC_F64: return "odc_plain_add_f64";
        case ODC_BF16: return "odc_plain_add_bf16";
        case ODC_F16: return "odc_plain_add_f16";
        default: return "odc_plain_add_f32";
    }
}

// After an exception the GPU may still use it; the process ends, and its memory with it.
bool must_leave() { return std::uncaught_exceptions() > 0; }

}  // namespace

int gpu_count() {
    check(driver().cuInit(0), "cuInit");
    int count = 0;
    check(driver().cuDeviceGetCount(&count), "cuDeviceGetCount");
    return count;
}

int gpu_of(const cuda::Uuid &uuid) {
    for (int ordinal = 0; ordinal < gpu_count(); ++ordinal) {
        cuda::Device device = -1;
        cuda::Uuid one{};
        check(driver().cuDeviceGet(&device, ordinal), "cuDeviceGet");
        check(driver().cuDeviceGetUuid(&one, device), "cuDeviceGetUuid");
        if (one == uuid) {
            return ordinal;
        }
    }
    return -1;
}

std::string uuid_text(const cuda::Uuid &uuid) {
    std::string text = "GPU";
    for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
        const bool group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        text += fmt::format("{}{:02x}", group ? "-" : "", uuid.bytes[i]);
    }
    return text;
}

// ---- GpuEvent ----

GpuEvent::GpuEvent(GpuEvent &&other) noexcept
    : gpu_(std::exchange(other.gpu_, nullptr)), event_(std::exchange(other.event_, nullptr)) {}

GpuEvent::~GpuEvent() {
    if (gpu_ != nullptr && !must_leave()) {
        const Gpu::Scope scope(*gpu_);
        driver().cuEventDestroy(event_);
    }
}

// ---- Gpu ----

Gpu::Scope::Scope(const Gpu &gpu) noexcept : entered_(driver().cuCtxPushCurrent(gpu.context_) == Result::Success) {}

Gpu::Scope::~Scope() {
    if (entered_) {
        cuda::Context popped = nullptr;
        driver().cuCtxPopCurrent(&popped);
    }
}

Gpu::Gpu(int ordinal) : ordinal_(ordinal) {
    check(driver().cuInit(0), "cuInit");
    check(driver().cuDeviceGet(&device_, ordinal_), "cuDeviceGet");
    char name[256] = {};
    check(driver().cuDeviceGetName(name, sizeof(name) - 1, device_), "cuDeviceGetName");
    name_ = name;
    check(driver().cuDeviceGetUuid(&uuid_, device_), "cuDeviceGetUuid");
    check(driver().cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
    const Scope scope(*this);
    check(driver().cuStreamCreate(&stream_, cuda::kStreamNonBlocking), "cuStreamCreate");
    check(driver().cuModuleLoadData(&module_, plain_add_ptx()), "cuModuleLoadData of the plain kernels");
    for (const odc_type type : {ODC_F32, ODC_F64, ODC_BF16, ODC_F16}) {
        check(driver().cuModuleGetFunction(&adders_[static_cast<size_t>(type)], module_, adder_name(type)),
              "cuModuleGetFunction");
    }
}

Gpu::~Gpu() {
    if (must_leave()) {
        return;
    }
    {
        const Scope scope(*this);
        driver().cuModuleUnload(module_);
        driver().cuStreamDestroy(stream_);
    }
    driver().cuDevicePrimaryCtxRelease(device_);
}

std::string Gpu::device() const { return fmt::format("cuda:{}", ordinal_); }

Gpu::Room Gpu::room() const {
    const Scope scope(*this);
    Room room{};
    check(driver().cuMemGetInfo(&room.free, &room.total), "cuMemGetInfo");
    return room;
}

bool Gpu::reaches(int ordinal) const {
    if (ordinal < 0 || ordinal == ordinal_) {
        return ordinal == ordinal_;
    }
    cuda::Device other = -1;
    int value = 0;
    check(driver().cuDeviceGet(&other, ordinal), "cuDeviceGet");
    check(driver().cuDeviceGetP2PAttribute(&value, cuda::P2PAttribute::AccessSupported, device_, other),
          "cuDeviceGetP2PAttribute");
    return value != 0;
}

void Gpu::copy(void *to, const void *from, size_t bytes) const {
    const Scope scope(*this);
    check(driver().cuMemcpyAsync(address_of(to), address_of(from), bytes, stream_), "cuMemcpyAsync");
}

void Gpu::clear(void *to, size_t bytes) const {
    const Scope scope(*this);
    check(driver().cuMemsetD8Async(address_of(to), 0, bytes, stream_), "cuMemsetD8Async");
}

void Gpu::add(odc_type type, void *sums, const void *values, uint64_t numel) const {
    if (numel == 0) {
        return;
    }
    const Scope scope(*this);
    cuda::Address to = address_of(sums);
    cuda::Address from = address_of(values);
    void *parameters[] = {&to, &from, &numel};
    const uint64_t blocks = (numel + 4 * kThreads - 1) / (4 * kThreads);  // four elements a thread
    check(driver().cuLaunchKernel(adders_[static_cast<size_t>(type)], static_cast<unsigned>(blocks), 1, 1, kThreads, 1,
                                  1, 0, stream_, parameters, nullptr),
          "cuLaunchKernel of the plain addition");
}

void Gpu::set(GpuEvent &event) const {
    const Scope scope(*this);
    if (event.gpu_ == nullptr) {
        check(driver().cuEventCreate(&event.event_, cuda::kEventDisableTiming), "cuEventCreate");
        event.gpu_ = this;
    }
    check(driver().cuEventRecord(event.event_, stream_), "cuEventRecord");
}

void Gpu::follow(const GpuEvent &event) const {
    if (event.gpu_ != nullptr) {
        const Scope scope(*this);
        check(driver().cuStreamWaitEvent(stream_, event.event_, 0), "cuStreamWaitEvent");
    }
}

void Gpu::synchronize() const {
    const Scope scope(*this);
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    for (;;) {
        const Result result = driver().cuStreamQuery(stream_);
        if (result != Result::NotReady) {
            return check(result, "enqueued work (found by cuStreamQuery)");
        }
        if (std::chrono::steady_clock::now() > deadline) {
            throw Exit{1, fmt::format("the work enqueued on {} was not done within {} s", device(), kDeadline.count())};
        }
        std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
}

// ---- GpuMemory ----

GpuMemory::GpuMemory(const Gpu &gpu, size_t bytes, const std::vector<int> &users) : gpu_(gpu) {
    const Gpu::Scope scope(gpu_);
    cuda::AllocationProperties properties{};
    properties.type = cuda::AllocationType::Pinned;
    properties.location = {cuda::LocationType::Gpu, gpu_.ordinal()};
    size_t granule = 0;
    check(driver().cuMemGetAllocationGranularity(&granule, &properties, cuda::Granularity::Minimum),
          "cuMemGetAllocationGranularity");
    bytes_ = (std::max<size_t>(bytes, 1) + granule - 1) / granule * granule;
    const Result made = driver().cuMemCreate(&memory_, bytes_, &properties, 0);
    if (made == Result::OutOfMemory) {
        throw Exit{1, fmt::format("the benchmark needs {} bytes more of {}, but only {} are free; give fewer --bytes",
                                  bytes_, gpu_.device(), gpu_.room().free)};
    }
    check(made, "cuMemCreate");
    check(driver().cuMemAddressReserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
    check(driver().cuMemMap(address_, bytes_, 0, memory_, 0), "cuMemMap");
    std::vector<cuda::AccessDescription> access = {{properties.location, cuda::Access::ReadWrite}};
    for (const int user : users) {
        if (user != gpu_.ordinal()) {
            access.push_back({{cuda::LocationType::Gpu, user}, cuda::Access::ReadWrite});
        }
    }
    check(driver().cuMemSetAccess(address_, bytes_, access.data(), access.size()), "cuMemSetAccess");
    gpu_.clear(start(), bytes_);
    gpu_.synchronize();
}

GpuMemory::~GpuMemory() {
    if (must_leave()) {
        return;
    }
    const Gpu::Scope scope(gpu_);
    driver().cuMemUnmap(address_, bytes_);
    driver().cuMemAddressFree(address_, bytes_);
    driver().cuMemRelease(memory_);
}

// ---- PinnedMemory ----

PinnedMemory::PinnedMemory(const Gpu &gpu, size_t bytes) : gpu_(gpu), bytes_(std::max<size_t>(bytes, 1)) {
    pages_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages_ == MAP_FAILED) {
        throw Exit{1, fmt::format("no memory for a buffer of {} bytes", bytes_)};
    }
    const Gpu::Scope scope(gpu_);
    check(driver().cuMemHostRegister(pages_, bytes_, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap),
          "cuMemHostRegister");
    check(driver().cuMemHostGetDevicePointer(&address_, pages_, 0), "cuMemHostGetDevicePointer");
}

PinnedMemory::~PinnedMemory() {
    if (must_leave()) {
        return;
    }
    {
        const Gpu::Scope scope(gpu_);
        driver().cuMemHostUnregister(pages_);
    }
    munmap(pages_, bytes_);
}

}  // namespace odc_tool
