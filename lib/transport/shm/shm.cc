// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/element_type.h"
#include "base/error.h"
#include "base/fd.h"
#include "memory/host_kernels.h"
#include "topology/host.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

class ShmEndpoint final : public Endpoint {
public:
    explicit ShmEndpoint(int my_rank) : my_rank_(my_rank) {}

    StartedGet start_get(const RemoteSlice &from, void *to, uint64_t generation, GetOptions) override {
        if (from.published->load(std::memory_order_acquire) < generation) {
            return {false, nullptr};
        }
        copy_bytes(to, from.parameters, from.numel * element_size(from.parameter_type));
        return {true, nullptr};
    }

    std::shared_ptr<Request> start_add(const RemoteSlice &to, const void *from, uint64_t generation,
                                       WaitHook &hook) override {
        const uint64_t stripes = stripe_count(to);
        const size_t bytes = stripe_elements(to) * addend_size(to);
        // Ranks begin at different stripes, or they would queue behind one another through the whole slice.
        const uint64_t begin = static_cast<uint64_t>(my_rank_) % stripes;
        for (uint64_t i = 0; i < stripes; ++i) {
            const uint64_t stripe = (begin + i) % stripes;
            const StripeLock lock(to.stripes[stripe], my_rank_, hook);
            add_to_stripe(to, stripe, static_cast<const std::byte *>(from) + stripe * bytes, generation);
        }
        return nullptr;
    }

private:
    int my_rank_;
};

}  // namespace

std::string why_not_shm() {
    if (!Fd(memfd_create("odc", MFD_CLOEXEC | MFD_ALLOW_SEALING)).valid()) {
        return "memfd_create is refused (Linux 3.17 or later is needed)";
    }
    if (!Fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))).valid()) {
        return "pidfd_open is refused (Linux 5.3 or later is needed)";
    }
    return "";
}

std::unique_ptr<Endpoint> connect_shm(const EndpointParams &params) {
    return std::make_unique<ShmEndpoint>(params.my_rank);
}

}  // namespace odc
