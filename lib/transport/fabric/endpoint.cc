// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/endpoint.h"

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
#include "transport/cuda/device.h"

namespace odc {

namespace {

constexpr size_t kCompletions = 32;  // taken at once
constexpr size_t kQueueEntries = 4096;
constexpr int kNames = 100;  // tried for one region

// Of a provider that pins memory, anything may run out of it.
std::string locked_memory_words() {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return "";
    }
    return say("; this process may lock ", limit.rlim_cur >> 10,
               " KiB of memory, which may be too little; raise it: ulimit -l");
}

Started &started_of(void *context) { return *static_cast<Started *>(static_cast<fi_context2 *>(context)); }

// Whether the endpoint would be at the port's address.
bool is_at(const fi_info &info, const FabricPort &port) {
    if (port.family == 0) {
        return true;
    }
    const auto *address = static_cast<const sockaddr *>(info.src_addr);
    if (address == nullptr) {
        return false;
    }
    if (port.family == 4) {
        return address->sa_family == AF_INET &&
               std::memcmp(&static_cast<const sockaddr_in *>(info.src_addr)->sin_addr, port.address.data(), 4) == 0;
    }
    return address->sa_family == AF_INET6 &&
           std::memcmp(&static_cast<const sockaddr_in6 *>(info.src_addr)->sin6_addr, port.address.data(), 16) == 0;
}

}  // namespace

Info FabricEndpoint::open_info(const FabricPort &port) const {
    const Info hints = hints_for(provider_, port.domain);
    if (gpu_ != nullptr) {
        if (const std::string why_not = why_too_old(libfabric().version(), FI_VERSION(1, 18)); !why_not.empty()) {
            fail(ODC_ERROR_UNSUPPORTED, why_not);
        }
        hints->caps |= FI_HMEM;
        hints->domain_attr->mr_mode |= FI_MR_HMEM;
    }
    fi_info *found = nullptr;
    const int code = ask_libfabric(hints.get(), &found);
    const Info list(found);
    if (code != 0) {
        fail(ODC_ERROR_UNSUPPORTED, "provider ", provider_, " on ", port.domain, ": ",
             fabric_words(gpu_ != nullptr ? "fi_getinfo for GPU memory (FI_HMEM)" : "fi_getinfo", code));
    }
    for (const fi_info *one = list.get(); one != nullptr; one = one->next) {
        if (is_common(*one) && is_at(*one, port)) {
            return Info(libfabric().dupinfo(one));
        }
    }
    fail(ODC_ERROR_UNSUPPORTED, "provider ", provider_, " has no endpoint at this address of ", port.domain);
}

void FabricEndpoint::check(const char *call, int code) const {
    if (code != 0) {
        const bool no_memory = code == -FI_ENOMEM;
        fail(no_memory ? ODC_ERROR_NO_MEMORY : ODC_ERROR_SYSTEM, "provider ", provider_, " on ",
             info_->domain_attr->name, ": ", fabric_words(call, code), no_memory ? locked_memory_words() : "");
    }
}

// Reads of GPU memory, the only requests of it here, are the adapter's work alone. Where libfabric calls CUDA for them, it
// may wait for the GPU, and peers for this thread.
void FabricEndpoint::forbid_cuda_calls() {
    const bool permitted = false;
    const int code = fi_setopt(&endpoint_->fid, FI_OPT_ENDPOINT, kOptCudaApiPermitted, &permitted, sizeof(permitted));
    // verbs makes none, but ofi_rxm above it copies messages where it must, and so promises nothing.
    if (code != 0 && !(code == -FI_EOPNOTSUPP && provider_ == "verbs;ofi_rxm")) {
        fail(ODC_ERROR_UNSUPPORTED, provider_, " on ", info_->domain_attr->name,
             " reaches GPU memory by calls of CUDA only (", fabric_words("fi_setopt", code), ")");
    }
}

