// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda/cuda.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>

#include "base/deadline.h"
#include "transport/cuda/copier.h"
#include "transport/cuda/gdr_add.h"
#include "transport/cuda/owner_add.h"
#include "transport/cuda/staged_add.h"
#include "transport/cuda/staged_get.h"

namespace odc {

using cuda::driver;
using cuda::Result;

Cuda::Cuda(const std::string &device)
    : device_(device), add_kernel_(device_), pending_work_(device_), copier_(std::make_unique<Copier>(device_)),
      owner_add_(std::make_unique<OwnerAdd>(device_, *copier_, add_kernel_)) {}

Cuda::~Cuda() {
    const CudaDevice::Scope scope(device_);
    for (const cuda::Event event : events_) {
        driver().cuEventDestroy(event);
    }
    for (const auto &[start, bytes] : pages_) {
        odc::unpin_pages(device_, start);
    }
}

cuda::Address Cuda::pin(std::byte *start, uint64_t bytes, uint64_t counted) {
    const cuda::Address address = odc::pin_pages(device_, start, bytes);
    const std::lock_guard lock(mutex_);
    pages_.emplace(start, counted);
    pinned_bytes_.fetch_add(counted, std::memory_order_relaxed);
    return address;
}

void Cuda::unpin_pages(std::byte *start) {
    odc::unpin_pages(device_, start);
    const std::lock_guard lock(mutex_);
    const auto pages = pages_.find(start);
    pinned_bytes_.fetch_sub(pages->second, std::memory_order_relaxed);
    pages_.erase(pages);
}

namespace {

uint64_t offset_in_page(const std::atomic<uint64_t> &word) { return reinterpret_cast<uintptr_t>(&word) % page_bytes(); }

std::byte *page_of(std::atomic<uint64_t> &word) { return reinterpret_cast<std::byte *>(&word) - offset_in_page(word); }

}  // namespace

cuda::Address Cuda::pin(std::atomic<uint64_t> &word) {
    return pin(page_of(word), page_bytes(), 0) + offset_in_page(word);
}

void Cuda::unpin(std::atomic<uint64_t> &word) { unpin_pages(page_of(word)); }

void Cuda::count(const BouncePool &slots) {
    if (slots.kind() == MemoryKind::Host) {
        pinned_bytes_.fetch_add(slots.bytes(), std::memory_order_relaxed);
    }
}

void Cuda::discount(const BouncePool &slots) {
    if (slots.kind() == MemoryKind::Host) {
        pinned_bytes_.fetch_sub(slots.bytes(), std::memory_order_relaxed);
    }
}

StagingProxy &Cuda::open_staging_proxy(int rank, std::unique_ptr<BouncePool> slots) {
    staging_proxy_ = std::make_unique<StagingProxy>(device_, rank, std::move(slots));
    count(staging_proxy_->slots());
    return *staging_proxy_;
}

void Cuda::close_staging_proxy() {
    discount(staging_proxy_->slots());
    staging_proxy_.reset();
}

StagingProxy &Cuda::open_gdr_staging_proxy(int rank, std::unique_ptr<BouncePool> slots) {
    gdr_staging_proxy_ = std::make_unique<StagingProxy>(device_, rank, std::move(slots));
    return *gdr_staging_proxy_;
}

StagedGets &Cuda::open_staged_gets(std::unique_ptr<BouncePool> slots) {
    staged_gets_ = std::make_unique<StagedGets>(device_, std::move(slots));
    count(staged_gets_->slots());
    return *staged_gets_;
}

void Cuda::close_staged_gets() {
    discount(staged_gets_->slots());
    staged_gets_.reset();
}

GdrAdd &Cuda::open_gdr_add(std::unique_ptr<BouncePool> slots) {
    gdr_add_ = std::make_unique<GdrAdd>(device_, add_kernel_, std::move(slots));
    return *gdr_add_;
}

void Cuda::close_gdr() {
    gdr_staging_proxy_.reset();
    staged_gets_.reset();
    gdr_add_.reset();
}

template <class Check>
bool Cuda::all_staging_proxies(Check check) const {
    const auto all = staging_proxies();
    return std::all_of(all.begin(), all.end(),
                       [&](StagingProxy *staging_proxy) { return staging_proxy == nullptr || check(*staging_proxy); });
}

uint64_t Cuda::times_full() const {
    uint64_t times = 0;
    all_staging_proxies([&](const StagingProxy &staging_proxy) {
        times += staging_proxy.slots().times_full();
        return true;
    });
    times += owner_add_->times_full();
    times += staged_gets_ ? staged_gets_->slots().times_full() : 0;
    return times + (gdr_add_ ? gdr_add_->slots().times_full() : 0);
}

bool Cuda::is_idle() {
    return pending_work_.all_done() && owner_add_->is_idle() &&
           all_staging_proxies([](StagingProxy &staging_proxy) { return staging_proxy.is_idle(); }) &&
           (!staged_gets_ || staged_gets_->is_idle());
}

std::optional<int> Cuda::awaited_owner() {
    if (const std::optional<int> owner = awaited_get_owner()) {
        return owner;
    }
    for (StagingProxy *const staging_proxy : staging_proxies()) {
        if (const std::optional<int> owner = staging_proxy != nullptr ? staging_proxy->awaited_owner() : std::nullopt) {
            return owner;
        }
    }
    return owner_add_->awaited_owner();
}

std::optional<int> Cuda::awaited_get_owner() { return staged_gets_ ? staged_gets_->awaited_owner() : std::nullopt; }

std::optional<int> Cuda::failed_get_owner() { return staged_gets_ ? staged_gets_->failed_owner() : std::nullopt; }

std::optional<Error> Cuda::staging_error() {
    for (StagingProxy *const staging_proxy : staging_proxies()) {
        if (std::optional<Error> error = staging_proxy != nullptr ? staging_proxy->error() : std::nullopt) {
            return error;
        }
    }
    return std::nullopt;
}

GpuIdentity Cuda::identity() const {
    GpuIdentity gpu{true, {}, device_.uuid()};
    std::strncpy(gpu.name, device_.name().c_str(), sizeof(gpu.name) - 1);
    return gpu;
}

void Cuda::connect_ipc(int rank, Fd send_end) { ipc_senders_.emplace(rank, IpcSender(std::move(send_end))); }

namespace {

// The ordinal of this UUID's device in this process; -1 if there is none.
int ordinal_of(const GpuUuid &uuid) {
    int count = 0;
    driver().cuDeviceGetCount(&count);
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        cuda::Device device = -1;
        cuda::Uuid one{};
        if (driver().cuDeviceGet(&device, ordinal) == Result::Success &&
            driver().cuDeviceGetUuid(&one, device) == Result::Success && std::to_array(one.bytes) == uuid) {
            return ordinal;
        }
    }
    return -1;
}

bool have(cuda::P2PAttribute attribute, int from, int to) {
    int value = 0;
    return driver().cuDeviceGetP2PAttribute(&value, attribute, from, to) == Result::Success && value != 0;
}

struct Atomic {
    cuda::AtomicOperation operation;
    unsigned needed;
};
constexpr Atomic kOfPlainSums[] = {
    {cuda::AtomicOperation::FloatAdd, cuda::kAtomicReduction | cuda::kAtomicScalar32 | cuda::kAtomicScalar64}};
constexpr Atomic kVectorsOfPlainSums[] = {
    {cuda::AtomicOperation::FloatAdd, cuda::kAtomicReduction | cuda::kAtomicVector32x4}};
constexpr Atomic kOfExactSums[] = {{cuda::AtomicOperation::IntegerAdd, cuda::kAtomicReduction | cuda::kAtomicScalar64},
                                   {cuda::AtomicOperation::Or, cuda::kAtomicReduction | cuda::kAtomicScalar32}};

// Drivers before CUDA 13 only tell whether there are native atomics.
bool has(const Atomic &atomic, int from, int to) {
    unsigned can = 0;
    if (driver().cuDeviceGetP2PAtomicCapabilities == nullptr ||
        driver().cuDeviceGetP2PAtomicCapabilities(&can, &atomic.operation, 1, from, to) != Result::Success) {
        return have(cuda::P2PAttribute::NativeAtomicSupported, from, to);
    }
    return (can & atomic.needed) == atomic.needed;
}

// Whether both GPUs have native peer atomics, at least these.
bool have_natively(std::span<const Atomic> atomics, int one, int other) {
    return std::all_of(atomics.begin(), atomics.end(),
                       [&](const Atomic &atomic) { return has(atomic, one, other) && has(atomic, other, one); });
}

}  // namespace

