// SPDX-License-Identifier: Apache-2.0
// The CUDA driver that the other tests of GPU memory run on: what it promises of order, memory, faults, captures.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cuda_driver.h"
#include "fake_cuda.h"
#include "kernels/add.h"

extern "C" {
#include <cmocka.h>
}

extern "C" int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found);

namespace {

using namespace odc::cuda;

constexpr size_t kGranule = size_t{2} << 20;
constexpr unsigned kLong = 20'000;  // µs: longer than what could overtake it would take
constexpr char kText[] = ".version 8.1\n.target sm_90\n.visible .entry odc_add_f32(\n.visible .entry unknown(\n";

// Anywhere: a failed check ends the process, be it the test or a child.
void require(bool holds, const char *what, int line) {
    if (!holds) {
        std::fprintf(stderr, "%s:%d: %s\n", __FILE__, line, what);
        _exit(1);
    }
}
#define REQUIRE(condition) require(condition, #condition, __LINE__)

void check(Result got, Result wanted, const char *call, int line) {
    if (got != wanted) {
        require(false, (std::string(call) + " returns " + words_of(got)).c_str(), line);
    }
}
#define CHECK_RESULT(wanted, call) check(call, Result::wanted, #call, __LINE__)
#define CHECK_OK(call) CHECK_RESULT(Success, call)

// The status is 0 if no check failed.
pid_t start(const std::function<void()> &child) {
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        child();
        std::exit(0);
    }
    return pid;
}