FabricEndpoint::FabricEndpoint(const FabricPort &port, const CudaDevice *gpu)
    : provider_(port.provider), gpu_(gpu), info_(open_info(port)) {
    const fi_domain_attr &attributes = *info_->domain_attr;
    const auto asks = [&](int bit) { return (attributes.mr_mode & bit) != 0; };
    if (asks(FI_MR_RAW) || attributes.mr_key_size > sizeof(uint64_t)) {
        fail(ODC_ERROR_UNSUPPORTED, "provider ", provider_, " names memory by keys longer than 64 bits");
    }
    needs_local_ = asks(FI_MR_LOCAL);
    names_virtual_ = asks(FI_MR_VIRT_ADDR);
    chooses_keys_ = asks(FI_MR_PROV_KEY);
    binds_memory_ = asks(FI_MR_ENDPOINT);
    if (info_->ep_attr->max_msg_size < kMostBytes) {
        fail(ODC_ERROR_UNSUPPORTED, "provider ", provider_, " moves ", info_->ep_attr->max_msg_size,
             " bytes at once, at least ", kMostBytes, " are needed");
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
        forbid_cuda_calls();  // bound, as ofi_rxm crashes when it closes one that is not
    }
    check("fi_enable", fi_enable(endpoint));

    size_t bytes = 0;
    fi_getname(&endpoint->fid, nullptr, &bytes);
    name_.resize(bytes);
    check("fi_getname", fi_getname(&endpoint->fid, name_.data(), &bytes));
    if (listens_at_name_) {
        keep_listener_to_this_program();
    }
}

// libfabric lets children, and the programs that a rank starts or is replaced by, inherit the socket where it listens: peers
// would take such a process for the rank.
void FabricEndpoint::keep_listener_to_this_program() {
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
        if (fi_control(&queue->fid, FI_GETWAIT, &bell_) != 0) {
            bell_ = -1;
        }
        return;
    }
    attributes.wait_obj = FI_WAIT_NONE;  // efa and others
    check("fi_cq_open", fi_cq_open(domain_.get(), &attributes, &queue, nullptr));
    queue_.reset(queue);
}

std::vector<std::byte> FabricEndpoint::as_seen_here(std::vector<std::byte> name) const {
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
        fail(ODC_ERROR_SYSTEM, provider_, ": a peer's endpoint is named by ", name.size(), " bytes, this one's by ",
             name_.size());
    }
    fi_addr_t peer = FI_ADDR_UNSPEC;
    const int inserted = fi_av_insert(addresses_.get(), name.data(), 1, &peer, 0, nullptr);
    if (inserted != 1) {
        fail(ODC_ERROR_SYSTEM, fabric_words("fi_av_insert", inserted < 0 ? inserted : -FI_EINVAL));
    }
    return peer;
}

int FabricEndpoint::register_memory(void *memory, size_t bytes, MemoryKind kind, uint64_t access, uint64_t name,
                                    fid_mr **region) {
    if (kind == MemoryKind::Host) {
        return fi_mr_reg(domain_.get(), memory, bytes, access, 0, name, 0, region, nullptr);
    }
    const iovec all{memory, bytes};
    fi_mr_attr attributes{};
    attributes.mr_iov = &all;
    attributes.iov_count = 1;
    attributes.access = access;
    attributes.requested_key = name;
    attributes.iface = FI_HMEM_CUDA;
    attributes.device.cuda = gpu_->ordinal();
    const CudaDevice::Scope scope(*gpu_);  // providers ask the driver for what the adapter is to be told
    return fi_mr_regattr(domain_.get(), &attributes, 0, region);
}