PeerAccess Cuda::peer_access_to(const GpuIdentity &gpu) const {
    if (gpu.uuid == device_.uuid()) {
        return {formatted("the same GPU, {}", device_.name()), ""};
    }
    const int other = ordinal_of(gpu.uuid);
    const std::string pair = formatted("{} and {} of that rank", device_.name(), gpu.name);
    if (other < 0) {
        return {"", formatted("this process does not see that rank's GPU, there {} (CUDA_VISIBLE_DEVICES hides "
                              "it, or another container; with Ray RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1 "
                              "shows each rank all GPUs, with Slurm --gpus-per-node and --gpu-bind=none)",
                              gpu.name)};
    }
    const int mine = device_.ordinal();
    if (!have(cuda::P2PAttribute::AccessSupported, mine, other) ||
        !have(cuda::P2PAttribute::AccessSupported, other, mine)) {
        return {"", formatted("{} cannot read each other's memory (no peer-to-peer access)", pair)};
    }
    // Without them an addition is a read and a write, and concurrent sums are lost.
    if (!have_natively(kOfPlainSums, mine, other)) {
        return {"", formatted("{} have no native atomics between them, so sums would be lost", pair)};
    }
    const bool vectors = have_natively(kVectorsOfPlainSums, mine, other);
    return {formatted("{} to {} of that rank, with native atomics{}", device_.name(), gpu.name,
                      vectors ? "" : ", but none on vectors: additions are element by element"),
            "", !vectors};
}

