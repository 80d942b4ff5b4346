// SPDX-License-Identifier: Apache-2.0
// An adapter's operations: it reads into registered memory; data read into GPU memory is visible there once it has been
// flushed. Until then it is in a private buffer, from which the real libfabric's completion, or the flush, copies it.
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "changed.h"
#include "fake_cuda.h"
#include "fake_fabric.h"

namespace fake_fabric {

namespace {

constexpr int kCudaApiPermitted = 10;  // FI_OPT_CUDA_API_PERMITTED of 1.18

[[noreturn]] void die(const char *message) {
    std::fprintf(stderr, "fake fabric: %s\n", message);
    std::abort();
}

// ---- GPU memory ----

struct Cuda {
    decltype(&::fake_cuda_for_adapters) for_adapters = nullptr;
    decltype(&::fake_cuda_is_device_memory) is_device_memory = nullptr;
    decltype(&::fake_cuda_write) write = nullptr;
    decltype(&::fake_cuda_on_flush) on_flush = nullptr;
};

void flush();

Cuda find_cuda() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return {};
    }
    const auto find = [library](auto &function, const char *name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    Cuda one;
    find(one.for_adapters, "fake_cuda_for_adapters");
    find(one.is_device_memory, "fake_cuda_is_device_memory");
    find(one.write, "fake_cuda_write");
    find(one.on_flush, "fake_cuda_on_flush");
    one.on_flush(flush);
    return one;
}

const Cuda &cuda() {
    static const Cuda one = find_cuda();
    return one;
}

bool is_gpu_memory(const void *place) {
    return cuda().is_device_memory != nullptr && cuda().is_device_memory(place) != 0;
}

unsigned long long address_of(const void *place) { return reinterpret_cast<unsigned long long>(place); }

// ---- Registered memory and reads in flight ----

struct Region {
    void *descriptor;
    const std::byte *start;
    size_t bytes;
    enum class Of { Host, Gpu } of;
    bool holds(const void *place, size_t count, const void *with) const {
        const auto *at = static_cast<const std::byte *>(place);
        return with == descriptor && at >= start && at + count <= start + bytes;
    }
};

// A read; `to` is in GPU memory, or NULL.
struct Read {
    fid_ep *endpoint;
    void *to;
    std::vector<std::byte> data;
};

struct State {
    std::mutex mutex;
    std::map<fid *, Region> regions;
    std::map<void *, Read> in_flight;  // by context
    std::vector<Read> unseen;          // by the GPU
    std::vector<fid_ep *> left_open;
};

State &state() {
    static auto &one = *new State;
    return one;
}

void flush() {
    const std::lock_guard lock(state().mutex);
    for (const Read &one : state().unseen) {
        cuda().write(address_of(one.to), one.data.data(), one.data.size());
    }
    state().unseen.clear();
}

void completed(void *context) {
    static const bool ordered = setting("FAKE_CUDA_ADAPTERS", "flush") == "ordered";
    {
        const std::lock_guard lock(state().mutex);
        const auto found = state().in_flight.find(context);
        if (found == state().in_flight.end()) {
            return;
        }
        if (found->second.to != nullptr) {
            state().unseen.push_back(std::move(found->second));
        }
        state().in_flight.erase(found);
    }
    if (ordered) {
        flush();
    }
}

void lost(void *context) {
    const std::lock_guard lock(state().mutex);
    state().in_flight.erase(context);
}

void check_registered(const void *place, size_t bytes, const void *descriptor) {
    const std::lock_guard lock(state().mutex);
    for (const auto &[id, region] : state().regions) {
        if (region.holds(place, bytes, descriptor)) {
            return;
        }
    }
    die("an adapter is to reach memory that is not registered");
}

// ---- Memory ----

int close_region(fid *region) {
    {
        const std::lock_guard lock(state().mutex);
        const Region &one = state().regions.at(region);
        int device = 0;
        if (one.of == Region::Of::Gpu && cuda().for_adapters(address_of(one.start), one.bytes, &device) == nullptr) {
            die("GPU memory is gone that is still registered");
        }
        state().regions.erase(region);
    }
    return original(region->ops)->close(region);
}

void keep(fid_mr *memory, const void *start, size_t bytes, Region::Of of) {
    change(memory->fid.ops, [](fi_ops &ours) { ours.close = close_region; });
    const std::lock_guard lock(state().mutex);
    state().regions[&memory->fid] = {memory->mem_desc, static_cast<const std::byte *>(start), bytes, of};
}

int register_host(fid *domain, const void *start, size_t bytes, uint64_t access, uint64_t offset, uint64_t key,
                  uint64_t flags, fid_mr **memory, void *context) {
    if (is_gpu_memory(start)) {
        die("GPU memory is to be registered as if it were host memory");
    }
    auto &operations = *reinterpret_cast<fid_domain *>(domain)->mr;
    const int code = original(&operations)->reg(domain, start, bytes, access, offset, key, flags, memory, context);
    if (code == 0) {
        keep(*memory, start, bytes, Region::Of::Host);
    }
    return code;
}

int register_by_attributes(fid *domain, const fi_mr_attr *attributes, uint64_t flags, fid_mr **memory) {
    const auto &[start, bytes] = *attributes->mr_iov;
    if (attributes->iface != FI_HMEM_CUDA || attributes->iov_count != 1) {
        die("something else than GPU memory in one piece is to be registered by attributes");
    }
    int device = -1;
    void *seen = cuda().for_adapters(address_of(start), bytes, &device);
    if (setting("FAKE_FABRIC_GPU", "yes") == "refused" || seen == nullptr || device != attributes->device.cuda) {
        return -FI_EINVAL;
    }
    auto &operations = *reinterpret_cast<fid_domain *>(domain)->mr;
    const int code = original(&operations)
                         ->reg(domain, seen, bytes, attributes->access, attributes->offset, attributes->requested_key,
                               flags, memory, attributes->context);
    if (code == 0) {
        keep(*memory, start, bytes, Region::Of::Gpu);
    }
    return code;
}

// ---- Reads ----

ssize_t read(fid_ep *endpoint, void *to, size_t bytes, void *descriptor, fi_addr_t peer, uint64_t address, uint64_t key,
             void *context) {
    Read started{endpoint, nullptr, {}};
    void *target = to;
    if (is_gpu_memory(to)) {
        check_registered(to, bytes, descriptor);
        started.to = to;
        started.data.resize(bytes);
        target = started.data.data();
    } else if (is_local()) {
        check_registered(to, bytes, descriptor);
    }
    {
        const std::lock_guard lock(state().mutex);
        state().in_flight[context] = std::move(started);
    }
    static const size_t stuck = std::stoull(setting("FAKE_FABRIC_STUCK_BYTES", "18446744073709551615"));
    if (bytes >= stuck) {
        return 0;  // and never completes
    }
    const ssize_t code = original(endpoint->rma)->read(endpoint, target, bytes, nullptr, peer, address, key, context);
    if (code != 0) {
        lost(context);
    }
    return code;
}

ssize_t send(fid_ep *endpoint, const void *from, size_t bytes, void *descriptor, fi_addr_t peer, void *context) {
    if (is_local()) {
        check_registered(from, bytes, descriptor);
    }
    return original(endpoint->msg)->send(endpoint, from, bytes, nullptr, peer, context);
}

ssize_t receive(fid_ep *endpoint, void *to, size_t bytes, void *descriptor, fi_addr_t peer, void *context) {
    if (is_local()) {
        check_registered(to, bytes, descriptor);
    }
    return original(endpoint->msg)->recv(endpoint, to, bytes, nullptr, peer, context);
}

void complete_all(const void *entries, ssize_t count) {
    const auto *all = static_cast<const fi_cq_msg_entry *>(entries);
    for (ssize_t i = 0; i < count; ++i) {
        completed(all[i].op_context);
    }
}

ssize_t read_queue(fid_cq *queue, void *entries, size_t most) {
    const ssize_t count = original(queue->ops)->read(queue, entries, most);
    complete_all(entries, count);
    return count;
}

ssize_t wait_for_queue(fid_cq *queue, void *entries, size_t most, const void *condition, int ms) {
    const ssize_t count = original(queue->ops)->sread(queue, entries, most, condition, ms);
    complete_all(entries, count);
    return count;
}

ssize_t read_error(fid_cq *queue, fi_cq_err_entry *entry, uint64_t flags) {
    const ssize_t count = original(queue->ops)->readerr(queue, entry, flags);
    if (count > 0) {
        lost(entry->op_context);
    }
    return count;
}

// ---- Endpoints and queues ----

int set_option(fid *endpoint, int level, int option, const void *value, size_t bytes) {
    if (level != FI_OPT_ENDPOINT || option != kCudaApiPermitted) {
        return original(reinterpret_cast<fid_ep *>(endpoint)->ops)->setopt(endpoint, level, option, value, bytes);
    }
    if (bytes != sizeof(bool) || *static_cast<const bool *>(value)) {
        die("FI_OPT_CUDA_API_PERMITTED is not false");
    }
    return setting("FAKE_FABRIC_GPU", "yes") == "calls" ? -FI_EOPNOTSUPP : 0;
}

// The real libfabric crashes when it closes one with reads in flight.
int close_endpoint(fid *endpoint) {
    auto *const closed = reinterpret_cast<fid_ep *>(endpoint);
    {
        const std::lock_guard lock(state().mutex);
        const auto &in_flight = state().in_flight;
        if (std::any_of(in_flight.begin(), in_flight.end(),
                        [closed](const auto &one) { return one.second.endpoint == closed; })) {
            state().left_open.push_back(closed);
            return 0;
        }
    }
    return original(endpoint->ops)->close(endpoint);
}

int open_endpoint(fid_domain *domain, fi_info *info, fid_ep **endpoint, void *context) {
    fi_info *known = translated(*info);
    const int code = original(domain->ops)->endpoint(domain, known, endpoint, context);
    real().freeinfo(known);
    if (code != 0) {
        return code;
    }
    fid_ep &opened = **endpoint;
    change(opened.fid.ops, [](fi_ops &ours) { ours.close = close_endpoint; });
    change(opened.ops, [](fi_ops_ep &ours) { ours.setopt = set_option; });
    change(opened.rma, [](fi_ops_rma &ours) { ours.read = read; });
    change(opened.msg, [](fi_ops_msg &ours) {
        ours.send = send;
        ours.recv = receive;
    });
    return 0;
}

int open_queue(fid_domain *domain, fi_cq_attr *attributes, fid_cq **queue, void *context) {
    const int code = original(domain->ops)->cq_open(domain, attributes, queue, context);
    if (code == 0) {
        change((*queue)->ops, [](fi_ops_cq &ours) {
            ours.read = read_queue;
            ours.sread = wait_for_queue;
            ours.readerr = read_error;
        });
    }
    return code;
}

}  // namespace

void take_over(fid_domain &domain) {
    change(domain.mr, [](fi_ops_mr &ours) {
        ours.reg = register_host;
        ours.regattr = register_by_attributes;
    });
    change(domain.ops, [](fi_ops_domain &ours) {
        ours.endpoint = open_endpoint;
        ours.cq_open = open_queue;
    });
}

}  // namespace fake_fabric
