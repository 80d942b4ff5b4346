// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this driver.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>

#include "fake_cuda.h"
#include "transport/cuda/driver.h"

namespace fake_cuda {

using namespace odc::cuda;

constexpr size_t kGranule = size_t{2} << 20;

// A failed check ends the process, be it the test or a child.
inline void require(bool holds, const char *what, const char *file, int line) {
    if (!holds) {
        std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
        _exit(1);
    }
}
#define REQUIRE(condition) require(condition, #condition, __FILE__, __LINE__)

inline void check(Result got, Result wanted, const char *call, const char *file, int line) {
    if (got != wanted) {
        require(false, (std::string(call) + " returns " + result_text(got)).c_str(), file, line);
    }
}
#define CHECK_RESULT(wanted, call) check(call, Result::wanted, #call, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK_RESULT(Success, call)

inline Stream new_stream(unsigned flags = 0) { return static_cast<Stream>(fake_cuda_stream_create(0, flags)); }

inline Context use_first_device() {
    Context context = nullptr;
    CHECK_OK(driver().cuInit(0));
    CHECK_OK(driver().cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_OK(driver().cuCtxPushCurrent(context));
    return context;
}

inline uint64_t read_word(uint64_t *word) { return std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire); }

inline AllocationProperties properties(int device = 0) {
    AllocationProperties wanted{};
    wanted.type = AllocationType::Pinned;
    wanted.handle_types = HandleType::PosixFileDescriptor;
    wanted.location = {LocationType::Gpu, device};
    return wanted;
}

inline Address map(Memory memory, size_t bytes, int device = 0) {
    Address address = 0;
    const AccessDescription access{{LocationType::Gpu, device}, Access::ReadWrite};
    CHECK_OK(driver().cuMemAddressReserve(&address, bytes, 0, 0, 0));
    CHECK_OK(driver().cuMemMap(address, bytes, 0, memory, 0));
    CHECK_OK(driver().cuMemSetAccess(address, bytes, &access, 1));
    return address;
}

inline void unmap(Address address, size_t bytes) {
    CHECK_OK(driver().cuMemUnmap(address, bytes));
    CHECK_OK(driver().cuMemAddressFree(address, bytes));
}

}  // namespace fake_cuda
