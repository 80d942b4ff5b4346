// SPDX-License-Identifier: Apache-2.0
// The fake CUDA driver, in processes of its own: settings of the environment, memory and words shared by processes, sticky
// errors, exits.
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
#include <vector>

#include "checks.h"

extern "C" {
#include <cmocka.h>
}

namespace {

using namespace fake_cuda;

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

uint64_t value_at(Address address) {
    uint64_t value = 0;
    fake_cuda_read(&value, address, sizeof(value));
    return value;
}

void await_word(uint64_t *word, uint64_t value) {
    for (int i = 0; read_word(word) != value; ++i) {
        REQUIRE(i < 30'000);
        usleep(1000);
    }
}

void reports_its_devices(void ** /*state*/) {
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

void check_words(const char *wanted) {
    require(why_not_driver() == wanted, why_not_driver().c_str(), __FILE__, __LINE__);
}

void is_refused_with_an_error(void ** /*state*/) {
    in_child({{"FAKE_CUDA_VERSION", "11080"}},
             [] { check_words("the driver is of CUDA 11.8; 12.1 or later is needed"); });
    in_child({{"FAKE_CUDA_DEVICES", "0"}},
             [] { check_words("the driver finds no GPU (CUDA_VISIBLE_DEVICES hides them, if it is set)"); });
    in_child({{"FAKE_CUDA_FAIL", "cuInit:1:999"}},
             [] { check_words("cuInit failed: CUDA_ERROR_UNKNOWN (unknown error)"); });
    in_child({{"FAKE_CUDA_VERSION", "12080"}}, [] {
        REQUIRE(why_not_driver().empty() && driver().cuMemcpyBatchAsync == nullptr);
        REQUIRE(driver().cuMemCreate != nullptr);
    });
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

// The memory of a killed process, and words written after its data.
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

// A forked child cannot use the driver.
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

}  // namespace

int main() {
    // The last ones initialize the driver in this process, too.
    const CMUnitTest tests[] = {
        cmocka_unit_test(reports_its_devices),      cmocka_unit_test(is_refused_with_an_error),
        cmocka_unit_test(runs_out_of_memory),       cmocka_unit_test(checks_access_of_peers),
        cmocka_unit_test(fails_for_good),           cmocka_unit_test(hides_device_memory_from_the_host),
        cmocka_unit_test(ends_with_work_in_flight), cmocka_unit_test(counts_what_is_left),
        cmocka_unit_test(is_shared_by_processes),   cmocka_unit_test(knows_its_process),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