void await_end(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

using Settings = std::vector<std::pair<const char *, const char *>>;

void in_child(const Settings &settings, const std::function<void()> &body) {
    await_end(start([&] {
        for (const auto &[name, value] : settings) {
            setenv(name, value, 1);
        }
        body();
    }));
}

Stream new_stream(unsigned flags = 0) { return static_cast<Stream>(fake_cuda_stream_create(0, flags)); }

Context use_first_device() {
    Context context = nullptr;
    CHECK_OK(driver().cuInit(0));
    CHECK_OK(driver().cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_OK(driver().cuCtxPushCurrent(context));
    return context;
}

uint64_t value_at(Address address) {
    uint64_t value = 0;
    fake_cuda_read(&value, address, sizeof(value));
    return value;
}

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

uint64_t read_word(uint64_t *word) { return std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire); }

void await_word(uint64_t *word, uint64_t value) {
    for (int i = 0; read_word(word) != value; ++i) {
        REQUIRE(i < 30'000);
        usleep(1000);
    }
}

AllocationProperties properties(int device = 0) {
    AllocationProperties wanted{};
    wanted.type = AllocationType::Pinned;
    wanted.handle_types = HandleType::PosixFileDescriptor;
    wanted.location = {LocationType::Gpu, device};
    return wanted;
}

Address map(Memory memory, size_t bytes, int device = 0) {
    Address address = 0;
    const AccessDescription access{{LocationType::Gpu, device}, Access::ReadWrite};
    CHECK_OK(driver().cuMemAddressReserve(&address, bytes, 0, 0, 0));
    CHECK_OK(driver().cuMemMap(address, bytes, 0, memory, 0));
    CHECK_OK(driver().cuMemSetAccess(address, bytes, &access, 1));
    return address;
}

void unmap(Address address, size_t bytes) {
    CHECK_OK(driver().cuMemUnmap(address, bytes));
    CHECK_OK(driver().cuMemAddressFree(address, bytes));
}

void tells_of_its_devices(void ** /*state*/) {
    in_child({{"FAKE_CUDA_DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", "2,0"}, {"FAKE_CUDA_P2P", "no-atomics"}}, [] {
        int count = 0;
        int value = 0;
        char name[32];
        Uuid first;
        Uuid second;
        REQUIRE(why_not_driver().empty());
        REQUIRE(driver().cuDeviceGetCount(&count) == Result::Success && count == 2);
        CHECK_OK(driver().cuDeviceGetName(name, sizeof(name), 0));
        REQUIRE(!strcmp(name, "Fake GPU 2"));
        CHECK_OK(driver().cuDeviceGetUuid(&first, 0));
        REQUIRE(driver().cuDeviceGetUuid(&second, 1) == Result::Success && !(first == second));
        REQUIRE(driver().cuDeviceGetUuid(&second, 2) == Result::InvalidDevice);
        CHECK_OK(driver().cuDeviceGetP2PAttribute(&value, P2PAttribute::AccessSupported, 0, 1));
        REQUIRE(value == 1);
        CHECK_OK(driver().cuDeviceGetP2PAttribute(&value, P2PAttribute::NativeAtomicSupported, 0, 1));
        REQUIRE(value == 0);
    });
}

void is_refused_in_words(void ** /*state*/) {
    in_child({{"FAKE_CUDA_VERSION", "11080"}},
             [] { REQUIRE(why_not_driver() == "the driver is of CUDA 11.8; 12.0 or later is needed"); });
    in_child({{"FAKE_CUDA_DEVICES", "0"}},
             [] { REQUIRE(why_not_driver().find("CUDA_ERROR_NO_DEVICE") != std::string::npos); });
    in_child({{"FAKE_CUDA_FAIL", "cuInit:1:999"}},
             [] { REQUIRE(why_not_driver() == "cuInit failed: CUDA_ERROR_UNKNOWN (unknown error)"); });
    in_child({{"FAKE_CUDA_VERSION", "12080"}}, [] {
        REQUIRE(why_not_driver().empty() && driver().cuMemcpyBatchAsync == nullptr);
        REQUIRE(driver().cuMemCreate != nullptr);
    });
}

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

// In a forked child it cannot be used.
void knows_its_process(void ** /*state*/) {
    use_first_device();
    const pid_t child = fork();
    if (child == 0) {
        int count = 0;
        const bool refused = driver().cuDeviceGetCount(&count) == Result::NotInitialized &&
                             driver().cuInit(0) == Result::NotInitialized && fake_cuda_alloc(0, 8) == 0;
        _exit(refused ? 0 : 1);
    }
    await_end(child);
}

void orders_the_legacy_stream(void ** /*state*/) {
    const Stream blocking = new_stream();
    const Stream free = new_stream(kStreamNonBlocking);
    Registered<uint64_t> words(4);
    for (uint64_t round = 1; round <= 20; ++round) {
        const bool null = round % 2 == 0;
        fake_cuda_launch_delay(blocking, 2000);
        CHECK_OK(driver().cuStreamWriteValue64(blocking, words.address(), round, 0));
        // Comes after the blocking stream; what the blocking stream does next comes after it.
        CHECK_OK(driver().cuMemcpyAsync(words.address() + 8, words.address(), 8, null ? nullptr : kLegacyStream));
        fake_cuda_launch_delay(nullptr, 2000);
        CHECK_OK(driver().cuMemcpyAsync(words.address() + 16, words.address() + 8, 8, blocking));
        CHECK_OK(driver().cuMemcpyAsync(words.address() + 24, words.address() + 8, 8, kPerThreadStream));
        assert_int_equal(fake_cuda_stream_wait(kPerThreadStream), 0);
        assert_int_equal(read_word(words.at + 3), round);
        assert_int_equal(fake_cuda_stream_wait(blocking), 0);
        assert_int_equal(read_word(words.at + 2), round);
    }
    // The free one waits for nobody.
    fake_cuda_hang(nullptr);
    CHECK_OK(driver().cuStreamWriteValue64(free, words.address(), 77, 0));
    CHECK_OK(driver().cuStreamWriteValue64(blocking, words.address() + 8, 77, 0));
    assert_int_equal(fake_cuda_stream_wait(free), 0);
    assert_int_equal(read_word(words.at), 77);
    CHECK_RESULT(NotReady, driver().cuStreamQuery(blocking));
    assert_int_equal(read_word(words.at + 1), 20);
    fake_cuda_unhang();
    // A destroyed stream, too, does what it was to do, and the legacy stream waits for it.
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
    // Recorded again, it is the later point for who waits from now on, but not for who waits already.
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

// What is done in one stream says nothing of another: both orders are seen.
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
    CopyAttributes attributes{};
    attributes.source_access = SourceAccess::InStream;
    size_t index = 0;
    CHECK_OK(driver().cuMemcpyBatchAsync(to, from, bytes, kCopies, &attributes, &index, 1, stream));
    CHECK_RESULT(InvalidValue, driver().cuMemcpyBatchAsync(to, from, bytes, kCopies, &attributes, &index, 1, nullptr));
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
        odc::Additions additions{};
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

void tells_what_memory_is(void ** /*state*/) {
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

void runs_out_of_memory(void ** /*state*/) {
    in_child({{"FAKE_CUDA_MEMORY", "8388608"}}, [] {
        const AllocationProperties wanted = properties();
        Memory memory = 0;
        Memory rest = 0;
        size_t free = 0;
        size_t total = 0;
        use_first_device();
        REQUIRE(driver().cuMemCreate(&memory, kGranule + 1, &wanted, 0) == Result::InvalidValue);
        CHECK_OK(driver().cuMemCreate(&memory, 3 * kGranule, &wanted, 0));
        REQUIRE(driver().cuMemCreate(&rest, 2 * kGranule, &wanted, 0) == Result::OutOfMemory);
        REQUIRE(driver().cuMemGetInfo(&free, &total) == Result::Success && free == kGranule && total == 4 * kGranule);
        const Address address = map(memory, 3 * kGranule);
        CHECK_OK(driver().cuMemRelease(memory));
        REQUIRE(driver().cuMemCreate(&rest, 2 * kGranule, &wanted, 0) == Result::OutOfMemory);
        unmap(address, 3 * kGranule);
        CHECK_OK(driver().cuMemCreate(&rest, 2 * kGranule, &wanted, 0));
    });
}

void checks_access_of_peers(void ** /*state*/) {
    for (const bool allowed : {true, false}) {
        in_child({{"FAKE_CUDA_DEVICES", "2"}, {"FAKE_CUDA_P2P", allowed ? "all" : "none"}}, [allowed] {
            const AllocationProperties theirs = properties(1);
            const AccessDescription mine{{LocationType::Gpu, 0}, Access::Read};
            Memory memory = 0;
            Address address = 0;
            CHECK_OK(driver().cuMemCreate(&memory, kGranule, &theirs, 0));
            CHECK_OK(driver().cuMemAddressReserve(&address, kGranule, 0, 0, 0));
            CHECK_OK(driver().cuMemMap(address, kGranule, 0, memory, 0));
            REQUIRE((driver().cuMemSetAccess(address, kGranule, &mine, 1) == Result::Success) == allowed);
            if (allowed) {  // to read, not to write
                use_first_device();
                const Address own = fake_cuda_alloc(0, 8);
                CHECK_OK(driver().cuMemcpyAsync(own, address, 8, nullptr));
                REQUIRE(fake_cuda_stream_wait(nullptr) == 0);
                CHECK_OK(driver().cuMemcpyAsync(address, own, 8, nullptr));
                REQUIRE(fake_cuda_stream_wait(nullptr) == 700);
            }
        });
    }
}

// Memory of a process that is killed, and words that it writes after its data.
void is_shared_by_processes(void ** /*state*/) {
    int sockets[2];
    assert_int_equal(pipe(sockets), 0);
    auto *word =
        static_cast<uint64_t *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    constexpr uint64_t kRounds = 50;
    const pid_t owner = start([&] {
        use_first_device();
        CHECK_OK(driver().cuMemHostRegister(word, 4096, 0));
        Memory memory = 0;
        int fd = -1;
        const AllocationProperties wanted = properties();
        CHECK_OK(driver().cuMemCreate(&memory, kGranule, &wanted, 0));
        CHECK_OK(driver().cuMemExportToShareableHandle(&fd, memory, HandleType::PosixFileDescriptor, 0));
        REQUIRE(write(sockets[1], &fd, sizeof(fd)) == sizeof(fd));
        const Address address = map(memory, kGranule);
        const Stream stream = new_stream(kStreamNonBlocking);
        for (uint64_t round = 1; round <= kRounds; ++round) {
            CHECK_OK(driver().cuMemsetD8Async(address, static_cast<unsigned char>(round), kGranule, stream));
            CHECK_OK(driver().cuStreamWriteValue64(stream, reinterpret_cast<Address>(word), round, 0));
            await_word(word + 1, round);
        }
        fake_cuda_hang(stream);
        pause();
    });
    int fd = -1;
    assert_int_equal(read(sockets[0], &fd, sizeof(fd)), sizeof(fd));
    const std::string path = "/proc/" + std::to_string(owner) + "/fd/" + std::to_string(fd);
    const int mine = open(path.c_str(), O_RDWR | O_CLOEXEC);
    assert_true(mine >= 0);
    Memory memory = 0;
    CHECK_RESULT(InvalidValue,
                 driver().cuMemImportFromShareableHandle(&memory, reinterpret_cast<void *>(intptr_t{sockets[0]}),
                                                         HandleType::PosixFileDescriptor));
    CHECK_OK(driver().cuMemImportFromShareableHandle(&memory, reinterpret_cast<void *>(intptr_t{mine}),
                                                     HandleType::PosixFileDescriptor));
    close(mine);
    const Address address = map(memory, kGranule);
    for (uint64_t round = 1; round <= kRounds; ++round) {
        await_word(word, round);
        assert_int_equal(value_at(address), round * 0x0101010101010101);
        assert_int_equal(value_at(address + kGranule - 8), round * 0x0101010101010101);
        std::atomic_ref<uint64_t>(word[1]).store(round);
    }
    kill(owner, SIGKILL);
    waitpid(owner, nullptr, 0);
    assert_int_equal(value_at(address + 8), kRounds * 0x0101010101010101);
    CHECK_OK(driver().cuMemRelease(memory));
    unmap(address, kGranule);
    munmap(word, 4096);
    close(sockets[0]);
    close(sockets[1]);
}

void fails_for_good(void ** /*state*/) {
    for (const int how : {0, 1, 2, 3}) {
        in_child({{"FAKE_CUDA_DEVICES", "2"}}, [how] {
            Context context = use_first_device();
            const Stream stream = new_stream(kStreamNonBlocking);
            const Address device = fake_cuda_alloc(0, 16);
            const Address other = fake_cuda_alloc(1, 16);
            Result wanted = Result::IllegalAddress;
            Event event = nullptr;
            CHECK_OK(driver().cuEventCreate(&event, 0));
            if (how == 0) {  // too long
                CHECK_OK(driver().cuMemcpyAsync(device, device + 8, 16, stream));
            } else if (how == 1) {  // no access
                CHECK_OK(driver().cuMemcpyAsync(device, other, 8, stream));
            } else if (how == 2) {
                wanted = Result::LaunchFailed;
                REQUIRE(fake_cuda_fault(stream, 719) == 0);
            } else {
                fake_cuda_fail("cuMemsetD8Async", 2, 700);
                CHECK_OK(driver().cuMemsetD8Async(device, 1, 8, stream));
                CHECK_RESULT(IllegalAddress, driver().cuMemsetD8Async(device, 1, 8, stream));
            }
            REQUIRE(fake_cuda_stream_wait(stream) == static_cast<int>(wanted));
            REQUIRE(driver().cuMemcpyAsync(device, device + 8, 8, stream) == wanted);
            REQUIRE(driver().cuStreamQuery(stream) == wanted);
            REQUIRE(driver().cuEventQuery(event) == wanted);
            CHECK_OK(driver().cuEventDestroy(event));
            CHECK_OK(driver().cuStreamDestroy(stream));
            CHECK_OK(driver().cuCtxPopCurrent(&context));
            CHECK_OK(driver().cuDevicePrimaryCtxRelease(0));
            REQUIRE(fake_cuda_set_device(1) == 0 && fake_cuda_stream_wait(nullptr) == 0);  // another device works
        });
    }
}

void hides_device_memory_from_the_host(void ** /*state*/) {
    const pid_t child = start([] {
        for (const int signal : {SIGSEGV, SIGBUS}) {
            std::signal(signal, [](int /*signal*/) { _exit(42); });
        }
        auto *device = reinterpret_cast<volatile char *>(fake_cuda_alloc(0, 16));
        *device = 1;
    });
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
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

void ends_with_work_in_flight(void ** /*state*/) {
    for (const bool exits : {true, false}) {
        await_end(start([exits] {
            use_first_device();
            for (int i = 0; i < 4; ++i) {
                const Address device = fake_cuda_alloc(0, 1 << 20);
                const Stream stream = new_stream();
                for (int n = 0; n < 100; ++n) {
                    driver().cuMemsetD8Async(device, 1, 1 << 20, stream);
                }
                fake_cuda_hang(stream);
            }
            exits ? std::exit(0) : _exit(0);
        }));
    }
}

void needs_a_context(void ** /*state*/) {
    std::thread([] {
        Stream stream = nullptr;
        CHECK_RESULT(InvalidContext, driver().cuStreamCreate(&stream, 0));
        CHECK_RESULT(InvalidContext, driver().cuMemcpyAsync(0, 0, 0, nullptr));
        CHECK_RESULT(InvalidContext, driver().cuCtxPopCurrent(nullptr));
    }).join();
}

void counts_what_is_left(void ** /*state*/) {
    in_child({}, [] {
        REQUIRE(why_not_driver().empty());
        const AllocationProperties wanted = properties();
        Memory memory = 0;
        Context context = use_first_device();
        CHECK_OK(driver().cuMemCreate(&memory, kGranule, &wanted, 0));
        const Address address = map(memory, kGranule);
        fake_cuda_counts live = fake_cuda_live();
        REQUIRE(live.contexts == 1 && live.handles == 1 && live.mappings == 1 && live.reservations == 1);
        REQUIRE(live.memory == kGranule && live.streams == 0 && live.allocations == 0);
        unmap(address, kGranule);
        CHECK_OK(driver().cuMemRelease(memory));
        CHECK_OK(driver().cuCtxPopCurrent(&context));
        CHECK_OK(driver().cuDevicePrimaryCtxRelease(0));
        CHECK_RESULT(InvalidContext, driver().cuDevicePrimaryCtxRelease(0));
        const fake_cuda_counts none{};
        live = fake_cuda_live();
        REQUIRE(std::memcmp(&live, &none, sizeof(none)) == 0);
    });
}

}  // namespace

int main() {
    // First those with processes that take the driver into use themselves.
    const CMUnitTest tests[] = {
        cmocka_unit_test(tells_of_its_devices),
        cmocka_unit_test(is_refused_in_words),
        cmocka_unit_test(runs_out_of_memory),
        cmocka_unit_test(checks_access_of_peers),
        cmocka_unit_test(fails_for_good),
        cmocka_unit_test(hides_device_memory_from_the_host),
        cmocka_unit_test(ends_with_work_in_flight),
        cmocka_unit_test(counts_what_is_left),
        cmocka_unit_test(is_shared_by_processes),
        cmocka_unit_test(refuses_other_pins),
        cmocka_unit_test(knows_its_process),
        cmocka_unit_test(orders_the_legacy_stream),
        cmocka_unit_test(orders_by_events),
        cmocka_unit_test(promises_no_other_order),
        cmocka_unit_test(copies_pageable_memory_at_once),
        cmocka_unit_test(copies_in_batches),
        cmocka_unit_test(adds_across_mappings),
        cmocka_unit_test(tells_what_memory_is),
        cmocka_unit_test(forbids_what_breaks_captures),
        cmocka_unit_test(needs_a_context),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
