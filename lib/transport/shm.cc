// SPDX-License-Identifier: Apache-2.0
#include "transport/shm.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "element.h"
#include "fd.h"
#include "memory.h"
#include "status.h"
#include "topology.h"
#include "transport/stripes.h"

namespace odc {

namespace {

class ShmPath final : public Path {
public:
    explicit ShmPath(int my_rank) : my_rank_(my_rank) {}

    void start_get(const RemoteSlice &from, void *to) override {
        copy_bytes(to, from.parameters, from.numel * element_size(from.parameter_type));
    }

    int64_t start_add(const RemoteSlice &to, const void *from, uint64_t filled, Alarm &alarm) override {
        const size_t sum_size = element_size(accumulator_type(to.gradient_type));
        const size_t gradient_size = element_size(to.gradient_type);
        const uint64_t per_stripe = kStripeBytes / sum_size;
        const uint64_t stripes = stripe_count(to.numel * sum_size);
        // Ranks begin at different places, or they would queue up behind one another through the whole slice.
        const uint64_t begin = static_cast<uint64_t>(my_rank_) % stripes;
        int64_t waited_ns = 0;
        for (uint64_t i = 0; i < stripes; ++i) {
            const uint64_t stripe = (begin + i) % stripes;
            const uint64_t first = stripe * per_stripe;
            const uint64_t count = std::min(per_stripe, to.numel - first);
            StripeLock lock(to.stripes[stripe], my_rank_, alarm, &waited_ns);
            const Sum sum = to.stripes[stripe].filled >= filled ? Sum::Add : Sum::Store;
            add_elements(sum, to.gradient_type, to.accumulator + first * sum_size,
                         static_cast<const std::byte *>(from) + first * gradient_size, count);
            to.stripes[stripe].filled = filled;
        }
        return waited_ns;
    }

    void complete(Alarm &) override {}  // the caller's thread has done it all

private:
    int my_rank_;
};

std::string why_not() {
    if (!Fd(memfd_create("odc", MFD_CLOEXEC | MFD_ALLOW_SEALING)).valid()) {
        return "memfd_create is refused (Linux 3.17 or later is needed)";
    }
    if (!Fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))).valid()) {
        return "pidfd_open is refused (Linux 5.3 or later is needed)";
    }
    return "";
}

std::string why_not_host(const std::string &identity) {
    if (identity == host_identity()) {
        return "";
    }
    return "it runs on another host, or in another network namespace of this one";
}

}  // namespace

const Transport kShm{"shm", why_not, why_not_host,
                     [](int my_rank) -> std::unique_ptr<Path> { return std::make_unique<ShmPath>(my_rank); }};

}  // namespace odc