std::string Cuda::why_no_exact_sums_with(const GpuIdentity &gpu) const {
    if (gpu.uuid == device_.uuid() || have_natively(kOfExactSums, device_.ordinal(), ordinal_of(gpu.uuid))) {
        return "";
    }
    return formatted("{} and {} of that rank have native atomics for floats only", device_.name(), gpu.name);
}

// ---- Regions ----

Cuda::Allocated Cuda::allocate(int rank, uint64_t bytes, const Deadline &deadline) {
    auto memory = std::make_unique<CudaMemory>(device_, bytes, deadline);
    std::byte *const start = memory->start();
    const std::lock_guard lock(mutex_);
    regions_.emplace(Key{rank, ++last_region_}, Region{std::move(memory), 1, 0, true, ""});
    return {last_region_, start};
}

void Cuda::send_region(int rank, uint64_t number, uint64_t minibatch, const std::set<int> &ranks) {
    const CudaMemory &memory = *regions_.at({rank, number}).memory;
    const Fd handle = memory.handle();
    const std::lock_guard lock(ipc_mutex_);
    for (const int local_peer : ranks) {
        if (const auto ipc_sender = ipc_senders_.find(local_peer); ipc_sender != ipc_senders_.end()) {
            ipc_sender->second.send({static_cast<uint64_t>(rank), number, memory.bytes(), minibatch}, handle);
        }
    }
}

bool Cuda::progress_ipc() {
    {
        const std::lock_guard lock(mutex_);
        receive_regions();
    }
    const std::lock_guard lock(ipc_mutex_);
    return std::count_if(ipc_senders_.begin(), ipc_senders_.end(), [](auto &one) { return !one.second.flush(); }) == 0;
}

std::optional<int> Cuda::lagging_peer() {
    const std::lock_guard lock(ipc_mutex_);
    for (const auto &[rank, ipc_sender] : ipc_senders_) {
        if (ipc_sender.is_blocked()) {
            return rank;
        }
    }
    return std::nullopt;
}

void Cuda::receive_regions() {
    while (const std::optional<IpcChannel::Delivery> delivery = ipc_channel_.receive()) {
        const RegionMessage &message = delivery->message;
        const Key key{static_cast<int>(message.from), message.number};
        if (const auto known = regions_.find(key); known != regions_.end()) {  // sent again, in a later minibatch
            known->second.minibatch = std::max(known->second.minibatch, message.minibatch);
            continue;
        }
        Region region{nullptr, 0, message.minibatch, false, ""};
        try {
            if (!delivery->memory.valid()) {
                fail(ODC_ERROR_SYSTEM,
                     "its descriptor could not be received: too many are open; raise the limit (ulimit -n)");
            }
            region.memory = std::make_unique<CudaMemory>(device_, delivery->memory, message.bytes);
        } catch (const Error &error) {
            region.error = error.what();
        }
        regions_.emplace(key, std::move(region));
    }
}

