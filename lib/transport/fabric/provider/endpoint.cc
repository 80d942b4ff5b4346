// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/provider/endpoint.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sodium.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "base/error.h"
#include "base/fork_gate.h"
#include "transport/cuda/device.h"

namespace odc {

namespace {

constexpr size_t kCompletionBatch = 32;  // per fi_cq_read
constexpr size_t kQueueEntries = 4096;
constexpr int kKeyAttempts = 100;

// Any call of a provider that pins memory may fail for the limit on locked memory.
std::string locked_memory_advice() {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return "";
    }
    return formatted("; this process may lock {} KiB of memory, which may be too little; raise it: ulimit -l",
                     limit.rlim_cur >> 10);
}

OperationContext &context_of(void *context) {
    return *static_cast<OperationContext *>(static_cast<fi_context2 *>(context));
}

// Whether this info is for the NIC's address.
bool is_at(const fi_info &info, const FabricNic &nic) {
    if (nic.family == 0) {
        return true;
    }
    const auto *address = static_cast<const sockaddr *>(info.src_addr);
    if (address == nullptr) {
        return false;
    }
    if (nic.family == 4) {
        return address->sa_family == AF_INET &&
               std::memcmp(&static_cast<const sockaddr_in *>(info.src_addr)->sin_addr, nic.address.data(), 4) == 0;
    }
    return address->sa_family == AF_INET6 &&
           std::memcmp(&static_cast<const sockaddr_in6 *>(info.src_addr)->sin6_addr, nic.address.data(), 16) == 0;
}

}  // namespace

Info FabricEndpoint::open_info(const FabricNic &nic) const {
    const Info hints = hints_for(provider_, nic.domain);
    if (gpu_ != nullptr) {
        if (const std::string why_not = why_too_old(libfabric().version(), FI_VERSION(1, 18)); !why_not.empty()) {
            throw Error(ODC_ERROR_UNSUPPORTED, why_not);
        }
        hints->caps |= FI_HMEM;
        hints->domain_attr->mr_mode |= FI_MR_HMEM;
    }
    fi_info *found = nullptr;
    const int code = call_getinfo(hints.get(), &found);
    const Info list(found);
    if (code != 0) {
        fail(ODC_ERROR_UNSUPPORTED, "provider {} on {}: {}", provider_, nic.domain,
             fabric_error_text(gpu_ != nullptr ? "fi_getinfo for GPU memory (FI_HMEM)" : "fi_getinfo", code));
    }
    for (const fi_info *one = list.get(); one != nullptr; one = one->next) {
        if (is_common(*one) && is_at(*one, nic)) {
            return Info(libfabric().dupinfo(one));
        }
    }
    fail(ODC_ERROR_UNSUPPORTED, "provider {} has no endpoint at this address of {}", provider_, nic.domain);
}

void FabricEndpoint::check(const char *call, int code) const {
    if (code != 0) {
        const bool no_memory = code == -FI_ENOMEM;
        fail(no_memory ? ODC_ERROR_NO_MEMORY : ODC_ERROR_SYSTEM, "provider {} on {}: {}{}", provider_,
             info_->domain_attr->name, fabric_error_text(call, code), no_memory ? locked_memory_advice() : "");
    }
}

// RMA reads into and from GPU memory, the only uses of it here, need the adapter only. If libfabric called CUDA for them, it
// could block until the GPU is idle, and peers would wait for this thread.
void FabricEndpoint::forbid_cuda_calls() {
    const bool permitted = false;
    const int code = fi_setopt(&endpoint_->fid, FI_OPT_ENDPOINT, kOptCudaApiPermitted, &permitted, sizeof(permitted));
    // verbs calls none, but ofi_rxm on top of it may copy messages by CUDA and so rejects the option.
    if (code != 0 && !(code == -FI_EOPNOTSUPP && provider_ == "verbs;ofi_rxm")) {
        fail(ODC_ERROR_UNSUPPORTED, "{} on {} reaches GPU memory only through CUDA calls ({})", provider_,
             info_->domain_attr->name, fabric_error_text("fi_setopt", code));
    }
}

