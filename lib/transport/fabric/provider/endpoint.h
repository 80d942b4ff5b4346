// SPDX-License-Identifier: Apache-2.0
// One libfabric endpoint of this rank, on one NIC: messages and RMA reads are posted here and completed by poll(). For one
// thread at a time: odc_init's, then the progress thread.
#pragma once

#include "base/fd.h"
#include "transport/fabric/provider/fabric_nic.h"
#include "transport/fabric/provider/libfabric.h"
#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace odc {

class CudaDevice;

// The context of a posted operation, which libfabric points to, and may write to, until it is complete.
struct OperationContext : fi_context2 {
    virtual ~OperationContext() = default;
    // `error`: the provider's message, empty on success; `bytes`: of a received message.
    virtual void completed(size_t bytes, const std::string &error) = 0;
};

// Registered memory that peers can read or, if the provider needs that, the local buffer of reads and messages.
struct MemoryRegion {
    Opened<fid_mr> region;
    void *descriptor = nullptr;
    uint64_t address = 0;  // of its beginning, for peers
    uint64_t key = 0;
};

constexpr size_t kMaxReadBytes = size_t{512} << 10;

class FabricEndpoint {
public:
    // `gpu`: whose memory the endpoint reaches, too (GPUDirect RDMA); NULL: host memory only. Throws, with the provider's
    // message.
    FabricEndpoint(const FabricNic &nic, const CudaDevice *gpu);

    const std::string &provider() const { return provider_; }
    const std::vector<std::byte> &name() const { return name_; }  // for peers' connect()
    // Whether local buffers must be registered, too (FI_MR_LOCAL). If so, callers' memory goes through bounce buffers.
    bool needs_local() const { return needs_local_; }
    // Whether an endpoint's name is the TCP address where it listens.
    bool listens_at_name() const { return listens_at_name_; }

    // A peer's name as it must be written here: the scope id of a link-local address differs between hosts.
    std::vector<std::byte> with_local_scope(std::vector<std::byte> name) const;
    // `name`: from with_local_scope.
    fi_addr_t connect(const std::vector<std::byte> &name);
    MemoryRegion register_memory(const void *memory, size_t bytes, MemoryKind kind, Access access);

    // Post an operation. If they return false, take_failure() tells why the peer cannot be reached, or is "" if the provider
    // has no room (FI_EAGAIN): then try again after poll() has completed something, or a little later.
    bool read(fi_addr_t peer, void *to, size_t bytes, void *descriptor, uint64_t address, uint64_t key,
              OperationContext &context);
    bool send(fi_addr_t peer, const void *from, size_t bytes, void *descriptor, OperationContext &context);
    bool receive(void *to, size_t bytes, void *descriptor, OperationContext &context);
    std::string take_failure() { return std::exchange(failure_, {}); }
    // Completes operations that are done; false if none was.
    bool poll();

    // A descriptor that becomes readable when poll() has work to do; -1 if the provider has none.
    int wait_fd() const { return wait_fd_; }
    // False: call poll() before sleeping on wait_fd() (fi_trywait).
    bool may_sleep();
    // Resets a wait_fd() that stays readable although poll() has nothing to do: some providers (net of 1.17) only reset it in
    // a blocking read, here of a millisecond. True if an operation completed.
    bool rearm_wait_fd();

    // Abandons posted operations: the caller may reuse their memory. Afterwards only MemoryRegions may still be destroyed.
    enum class InFlight { None, Reads };
    void close(InFlight in_flight);

private:
    Info open_info(const FabricNic &nic) const;
    void check(const char *call, int code) const;
    void open_queue();
    bool posted(ssize_t code, const char *call);
    void close_listener_on_exec();
    bool complete(const fi_cq_msg_entry *entries, ssize_t count);
    void complete_error();

    void forbid_cuda_calls();
    int try_register(const void *memory, size_t bytes, MemoryKind kind, uint64_t access, uint64_t key, fid_mr **region);

    std::string provider_;
    const CudaDevice *gpu_;
    Info info_;
    Opened<fid_fabric> fabric_;
    Opened<fid_domain> domain_;
    Opened<fid_av> addresses_;
    Opened<fid_cq> queue_;
    Opened<fid_ep> endpoint_;
    ClosedInChildren listener_;
    std::vector<std::byte> name_;
    bool needs_local_ = false;
    bool uses_virtual_addresses_ = false;
    bool provider_chooses_keys_ = false;
    bool binds_memory_ = false;
    bool listens_at_name_ = false;
    std::string failure_;
    int wait_fd_ = -1;
};

}  // namespace odc
