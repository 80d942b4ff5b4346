// SPDX-License-Identifier: Apache-2.0
// The fake CUDA driver: its guarantees of order, memory, captures.
#include <sys/mman.h>

#include <atomic>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "checks.h"
#include "transport/cuda/kernels/add.h"

extern "C" {
#include <cmocka.h>
}

extern "C" int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found);

namespace {

using namespace fake_cuda;

constexpr unsigned kLong = 20'000;  // µs: longer than what could overtake it would take
constexpr char kText[] = ".version 8.1\n.target sm_90\n.visible .entry odc_add_f32(\n.visible .entry unknown(\n";

template <class Value>
struct Registered {
    explicit Registered(size_t numel = 1) : bytes((numel * sizeof(Value) + 4095) / 4096 * 4096) {
        at = static_cast<Value *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        CHECK_OK(driver().cuMemHostRegister(at, bytes, kHostRegisterPortable));
    }
    Registered(const Registered &) = delete;
    Registered &operator=(const Registered &) = delete;
    ~Registered() {
        driver().cuMemHostUnregister(at);
        munmap(at, bytes);
    }
    Address address() const { return reinterpret_cast<Address>(at); }

    size_t bytes;
    Value *at;
};

void refuses_other_pins(void ** /*state*/) {
    void *function = nullptr;
    int found = -1;
    assert_int_equal(cuGetProcAddress_v2("cuMemCreate", &function, 10020, 1, &found), 0);
    assert_true(function != nullptr && found == 0);
    assert_int_equal(cuGetProcAddress_v2("cuMemCreate", &function, 12000, 1, &found), 500);
    assert_true(function == nullptr && found == 2);
    assert_int_equal(cuGetProcAddress_v2("cuMemAlloc", &function, 3020, 1, &found), 500);
    assert_int_equal(found, 1);
}

void orders_the_legacy_stream(void ** /*state*/) {
    const Stream blocking = new_stream();
    const Stream free = new_stream(kStreamNonBlocking);
    Registered<uint64_t> words(4);
    for (uint64_t round = 1; round <= 20; ++round) {
        const bool null = round % 2 == 0;
        fake_cuda_launch_delay(blocking, 2000);
        CHECK_OK(driver().cuStreamWriteValue64(blocking, words.address(), round, 0));
        // Runs after the blocking stream; the blocking stream's next work runs after it.
        CHECK_OK(driver().cuMemcpyAsync(words.address() + 8, words.address(), 8, null ? nullptr : kLegacyStream));
        fake_cuda_launch_delay(nullptr, 2000);
        CHECK_OK(driver().cuMemcpyAsync(words.address() + 16, words.address() + 8, 8, blocking));
        CHECK_OK(driver().cuMemcpyAsync(words.address() + 24, words.address() + 8, 8, kPerThreadStream));
        assert_int_equal(fake_cuda_stream_wait(kPerThreadStream), 0);
        assert_int_equal(read_word(words.at + 3), round);
        assert_int_equal(fake_cuda_stream_wait(blocking), 0);
        assert_int_equal(read_word(words.at + 2), round);
    }
    // The non-blocking one waits for nobody.
    fake_cuda_hang(nullptr);
    CHECK_OK(driver().cuStreamWriteValue64(free, words.address(), 77, 0));
    CHECK_OK(driver().cuStreamWriteValue64(blocking, words.address() + 8, 77, 0));
    assert_int_equal(fake_cuda_stream_wait(free), 0);
    assert_int_equal(read_word(words.at), 77);
    CHECK_RESULT(NotReady, driver().cuStreamQuery(blocking));
    assert_int_equal(read_word(words.at + 1), 20);
    fake_cuda_unhang();
    // A destroyed stream still completes its work, and the legacy stream waits for it.
    fake_cuda_launch_delay(blocking, kLong);
    CHECK_OK(driver().cuStreamWriteValue64(blocking, words.address(), 78, 0));
    CHECK_OK(driver().cuStreamDestroy(blocking));
    CHECK_RESULT(InvalidHandle, driver().cuStreamQuery(blocking));
    assert_int_equal(fake_cuda_stream_wait(nullptr), 0);
    CHECK_OK(driver().cuMemcpyAsync(words.address() + 8, words.address(), 8, nullptr));
    assert_int_equal(fake_cuda_stream_wait(nullptr), 0);
    assert_int_equal(read_word(words.at + 1), 78);
    CHECK_OK(driver().cuStreamDestroy(free));
}

void orders_by_events(void ** /*state*/) {
    const Stream first = new_stream(kStreamNonBlocking);
    const Stream second = new_stream(kStreamNonBlocking);
    Registered<uint64_t> words(2);
    Event event = nullptr;
    CHECK_OK(driver().cuEventCreate(&event, kEventDisableTiming));
    CHECK_OK(driver().cuEventQuery(event));
    CHECK_OK(driver().cuStreamWaitEvent(second, event, 0));  // never recorded: no wait
    for (uint64_t round = 1; round <= 20; ++round) {
        fake_cuda_launch_delay(first, 2000);
        CHECK_OK(driver().cuStreamWriteValue64(first, words.address(), round, 0));
        CHECK_OK(driver().cuEventRecord(event, first));
        CHECK_OK(driver().cuStreamWaitEvent(second, event, 0));
        CHECK_OK(driver().cuMemcpyAsync(words.address() + 8, words.address(), 8, second));
        assert_int_equal(fake_cuda_stream_wait(second), 0);
        assert_int_equal(read_word(words.at + 1), round);
        CHECK_OK(driver().cuEventQuery(event));
    }
    // Recorded again it is a later point for those who wait from now on, but not for those who wait already.
    fake_cuda_hang(first);
    CHECK_OK(driver().cuStreamWaitEvent(second, event, 0));
    CHECK_OK(driver().cuEventRecord(event, first));
    assert_int_equal(fake_cuda_stream_wait(second), 0);
    CHECK_RESULT(NotReady, driver().cuEventQuery(event));
    fake_cuda_unhang();
    assert_int_equal(fake_cuda_stream_wait(first), 0);
    CHECK_OK(driver().cuEventQuery(event));
    CHECK_OK(driver().cuEventDestroy(event));
    CHECK_RESULT(InvalidHandle, driver().cuEventQuery(event));
    CHECK_OK(driver().cuStreamDestroy(first));
    CHECK_OK(driver().cuStreamDestroy(second));
}

// Until the word is at least the value, whoever writes it.
void waits_for_words(void ** /*state*/) {
    const Stream waiting = new_stream(kStreamNonBlocking);
    const Stream writing = new_stream(kStreamNonBlocking);
    Registered<uint64_t> words(2);
    for (uint64_t round = 1; round <= 20; ++round) {
        const bool by_host = round % 2 == 0;
        CHECK_OK(driver().cuStreamWaitValue64(waiting, words.address(), 2 * round, kWaitValueGeq));
        CHECK_OK(driver().cuMemcpyAsync(words.address() + 8, words.address(), 8, waiting));
        CHECK_RESULT(NotReady, driver().cuStreamQuery(waiting));
        const uint64_t value = 2 * round + round % 3 % 2;  // or more
        if (by_host) {
            std::atomic_ref<uint64_t>(words.at[0]).store(value, std::memory_order_release);
        } else {
            CHECK_OK(driver().cuStreamWriteValue64(writing, words.address(), value, 0));
        }
        assert_int_equal(fake_cuda_stream_wait(waiting), 0);
        assert_int_equal(read_word(words.at + 1), value);
    }
    CHECK_RESULT(InvalidValue, driver().cuStreamWaitValue64(waiting, words.address() + 4, 0, kWaitValueGeq));
    CHECK_RESULT(InvalidValue, driver().cuStreamWaitValue64(waiting, words.address(), 0, 1));
    uint64_t pageable = 1;
    CHECK_RESULT(InvalidValue, driver().cuStreamWaitValue64(waiting, reinterpret_cast<Address>(&pageable), 0, 0));
    CHECK_OK(driver().cuStreamDestroy(waiting));
    CHECK_OK(driver().cuStreamDestroy(writing));
}

// Completion in one stream implies nothing for another: both orders occur.
void promises_no_other_order(void ** /*state*/) {
    const Stream first = new_stream(kStreamNonBlocking);
    const Stream second = new_stream(kStreamNonBlocking);
    Registered<uint64_t> words(2);
    int seen[2] = {};
    for (uint64_t round = 1; seen[0] == 0 || seen[1] == 0; ++round) {
        assert_true(round < 10'000);
        CHECK_OK(driver().cuStreamWriteValue64(first, words.address(), round, 0));
        CHECK_OK(driver().cuStreamWriteValue64(second, words.address() + 8, round, 0));
        assert_int_equal(fake_cuda_stream_wait(second), 0);
        ++seen[read_word(words.at) == round ? 1 : 0];
        assert_int_equal(fake_cuda_stream_wait(first), 0);
    }
    CHECK_OK(driver().cuStreamDestroy(first));
    CHECK_OK(driver().cuStreamDestroy(second));
}

void copies_pageable_memory_at_once(void ** /*state*/) {
    const Address device = fake_cuda_alloc(0, 64);
    const Stream stream = new_stream();
    uint64_t source = 5;
    uint64_t target = 0;
    fake_cuda_launch_delay(stream, kLong);
    CHECK_OK(driver().cuMemcpyAsync(device, reinterpret_cast<Address>(&source), 8, stream));
    source = 6;
    CHECK_OK(driver().cuMemcpyAsync(reinterpret_cast<Address>(&target), device, 8, stream));
    assert_int_equal(target, 5);
    assert_int_equal(fake_cuda_free(device), 0);
    CHECK_OK(driver().cuStreamDestroy(stream));
}

void copies_in_batches(void ** /*state*/) {
    constexpr size_t kCopies = 20;
    const Stream stream = new_stream(kStreamNonBlocking);
    Registered<uint64_t> words(2 * kCopies);
    Address to[kCopies];
    Address from[kCopies];
    size_t bytes[kCopies];
    for (size_t i = 0; i < kCopies; ++i) {
        words.at[i] = i + 1;
        from[i] = words.address() + i * 8;
        to[i] = from[i] + kCopies * 8;
        bytes[i] = 8;
    }
    CopyAttributes attributes[2]{};
    attributes[0].source_access = attributes[1].source_access = SourceAccess::InStream;
    attributes[1].flags = kPreferOverlapWithCompute;
    size_t indices[] = {0, 5};
    const size_t before = fake_cuda_enqueued().batched_copies;
    CHECK_OK(driver().cuMemcpyBatchAsync(to, from, bytes, kCopies, attributes, indices, 2, stream));
    CHECK_RESULT(InvalidValue, driver().cuMemcpyBatchAsync(to, from, bytes, kCopies, attributes, indices, 2, nullptr));
    assert_int_equal(fake_cuda_enqueued().batched_copies - before, kCopies - 5);
    assert_int_equal(fake_cuda_stream_wait(stream), 0);
    assert_memory_equal(words.at, words.at + kCopies, kCopies * 8);
    CHECK_OK(driver().cuStreamDestroy(stream));
}

void adds_across_mappings(void ** /*state*/) {
    const Stream stream = new_stream(kStreamNonBlocking);
    Memory memories[2];
    Address target = 0;
    const AccessDescription access{{LocationType::Gpu, 0}, Access::ReadWrite};
    const AllocationProperties wanted = properties();
    CHECK_OK(driver().cuMemAddressReserve(&target, 2 * kGranule, 0, 0, 0));
    for (size_t i = 0; i < 2; ++i) {
        CHECK_OK(driver().cuMemCreate(&memories[i], kGranule, &wanted, 0));
        CHECK_OK(driver().cuMemMap(target + i * kGranule, kGranule, 0, memories[i], 0));
    }
    CHECK_OK(driver().cuMemSetAccess(target, 2 * kGranule, &access, 1));
    Module module = nullptr;
    Function function = nullptr;
    CHECK_RESULT(InvalidValue, driver().cuModuleLoadData(&module, nullptr));
    CHECK_OK(driver().cuModuleLoadData(&module, kText));
    CHECK_RESULT(NotFound, driver().cuModuleGetFunction(&function, module, "unknown"));
    CHECK_OK(driver().cuModuleGetFunction(&function, module, "odc_add_f32"));
    Registered<float> ones(1000);
    std::fill_n(ones.at, 1000, 1.0F);
    const Address middle = target + kGranule - 400;
    for (int round = 0; round < 3; ++round) {
        odc::Addends additions{};
        additions.addends[0] = {ones.at, reinterpret_cast<void *>(middle), 1000};
        additions.count = 1;
        void *parameters[] = {&additions};
        CHECK_OK(driver().cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, 0, stream, parameters, nullptr));
        additions = {};  // the parameters were copied
    }
    assert_int_equal(fake_cuda_stream_wait(stream), 0);
    std::vector<float> sums(1002);
    assert_int_equal(fake_cuda_read(sums.data(), middle - 4, sums.size() * 4), 0);
    for (size_t i = 0; i < sums.size(); ++i) {
        assert_true(sums[i] == (i == 0 || i == 1001 ? 0.0F : 3.0F));
    }
    CHECK_OK(driver().cuModuleUnload(module));
    CHECK_OK(driver().cuMemRelease(memories[0]));
    CHECK_OK(driver().cuMemRelease(memories[1]));
    CHECK_RESULT(InvalidValue, driver().cuMemRelease(memories[1]));
    CHECK_RESULT(InvalidValue, driver().cuMemAddressFree(target, 2 * kGranule));
    CHECK_RESULT(InvalidValue, driver().cuMemUnmap(target, kGranule / 2));
    unmap(target, 2 * kGranule);
    CHECK_OK(driver().cuStreamDestroy(stream));
}

void reports_the_kind_of_memory(void ** /*state*/) {
    const auto kind = [](Address address) {
        PointerAttribute attributes[] = {PointerAttribute::MemoryType, PointerAttribute::DeviceOrdinal};
        MemoryType type = MemoryType::Host;
        int device = 7;
        void *values[] = {&type, &device};
        CHECK_OK(driver().cuPointerGetAttributes(2, attributes, values, address));
        assert_int_equal(device, type == MemoryType::Unknown ? -2 : 0);
        return type;
    };
    int local = 0;
    Registered<char> host(4096);
    const Address device = fake_cuda_alloc(0, 100);
    assert_true(kind(reinterpret_cast<Address>(&local)) == MemoryType::Unknown);
    assert_true(kind(host.address() + 4095) == MemoryType::Host);
    assert_true(kind(device + 99) == MemoryType::Gpu);
    assert_true(kind(device + 100) == MemoryType::Unknown);
    CHECK_RESULT(HostMemoryAlreadyRegistered, driver().cuMemHostRegister(host.at + 1, 10, 0));
    assert_int_equal(fake_cuda_free(device), 0);
}

void forbids_what_breaks_captures(void ** /*state*/) {
    const Stream stream = new_stream();
    const Stream other = new_stream(kStreamNonBlocking);
    Registered<uint64_t> words(1);
    CaptureStatus status = CaptureStatus::None;
    CaptureMode mode = CaptureMode::Relaxed;
    assert_int_equal(fake_cuda_begin_capture(stream), 0);
    CHECK_OK(driver().cuStreamIsCapturing(stream, &status));
    assert_true(status == CaptureStatus::Active);
    CHECK_OK(driver().cuStreamIsCapturing(other, &status));
    assert_true(status == CaptureStatus::None);
    assert_int_equal(static_cast<int>(driver().cuStreamIsCapturing(nullptr, &status)), 906);
    CHECK_OK(driver().cuStreamWriteValue64(stream, words.address(), 1, 0));  // recorded, not done
    std::thread([other, &mode] {
        Context context = use_first_device();
        CHECK_OK(driver().cuThreadExchangeStreamCaptureMode(&mode));
        assert_true(mode == CaptureMode::Global);
        CHECK_OK(driver().cuStreamQuery(other));
        CHECK_OK(driver().cuCtxPopCurrent(&context));
        CHECK_OK(driver().cuDevicePrimaryCtxRelease(0));
    }).join();
    assert_int_equal(fake_cuda_end_capture(stream), 0);
    assert_int_equal(read_word(words.at), 0);

    assert_int_equal(fake_cuda_begin_capture(stream), 0);
    assert_int_equal(static_cast<int>(driver().cuStreamQuery(other)), 900);
    CHECK_OK(driver().cuStreamIsCapturing(stream, &status));
    assert_true(status == CaptureStatus::Invalidated);
    assert_int_equal(fake_cuda_end_capture(stream), 901);
    CHECK_OK(driver().cuStreamQuery(other));
    CHECK_OK(driver().cuStreamDestroy(stream));
    CHECK_OK(driver().cuStreamDestroy(other));
}

void needs_a_context(void ** /*state*/) {
    std::thread([] {
        Stream stream = nullptr;
        CHECK_RESULT(InvalidContext, driver().cuStreamCreate(&stream, 0));
        CHECK_RESULT(InvalidContext, driver().cuMemcpyAsync(0, 0, 0, nullptr));
        CHECK_RESULT(InvalidContext, driver().cuCtxPopCurrent(nullptr));
    }).join();
}

}  // namespace

int main() {
    use_first_device();
    const CMUnitTest tests[] = {
        cmocka_unit_test(refuses_other_pins),
        cmocka_unit_test(orders_the_legacy_stream),
        cmocka_unit_test(orders_by_events),
        cmocka_unit_test(waits_for_words),
        cmocka_unit_test(promises_no_other_order),
        cmocka_unit_test(copies_pageable_memory_at_once),
        cmocka_unit_test(copies_in_batches),
        cmocka_unit_test(adds_across_mappings),
        cmocka_unit_test(reports_the_kind_of_memory),
        cmocka_unit_test(forbids_what_breaks_captures),
        cmocka_unit_test(needs_a_context),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
