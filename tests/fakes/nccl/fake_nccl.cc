// SPDX-License-Identifier: Apache-2.0
// A libnccl.so.2 for tests, on the GPUs of fake_cuda: the functions of NCCL that odc bench calls, across processes. A call
// returns when it is done. Sums of bf16 and f16 are exact for small whole numbers. FAKE_NCCL_WRONG=1: each result has a wrong
// byte.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda.h"
#include "transport/cuda/kernels/add.h"

#define FAKE_NCCL_API extern "C" __attribute__((visibility("default")))

namespace {

enum Result { kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kRemoteError = 6 };
enum Type { kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9 };
constexpr int kSum = 0;

constexpr size_t kMostBytes = size_t{16} << 20;  // of a rank's input
constexpr int kMostRanks = 16;
constexpr auto kTimeout = std::chrono::seconds(60);

// Mapped by all ranks.
struct Shared {
    std::atomic<int> arrived;
    std::atomic<int> turn;
    alignas(64) char handed_in[kMostRanks][kMostBytes];
};

struct Id {
    char path[128];
};

struct Communicator {
    Shared *shared;
    int ranks;
    int rank;
};

bool meet(const Communicator &all) {
    const int turn = all.shared->turn;
    if (++all.shared->arrived == all.ranks) {
        all.shared->arrived = 0;
        ++all.shared->turn;
        return true;
    }
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (all.shared->turn == turn) {
        if (std::chrono::steady_clock::now() > deadline) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
}

size_t bytes_of(int type) { return type == kFloat64 ? 8 : type == kFloat32 ? 4 : 2; }

bool is_possible(const Communicator *all, size_t bytes, int type) {
    return all != nullptr && bytes <= kMostBytes && type >= kFloat16 && type <= kBfloat16;
}

// When the stream gets there, copies the input from `from`, and waits until all ranks have done so.
Result hand_in(const Communicator &all, const void *from, size_t bytes, void *stream) {
    if (fake_cuda_stream_wait(stream) != 0 ||
        fake_cuda_read(all.shared->handed_in[all.rank], reinterpret_cast<unsigned long long>(from), bytes) != 0) {
        return kSystemError;
    }
    return meet(all) ? kSuccess : kRemoteError;
}

Result hand_out(const Communicator &all, void *to, std::vector<char> result) {
    const char *wrong = std::getenv("FAKE_NCCL_WRONG");
    if (wrong != nullptr && *wrong == '1' && !result.empty()) {
        result[0] = static_cast<char>(result[0] ^ 1);
    }
    if (fake_cuda_write(reinterpret_cast<unsigned long long>(to), result.data(), result.size()) != 0) {
        return kSystemError;
    }
    return meet(all) ? kSuccess : kRemoteError;
}

odc::Bfloat16 narrow(float value, odc::Bfloat16 /*type*/) {
    return {static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)};
}
odc::Float16 narrow(float value, odc::Float16 /*type*/) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return {static_cast<uint16_t>(value == 0 ? 0 : (bits >> 13) - (uint32_t{112} << 10))};
}
float narrow(float value, float /*type*/) { return value; }
double narrow(double value, double /*type*/) { return value; }

// The sums of this rank's `count` elements.
template <class Element>
std::vector<char> sums(const Communicator &all, size_t count) {
    std::vector<char> result(count * sizeof(Element));
    for (size_t i = 0; i < count; ++i) {
        decltype(odc::widen(Element{})) sum = 0;
        const size_t place = (static_cast<size_t>(all.rank) * count + i) * sizeof(Element);
        for (int rank = 0; rank < all.ranks; ++rank) {
            Element element{};
            std::memcpy(&element, all.shared->handed_in[rank] + place, sizeof(element));
            sum += odc::widen(element);
        }
        const Element element = narrow(sum, Element{});
        std::memcpy(result.data() + i * sizeof(Element), &element, sizeof(element));
    }
    return result;
}

}  // namespace

FAKE_NCCL_API int ncclGetVersion(int *version) {
    *version = 22803;
    return kSuccess;
}

FAKE_NCCL_API const char *ncclGetErrorString(int result) {
    switch (result) {
        case kSuccess: return "no error";
        case kSystemError: return "unhandled system error";
        case kInvalidArgument: return "invalid argument";
        default: return "remote process exited or there was a network error";
    }
}

// The memory has no name: other ranks open it through this process.
FAKE_NCCL_API int ncclGetUniqueId(Id *id) {
    const int fd = memfd_create("fake NCCL", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) {
        return kSystemError;
    }
    std::snprintf(id->path, sizeof(id->path), "/proc/%d/fd/%d", static_cast<int>(getpid()), fd);
    return kSuccess;
}

FAKE_NCCL_API int ncclCommInitRank(void **communicator, int ranks, Id id, int rank) {
    if (ranks > kMostRanks) {
        return kInvalidArgument;
    }
    const int fd = open(id.path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return kSystemError;
    }
    void *const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) {
        return kSystemError;
    }
    auto *const made = new Communicator{static_cast<Shared *>(memory), ranks, rank};
    *communicator = made;
    return meet(*made) ? kSuccess : kRemoteError;
}

FAKE_NCCL_API int ncclCommDestroy(void *communicator) {
    auto *const all = static_cast<Communicator *>(communicator);
    munmap(all->shared, sizeof(Shared));
    delete all;
    return kSuccess;
}

FAKE_NCCL_API int ncclAllGather(const void *from, void *to, size_t count, int type, void *communicator, void *stream) {
    const auto *const all = static_cast<const Communicator *>(communicator);
    const size_t bytes = count * bytes_of(type);
    if (!is_possible(all, bytes, type)) {
        return kInvalidArgument;
    }
    if (const Result result = hand_in(*all, from, bytes, stream); result != kSuccess) {
        return result;
    }
    std::vector<char> gathered;
    for (int rank = 0; rank < all->ranks; ++rank) {
        const char *const one = all->shared->handed_in[rank];
        gathered.insert(gathered.end(), one, one + bytes);
    }
    return hand_out(*all, to, std::move(gathered));
}

FAKE_NCCL_API int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation,
                                    void *communicator, void *stream) {
    const auto *const all = static_cast<const Communicator *>(communicator);
    const size_t bytes = all == nullptr ? 0 : static_cast<size_t>(all->ranks) * count * bytes_of(type);
    if (!is_possible(all, bytes, type) || operation != kSum) {
        return kInvalidArgument;
    }
    if (const Result result = hand_in(*all, from, bytes, stream); result != kSuccess) {
        return result;
    }
    switch (type) {
        case kFloat16: return hand_out(*all, to, sums<odc::Float16>(*all, count));
        case kFloat64: return hand_out(*all, to, sums<double>(*all, count));
        case kBfloat16: return hand_out(*all, to, sums<odc::Bfloat16>(*all, count));
        default: return hand_out(*all, to, sums<float>(*all, count));
    }
}