Exposed FabricEndpoint::expose(void *memory, size_t bytes, MemoryKind kind, Access access) {
    Exposed exposed;
    const uint64_t flags = access == Access::RemoteRank ? FI_REMOTE_READ : FI_READ | FI_SEND | FI_RECV;
    // Where this rank names its memory, the name is a secret: without it nobody can read. Names may be short, so one
    // may be taken.
    fid_mr *region = nullptr;
    int code = -FI_ENOKEY;
    for (int attempt = 0; attempt < kNames && code == -FI_ENOKEY; ++attempt) {
        uint64_t name = 0;
        if (!chooses_keys_) {
            randombytes_buf(&name, std::min(sizeof(name), info_->domain_attr->mr_key_size));
        }
        code = register_memory(memory, bytes, kind, flags, name, &region);
    }
    check(say("fi_mr_reg of ", bytes, kind == MemoryKind::Gpu ? " bytes of GPU memory" : " bytes").c_str(), code);
    exposed.region.reset(region);
    if (binds_memory_) {
        check("fi_mr_bind", fi_mr_bind(region, &endpoint_->fid, 0));
        check("fi_mr_enable", fi_mr_enable(region));
    }
    exposed.descriptor = fi_mr_desc(region);
    exposed.address = names_virtual_ ? reinterpret_cast<uint64_t>(memory) : 0;
    exposed.key = fi_mr_key(region);
    return exposed;
}

bool FabricEndpoint::started(ssize_t code, const char *call) {
    failure_.clear();
    if (code != 0 && code != -FI_EAGAIN) {
        failure_ = say(provider_, ": ", fabric_words(call, code));
    }
    return code == 0;
}

bool FabricEndpoint::read(fi_addr_t peer, void *to, size_t bytes, void *descriptor, uint64_t address, uint64_t key,
                          Started &done) {
    return started(
        fi_read(endpoint_.get(), to, bytes, descriptor, peer, address, key, static_cast<fi_context2 *>(&done)),
        "fi_read");
}

bool FabricEndpoint::send(fi_addr_t peer, const void *from, size_t bytes, void *descriptor, Started &done) {
    return started(fi_send(endpoint_.get(), from, bytes, descriptor, peer, static_cast<fi_context2 *>(&done)),
                   "fi_send");
}

bool FabricEndpoint::receive(void *to, size_t bytes, void *descriptor, Started &done) {
    return started(fi_recv(endpoint_.get(), to, bytes, descriptor, FI_ADDR_UNSPEC, static_cast<fi_context2 *>(&done)),
                   "fi_recv");
}

bool FabricEndpoint::poll() {
    fi_cq_msg_entry entries[kCompletions];
    return complete(entries, fi_cq_read(queue_.get(), entries, kCompletions));
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
        fail(ODC_ERROR_SYSTEM, provider_, ": ", fabric_words("fi_cq_read", count));
    }
    // They are off the queue: all must hear.
    std::exception_ptr first;
    for (ssize_t i = 0; i < count; ++i) {
        try {
            started_of(entries[i].op_context).completed(entries[i].len, "");
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
        started_of(entry.op_context).completed(0, say(provider_, ": ", libfabric().strerror(entry.err)));
    }
}

bool FabricEndpoint::may_sleep() {
    fid *queue = &queue_->fid;
    return fi_trywait(fabric_.get(), &queue, 1) == 0;
}

bool FabricEndpoint::hush() {
    fi_cq_msg_entry entries[kCompletions];
    const ssize_t count = fi_cq_sread(queue_.get(), entries, kCompletions, nullptr, 1);
    // Not every error is one: a process that is stopped and goes on interrupts the wait. What lasts, `poll` finds.
    return (count > 0 || count == -FI_EAVAIL) && complete(entries, count);
}

void FabricEndpoint::shut(InFlight in_flight) {
    // Before 2.0 this one crashes when it is closed while an answer is half here. It moves nothing any more once it is not
    // polled, so it is left as it is, and kept in mind for who looks for leaks.
    const bool crashes = provider_ == "tcp;ofi_rxm" && FI_VERSION_LT(libfabric().version(), FI_VERSION(2, 0));
    listener_ = {};
    if (in_flight == InFlight::Nothing || !crashes) {
        endpoint_.reset();
        return;
    }
    static std::mutex mutex;
    static auto &left_open = *new std::vector<fid *>;
    const std::lock_guard lock(mutex);
    left_open.insert(left_open.end(), {&endpoint_.release()->fid, &queue_.release()->fid, &addresses_.release()->fid,
                                       &domain_.release()->fid, &fabric_.release()->fid});
}

}  // namespace odc