std::byte *Cuda::map_region(int rank, uint64_t number) {
    const std::lock_guard lock(mutex_);
    auto region = regions_.find({rank, number});
    if (region == regions_.end()) {
        receive_regions();
        region = regions_.find({rank, number});
    }
    if (region == regions_.end()) {
        return nullptr;
    }
    if (!region->second.memory) {
        fail(ODC_ERROR_DEVICE, "GPU memory of rank {} cannot be mapped: {}", rank, region->second.error);
    }
    ++region->second.users;
    return region->second.memory->start();
}

void Cuda::unmap_region(int rank, uint64_t number, uint64_t minibatch) {
    const std::lock_guard lock(mutex_);
    const auto region = regions_.find({rank, number});
    if (region == regions_.end() || --region->second.users > 0) {
        return;
    }
    if (region->second.own || region->second.minibatch < minibatch) {
        regions_.erase(region);
    }
}

void Cuda::end_minibatch(uint64_t minibatch) {
    device_.free_parked();
    const std::lock_guard lock(mutex_);
    receive_regions();
    std::erase_if(regions_, [&](const auto &one) {
        const Region &region = one.second;
        return !region.own && region.users == 0 && region.minibatch <= minibatch;
    });
}

void Cuda::discard_region(int rank, uint64_t number) {
    const std::lock_guard lock(mutex_);
    receive_regions();
    regions_.erase({rank, number});
}

// ---- Words and events ----

void Cuda::free_pinned(const PinnedMemory &memory) {
    pinned_.remove_if([&](const PinnedMemory &one) { return &one == &memory; });
}

cuda::Event Cuda::create_event() {
    const CudaDevice::Scope scope(device_);
    cuda::Event event = nullptr;
    device_.check(driver().cuEventCreate(&event, cuda::kEventDisableTiming), "cuEventCreate");
    events_.insert(event);
    return event;
}

void Cuda::destroy_event(cuda::Event event) {
    const CudaDevice::Scope scope(device_);
    driver().cuEventDestroy(event);
    events_.erase(event);
}

// ---- Enqueueing ----

void Cuda::publish(const Publish &work, cuda::Stream stream) const {
    if (work.bytes > 0) {
        device_.check(
            driver().cuMemsetD8Async(reinterpret_cast<cuda::Address>(work.accumulator), 0, work.bytes, stream),
            "cuMemsetD8Async");
    }
    if (work.shadow != nullptr && work.shadow_bytes > 0) {
        copier_->enqueue({{work.parameters, work.shadow, work.shadow_bytes, false}}, stream);
    }
    device_.check(driver().cuEventRecord(work.event, stream), "cuEventRecord");
    // The write has a fence: whoever sees the word sees the stream's earlier work.
    device_.check(driver().cuStreamWriteValue64(stream, work.word, work.value, cuda::kWriteValueDefault),
                  "cuStreamWriteValue64");
}

void Cuda::wait_event(cuda::Event event, cuda::Stream stream) const {
    device_.check(driver().cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

void Cuda::get(const std::vector<Copy> &copies, cuda::Stream stream) const { copier_->enqueue(copies, stream); }

void Cuda::convert_exact_sums(const RemoteSlice &slice, const PinnedMemory &to, cuda::Stream stream) const {
    add_kernel_.enqueue_conversion(slice, stream);
    device_.check(driver().cuMemcpyAsync(to.address(), reinterpret_cast<cuda::Address>(totals_of(slice)),
                                         sizeof(ExactTotals), stream),
                  "cuMemcpyAsync");
}

void Cuda::stop_adding_for_others() {
    owner_add_->stop();
    if (gdr_add_) {
        gdr_add_->stop();
    }
}

bool Cuda::drain(int64_t ms) {
    for (StagingProxy *const staging_proxy : staging_proxies()) {
        if (staging_proxy != nullptr) {
            staging_proxy->stop();
        }
    }
    const auto is_done = [this] {
        return device_.free_parked() && pending_work_.all_done() && owner_add_->is_drained() &&
               all_staging_proxies([](StagingProxy &staging_proxy) { return staging_proxy.is_drained(); }) &&
               (!staged_gets_ || staged_gets_->is_idle()) && (!gdr_add_ || gdr_add_->is_idle());
    };
    const Deadline deadline(ms, nullptr, nullptr);
    while (!is_done()) {
        if (deadline.over() || (pending_work_.only_lost_left() && !pending_work_.all_done())) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

}  // namespace odc