FabricEndpoint::FabricEndpoint(const FabricNic &nic, const CudaDevice *gpu)
    : provider_(nic.provider), gpu_(gpu), info_(open_info(nic)) {
    const fi_domain_attr &attributes = *info_->domain_attr;
    const auto asks = [&](int bit) { return (attributes.mr_mode & bit) != 0; };
    if (asks(FI_MR_RAW) || attributes.mr_key_size > sizeof(uint64_t)) {
        fail(ODC_ERROR_UNSUPPORTED, "provider {} uses memory keys longer than 64 bits", provider_);
    }
    needs_local_ = asks(FI_MR_LOCAL);
    uses_virtual_addresses_ = asks(FI_MR_VIRT_ADDR);
    provider_chooses_keys_ = asks(FI_MR_PROV_KEY);
    binds_memory_ = asks(FI_MR_ENDPOINT);
    if (info_->ep_attr->max_msg_size < kMaxReadBytes) {
        fail(ODC_ERROR_UNSUPPORTED, "provider {} transfers at most {} bytes at once; {} are needed", provider_,
             info_->ep_attr->max_msg_size, kMaxReadBytes);
    }
    listens_at_name_ = (provider_ == "net" || provider_.starts_with("tcp")) &&
                       (info_->addr_format == FI_SOCKADDR_IN || info_->addr_format == FI_SOCKADDR_IN6);

    fid_fabric *fabric = nullptr;
    check("fi_fabric", libfabric().fabric(info_->fabric_attr, &fabric, nullptr));
    fabric_.reset(fabric);
    fid_domain *opened = nullptr;
    check("fi_domain", fi_domain(fabric, info_.get(), &opened, nullptr));
    domain_.reset(opened);
    fi_av_attr book{};
    book.type = attributes.av_type;
    fid_av *addresses = nullptr;
    check("fi_av_open", fi_av_open(opened, &book, &addresses, nullptr));
    addresses_.reset(addresses);
    open_queue();
    fid_ep *endpoint = nullptr;
    check("fi_endpoint", fi_endpoint(opened, info_.get(), &endpoint, nullptr));
    endpoint_.reset(endpoint);
    check("fi_ep_bind", fi_ep_bind(endpoint, &queue_->fid, FI_TRANSMIT | FI_RECV));
    check("fi_ep_bind", fi_ep_bind(endpoint, &addresses->fid, 0));
    if (gpu_ != nullptr) {
        forbid_cuda_calls();  // after fi_ep_bind: ofi_rxm crashes when it closes an unbound endpoint
    }
    check("fi_enable", fi_enable(endpoint));

    size_t bytes = 0;
    fi_getname(&endpoint->fid, nullptr, &bytes);
    name_.resize(bytes);
    check("fi_getname", fi_getname(&endpoint->fid, name_.data(), &bytes));
    if (listens_at_name_) {
        close_listener_on_exec();
    }
}

// libfabric's listening socket is inherited by children and across exec, and peers would take such a process for the rank.
void FabricEndpoint::close_listener_on_exec() {
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
        const int fd = std::atoi(entry.path().filename().c_str());
        int listens = 0;
        socklen_t bytes = sizeof(listens);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) {
            continue;
        }
        sockaddr_storage address{};
        bytes = sizeof(address);
        if (getsockname(fd, reinterpret_cast<sockaddr *>(&address), &bytes) == 0 && bytes == name_.size() &&
            std::memcmp(&address, name_.data(), bytes) == 0) {
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            listener_ = ClosedInChildren(fd);
        }
    }
}

