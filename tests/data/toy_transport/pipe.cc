// SPDX-License-Identifier: Apache-2.0
#include "transport/pipe/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/element_type.h"
#include "base/error.h"
#include "base/fd.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

constexpr size_t kChunk = 64 << 10;  // what a pipe holds, if the user has not too many

// One call's own, so calls of several threads may overlap.
class Pipe {
public:
    Pipe() {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
            fail_errno("a pipe to read another rank's memory through");
        }
        out_ = Fd(ends[0]);
        in_ = Fd(ends[1]);
    }

    // What is written is read at once, so neither end ever waits.
    void copy(void *to, const void *from, size_t bytes) {
        auto *target = static_cast<std::byte *>(to);
        const auto *source = static_cast<const std::byte *>(from);
        while (bytes > 0) {
            size_t inside = moved(write(in_.get(), source, std::min(bytes, kChunk)));
            source += inside;
            bytes -= inside;
            while (inside > 0) {
                const size_t arrived = moved(read(out_.get(), target, inside));
                target += arrived;
                inside -= arrived;
            }
        }
    }

private:
    // Nothing, where a signal came first.
    static size_t moved(ssize_t bytes) {
        if (bytes < 0 && errno != EINTR) {
            fail_errno("a pipe");
        }
        return bytes < 0 ? 0 : static_cast<size_t>(bytes);
    }

    Fd out_;
    Fd in_;
};

class PipeEndpoint final : public Endpoint {
public:
    explicit PipeEndpoint(int my_rank) : my_rank_(my_rank) {}

    StartedGet start_get(const RemoteSlice &from, void *to, uint64_t generation, GetOptions) override {
        if (from.published->load(std::memory_order_acquire) < generation) {
            return {false, nullptr};
        }
        Pipe().copy(to, from.parameters, from.numel * element_size(from.parameter_type));
        return {true, nullptr};
    }

    std::shared_ptr<Request> start_add(const RemoteSlice &to, const void *from, uint64_t generation,
                                       WaitHook &hook) override {
        const size_t size = element_size(to.gradient_type);
        const uint64_t in_stripe = stripe_elements(to);
        std::vector<std::byte> piece(in_stripe * size);
        Pipe pipe;
        for (uint64_t first = 0; first < to.numel; first += in_stripe) {
            const uint64_t count = std::min(in_stripe, to.numel - first);
            pipe.copy(piece.data(), static_cast<const std::byte *>(from) + first * size, count * size);
            const uint64_t index = first / in_stripe;
            const StripeLock lock(to.stripes[index], my_rank_, hook);
            add_to_stripe(to, index, piece.data(), generation);
        }
        return nullptr;
    }

private:
    int my_rank_;
};

}  // namespace

std::string why_not_pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return formatted("pipe2 is refused ({})", std::strerror(errno));
    }
    const Fd out(ends[0]);
    const Fd in(ends[1]);
    return "";
}

std::unique_ptr<Endpoint> connect_pipe(const EndpointParams &params) {
    return std::make_unique<PipeEndpoint>(params.my_rank);
}

}  // namespace odc
