// SPDX-License-Identifier: Apache-2.0
// One libfabric endpoint of this rank, on one NIC: small messages and remote reads, started here and completed by
// `poll`. For one thread only, the progress thread.
#pragma once

#include "base/fd.h"
#include "transport/fabric/libfabric.h"
#include "transport/fabric/types.h"
#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace odc {

// What has been started and not yet completed; libfabric keeps a pointer to it and may write into its context.
struct Started : fi_context2 {
    virtual ~Started() = default;
    // `error`: empty when it was done, else the provider's words; `bytes` of a received message.
    virtual void completed(size_t bytes, const std::string &error) = 0;
};

// Memory that peers can read, or, where the provider wants that, this rank's own target of reads and messages.
struct Exposed {
    Opened<fid_mr> region;
    void *descriptor = nullptr;
    uint64_t address = 0;  // as peers name its beginning
    uint64_t key = 0;
};

constexpr size_t kMostBytes = size_t{512} << 10;  // of one read

class FabricEndpoint {
public:
    // `gpu`: whose memory it shall reach, too (GPUDirect RDMA); NULL: host memory only. Throws, with the provider's words.
    FabricEndpoint(const FabricPort &port, const CudaDevice *gpu);

    const std::string &provider() const { return provider_; }
    const std::vector<std::byte> &name() const { return name_; }  // for peers' `connect`
    // Whether local buffers must be exposed, too. Then the memory of callers, which is registered nowhere, is staged.
    bool needs_local() const { return needs_local_; }
    // Whether endpoints are named by the TCP ports where they listen.
    bool listens_at_name() const { return listens_at_name_; }

    // A peer's name as it must be written here: a link-local address is of an interface, which each host numbers itself.
    std::vector<std::byte> as_seen_here(std::vector<std::byte> name) const;
    // `name`: as seen here.
    fi_addr_t connect(const std::vector<std::byte> &name);
    Exposed expose(void *memory, size_t bytes, MemoryKind kind, Access access);

    // False: `take_failure` says why the peer cannot be reached, or "" when the provider only has no room now; then try
    // again after `poll` has said something, or a little later.
    bool read(fi_addr_t peer, void *to, size_t bytes, void *descriptor, uint64_t address, uint64_t key, Started &done);
    bool send(fi_addr_t peer, const void *from, size_t bytes, void *descriptor, Started &done);
    bool receive(void *to, size_t bytes, void *descriptor, Started &done);
    std::string take_failure() { return std::exchange(failure_, {}); }
    // Completes what is done; false if nothing was.
    bool poll();

    // A descriptor that becomes readable when `poll` has something to do, or -1: the provider has none.
    int bell() const { return bell_; }
    // False: `poll` has to be called before the bell may be slept on.
    bool may_sleep();
    // For a bell that goes on ringing though `poll` has nothing to do: some providers (net of 1.17) only take it back when
    // they are asked to wait, here for a millisecond. True: something was completed.
    bool hush();

    // Ends all that is started, uncompleted: its memory is the caller's again. Only `Exposed` may still be given up.
    enum class InFlight { Nothing, RmaReads };
    void shut(InFlight in_flight);

private:
    Info open_info(const FabricPort &port) const;
    void check(const char *call, int code) const;
    void open_queue();
    bool started(ssize_t code, const char *call);
    void keep_listener_to_this_program();
    bool complete(const fi_cq_msg_entry *entries, ssize_t count);
    void complete_error();

    void forbid_cuda_calls();
    int register_memory(void *memory, size_t bytes, MemoryKind kind, uint64_t access, uint64_t name, fid_mr **region);

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
    bool names_virtual_ = false;
    bool chooses_keys_ = false;
    bool binds_memory_ = false;
    bool listens_at_name_ = false;
    std::string failure_;
    int bell_ = -1;
};

}  // namespace odc