void FabricEndpoint::open_queue() {
    fi_cq_attr attributes{};
    attributes.size = kQueueEntries;
    attributes.format = FI_CQ_FORMAT_MSG;
    attributes.wait_obj = FI_WAIT_FD;
    fid_cq *queue = nullptr;
    if (fi_cq_open(domain_.get(), &attributes, &queue, nullptr) == 0) {
        queue_.reset(queue);
        if (fi_control(&queue->fid, FI_GETWAIT, &wait_fd_) != 0) {
            wait_fd_ = -1;
        }
        return;
    }
    attributes.wait_obj = FI_WAIT_NONE;  // efa and others have no wait object
    check("fi_cq_open", fi_cq_open(domain_.get(), &attributes, &queue, nullptr));
    queue_.reset(queue);
}

std::vector<std::byte> FabricEndpoint::with_local_scope(std::vector<std::byte> name) const {
    sockaddr_in6 six{};
    if (info_->addr_format == FI_SOCKADDR_IN6 && name.size() == sizeof(six)) {
        std::memcpy(&six, name.data(), sizeof(six));
        if (IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr)) {
            six.sin6_scope_id = if_nametoindex(info_->domain_attr->name);
            std::memcpy(name.data(), &six, sizeof(six));
        }
    }
    return name;
}

fi_addr_t FabricEndpoint::connect(const std::vector<std::byte> &name) {
    if (name.size() != name_.size()) {
        fail(ODC_ERROR_SYSTEM, "{}: a peer's endpoint has an address of {} bytes, this one of {}", provider_,
             name.size(), name_.size());
    }
    fi_addr_t peer = FI_ADDR_UNSPEC;
    const int inserted = fi_av_insert(addresses_.get(), name.data(), 1, &peer, 0, nullptr);
    if (inserted != 1) {
        throw Error(ODC_ERROR_SYSTEM, fabric_error_text("fi_av_insert", inserted < 0 ? inserted : -FI_EINVAL));
    }
    return peer;
}

int FabricEndpoint::try_register(const void *memory, size_t bytes, MemoryKind kind, uint64_t access, uint64_t key,
                                 fid_mr **region) {
    if (kind == MemoryKind::Host) {
        return fi_mr_reg(domain_.get(), memory, bytes, access, 0, key, 0, region, nullptr);
    }
    const iovec all{const_cast<void *>(memory), bytes};  // libfabric's type; it only reads
    fi_mr_attr attributes{};
    attributes.mr_iov = &all;
    attributes.iov_count = 1;
    attributes.access = access;
    attributes.requested_key = key;
    attributes.iface = FI_HMEM_CUDA;
    attributes.device.cuda = gpu_->ordinal();
    const CudaDevice::Scope scope(*gpu_);  // providers call the driver for the memory's properties
    return fi_mr_regattr(domain_.get(), &attributes, 0, region);
}

MemoryRegion FabricEndpoint::register_memory(const void *memory, size_t bytes, MemoryKind kind, Access access) {
    MemoryRegion registered;
    const uint64_t flags = access == Access::RemoteRead ? FI_REMOTE_READ : FI_READ | FI_SEND | FI_RECV;
    // A key that this rank chooses is random, as a secret without which nobody can read. Keys may be short, so that one may
    // be in use already.
    fid_mr *region = nullptr;
    int code = -FI_ENOKEY;
    for (int attempt = 0; attempt < kKeyAttempts && code == -FI_ENOKEY; ++attempt) {
        uint64_t key = 0;
        if (!provider_chooses_keys_) {
            randombytes_buf(&key, std::min(sizeof(key), info_->domain_attr->mr_key_size));
        }
        code = try_register(memory, bytes, kind, flags, key, &region);
    }
    check(formatted("fi_mr_reg of {}{}", bytes, kind == MemoryKind::Gpu ? " bytes of GPU memory" : " bytes").c_str(),
          code);
    registered.region.reset(region);
    if (binds_memory_) {
        check("fi_mr_bind", fi_mr_bind(region, &endpoint_->fid, 0));
        check("fi_mr_enable", fi_mr_enable(region));
    }
    registered.descriptor = fi_mr_desc(region);
    registered.address = uses_virtual_addresses_ ? reinterpret_cast<uint64_t>(memory) : 0;
    registered.key = fi_mr_key(region);
    return registered;
}

bool FabricEndpoint::posted(ssize_t code, const char *call) {
    failure_.clear();
    if (code != 0 && code != -FI_EAGAIN) {
        failure_ = formatted("{}: {}", provider_, fabric_error_text(call, code));
    }
    return code == 0;
}

bool FabricEndpoint::read(fi_addr_t peer, void *to, size_t bytes, void *descriptor, uint64_t address, uint64_t key,
                          OperationContext &context) {
    return posted(
        fi_read(endpoint_.get(), to, bytes, descriptor, peer, address, key, static_cast<fi_context2 *>(&context)),
        "fi_read");
}

bool FabricEndpoint::send(fi_addr_t peer, const void *from, size_t bytes, void *descriptor, OperationContext &context) {
    return posted(fi_send(endpoint_.get(), from, bytes, descriptor, peer, static_cast<fi_context2 *>(&context)),
                  "fi_send");
}

bool FabricEndpoint::receive(void *to, size_t bytes, void *descriptor, OperationContext &context) {
    return posted(fi_recv(endpoint_.get(), to, bytes, descriptor, FI_ADDR_UNSPEC, static_cast<fi_context2 *>(&context)),
                  "fi_recv");
}

bool FabricEndpoint::poll() {
    fi_cq_msg_entry entries[kCompletionBatch];
    return complete(entries, fi_cq_read(queue_.get(), entries, kCompletionBatch));
}

bool FabricEndpoint::complete(const fi_cq_msg_entry *entries, ssize_t count) {
    if (count == -FI_EAGAIN) {
        return false;
    }
    if (count == -FI_EAVAIL) {
        complete_error();
        return true;
    }
    if (count < 0) {
        fail(ODC_ERROR_SYSTEM, "{}: {}", provider_, fabric_error_text("fi_cq_read", count));
    }
    // All callbacks run, even if one throws: the entries are off the queue.
    std::exception_ptr first;
    for (ssize_t i = 0; i < count; ++i) {
        try {
            context_of(entries[i].op_context).completed(entries[i].len, "");
        } catch (...) {
            first = first ? first : std::current_exception();
        }
    }
    if (first) {
        std::rethrow_exception(first);
    }
    return count > 0;
}

void FabricEndpoint::complete_error() {
    fi_cq_err_entry entry{};
    if (fi_cq_readerr(queue_.get(), &entry, 0) < 1) {
        return;
    }
    if (entry.op_context != nullptr) {
        context_of(entry.op_context).completed(0, formatted("{}: {}", provider_, libfabric().strerror(entry.err)));
    }
}

bool FabricEndpoint::may_sleep() {
    fid *queue = &queue_->fid;
    return fi_trywait(fabric_.get(), &queue, 1) == 0;
}

bool FabricEndpoint::rearm_wait_fd() {
    fi_cq_msg_entry entries[kCompletionBatch];
    const ssize_t count = fi_cq_sread(queue_.get(), entries, kCompletionBatch, nullptr, 1);
    // Ignores errors, as a process that is stopped and continued interrupts the wait; poll() reports those that last.
    return (count > 0 || count == -FI_EAVAIL) && complete(entries, count);
}

void FabricEndpoint::close(InFlight in_flight) {
    // Before 2.0 this provider crashes when it is closed during a read. Without polling it transfers nothing, so it is left
    // open, and stays reachable for leak checkers.
    const bool crashes = provider_ == "tcp;ofi_rxm" && FI_VERSION_LT(libfabric().version(), FI_VERSION(2, 0));
    listener_ = {};
    if (in_flight == InFlight::None || !crashes) {
        endpoint_.reset();
        return;
    }
    static std::mutex mutex;
    const ProcessLock lock(mutex);
    static auto &left_open = *new std::vector<fid *>;
    left_open.insert(left_open.end(), {&endpoint_.release()->fid, &queue_.release()->fid, &addresses_.release()->fid,
                                       &domain_.release()->fid, &fabric_.release()->fid});
}

}  // namespace odc
