// SPDX-License-Identifier: Apache-2.0
// Gathers and additions between hosts over providers that want all local memory registered (FI_MR_LOCAL: verbs, efa): through
// bounded staging. The provider used here does not, so the test, linked statically, replaces fi_getinfo to say that it does.
// Ranks are threads.
#include <odc/odc.h>

#include <dlfcn.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "replaced_symbols.h"
#include "thread_job.h"

namespace {

constexpr int kRanks = 5;
constexpr int kAdditions = 2;  // of each rank in a minibatch
constexpr size_t kStagingBytes = 256 << 10;
constexpr uint64_t kNumel = 150'003;  // many chunks and a remainder

std::atomic<bool> wants_local{false};
std::atomic<size_t> most_staged{0};  // by one thread
std::atomic<int> allowed{
    INT_MAX};  // registrations by all ranks before memory runs out; -1: opening a domain fails, too
std::atomic<bool> registered_absent{false};
std::atomic<bool> staged_late{false};  // staging was registered after odc_init
decltype(&fi_getinfo) real_getinfo = nullptr;
decltype(&fi_fabric) real_fabric = nullptr;
decltype(fi_ops_fabric::domain) real_domain = nullptr;
decltype(fi_ops_mr::reg) real_register = nullptr;

int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const fi_info *hints,
            fi_info **found) {
    const int code = real_getinfo(version, node, service, flags, hints, found);
    for (fi_info *one = code == 0 && wants_local ? *found : nullptr; one != nullptr; one = one->next) {
        one->domain_attr->mr_mode |= FI_MR_LOCAL;
    }
    return code;
}

bool on_library_thread() {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    return std::strcmp(name, "odc") == 0;
}

// Whether all its pages are resident.
bool is_there(const void *memory, size_t bytes) {
    constexpr uintptr_t kPage = 4096;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory) / kPage * kPage;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes + kPage - 1) / kPage * kPage;
    std::vector<unsigned char> pages((end - begin) / kPage);
    return mincore(reinterpret_cast<void *>(begin), end - begin, pages.data()) == 0 &&
           std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

// Staging is registered by the thread that joins; slices, whose shared pages are already allocated, by the progress thread.
int register_memory(fid *domain, const void *memory, size_t bytes, uint64_t access, uint64_t offset, uint64_t key,
                    uint64_t flags, fid_mr **region, void *context) {
    if (!on_library_thread() && !is_there(memory, bytes)) {
        registered_absent = true;
    }
    return allowed.fetch_sub(1) > 0 ? real_register(domain, memory, bytes, access, offset, key, flags, region, context)
                                    : -FI_ENOMEM;
}

int open_domain(fid_fabric *fabric, fi_info *info, fid_domain **domain, void *context) {
    if (allowed < 0) {
        return -FI_ENOMEM;
    }
    const int code = real_domain(fabric, info, domain, context);
    if (code == 0) {
        static fi_ops_mr replaced;
        static std::once_flag once;
        std::call_once(once, [&] {
            replaced = *(*domain)->mr;
            real_register = std::exchange(replaced.reg, register_memory);
        });
        (*domain)->mr = &replaced;
    }
    return code;
}

int open_fabric(fi_fabric_attr *attributes, fid_fabric **fabric, void *context) {
    const int code = real_fabric(attributes, fabric, context);
    if (code == 0) {
        static fi_ops_fabric replaced;
        static std::once_flag once;
        std::call_once(once, [&] {
            replaced = *(*fabric)->ops;
            real_domain = std::exchange(replaced.domain, open_domain);
        });
        (*fabric)->ops = &replaced;
    }
    return code;
}

// Does not count libfabric's own mappings, made by the same thread.
bool is_ours(const void *code) {
    Dl_info here{};
    Dl_info there{};
    return dladdr(reinterpret_cast<void *>(&is_ours), &here) != 0 && dladdr(code, &there) != 0 &&
           here.dli_fbase == there.dli_fbase;
}

}  // namespace

void *replaced_symbol(const char *name, void *found) {
    if (std::strcmp(name, "fi_getinfo") == 0) {
        real_getinfo = reinterpret_cast<decltype(real_getinfo)>(found);
        return reinterpret_cast<void *>(&getinfo);
    }
    if (std::strcmp(name, "fi_fabric") == 0) {
        real_fabric = reinterpret_cast<decltype(real_fabric)>(found);
        return reinterpret_cast<void *>(&open_fabric);
    }
    return found;
}

// Staging is the private memory that the library itself maps, on the joining thread and on the progress thread.
extern "C" [[gnu::weak]] decltype(mmap) __interceptor_mmap;
extern "C" void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    static const auto next = next_of("mmap", &__interceptor_mmap);
    static thread_local size_t staged = 0;
    if (fd == -1 && flags == (MAP_PRIVATE | MAP_ANONYMOUS) && protection == (PROT_READ | PROT_WRITE) &&
        is_ours(__builtin_return_address(0))) {
        staged += bytes;
        staged_late = staged_late || on_library_thread();
        size_t most = most_staged;
        while (most < staged && !most_staged.compare_exchange_weak(most, staged)) {
        }
    }
    return next(at, bytes, protection, flags, fd, offset);
}

namespace {

using Member = ThreadJob::Member;

void check(odc_status status) {
    if (status != ODC_OK) {
        std::fprintf(stderr, "%s\n", odc_last_error());
        std::abort();
    }
}

void check(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "does not hold: %s\n", what);
        std::abort();
    }
}

// Whole numbers that every type represents, and so are the sums of all of them.
int value(uint64_t salt, uint64_t index) { return static_cast<int>((index * 7 + salt * 3) % 9) - 4; }

uint16_t half(int number) {
    const auto size = static_cast<unsigned>(std::abs(number));
    if (size == 0) {
        return 0;
    }
    const auto exponent = static_cast<unsigned>(31 - __builtin_clz(size));
    return static_cast<uint16_t>((number < 0 ? 0x8000u : 0u) | (exponent + 15) << 10 |
                                 (((size << 10) >> exponent) & 0x3ffu));
}

size_t bytes_of(int type) { return type == ODC_F64 ? 8 : type == ODC_F32 ? 4 : 2; }

void put(int type, void *to, uint64_t index, int number) {
    const auto wide = static_cast<float>(number);
    uint32_t bits = 0;
    std::memcpy(&bits, &wide, sizeof(bits));
    switch (type) {
        case ODC_F64: static_cast<double *>(to)[index] = number; break;
        case ODC_F32: static_cast<float *>(to)[index] = wide; break;
        case ODC_BF16: static_cast<uint16_t *>(to)[index] = static_cast<uint16_t>(bits >> 16); break;
        default: static_cast<uint16_t *>(to)[index] = half(number);
    }
}

double sum(int type, const void *sums, uint64_t index) {
    return type == ODC_F64 ? static_cast<const double *>(sums)[index] : static_cast<const float *>(sums)[index];
}

// All ranks gather from, and add to, the one owner.
void run_rank(Member member, int type) {
    odc_context *context = nullptr;
    check(member.join(&context));
    odc_route route{};
    route.struct_size = sizeof(route);
    check(odc_get_route(context, (member.rank + 1) % kRanks, ODC_HOST_MEMORY, &route));
    check(std::string(route.access) == (wants_local ? "staged" : "direct"), "the route says how gathers read");
    odc_shard_desc desc{};
    const uint64_t slices[kRanks] = {0, 0, kNumel, 0, 0};
    desc.struct_size = sizeof(desc);
    desc.name = "of rank 2";
    desc.numel = kNumel;
    desc.parameter_type = desc.gradient_type = type;
    desc.slices = slices;
    odc_shard *shard = nullptr;
    check(odc_register_shard(context, &desc, &shard));
    odc_slice slice{};
    slice.struct_size = sizeof(slice);
    check(odc_get_slice(shard, &slice));
    std::vector<char> parameters(kNumel * bytes_of(type));
    std::vector<char> full(kNumel * bytes_of(type));
    std::vector<char> gradients(kNumel * bytes_of(type));
    for (uint64_t minibatch = 0; minibatch < 2; ++minibatch) {
        for (uint64_t i = 0; i < kNumel; ++i) {
            put(type, parameters.data(), i, value(minibatch, i));
        }
        if (slice.numel > 0) {
            std::memcpy(slice.parameters, parameters.data(), parameters.size());
        }
        check(odc_publish_all(context, nullptr));
        for (uint64_t addition = 0; addition < kAdditions; ++addition) {
            uint64_t gather = 0;
            check(odc_gather_start(shard, full.data(), kNumel, nullptr, &gather));
            for (uint64_t i = 0; i < kNumel; ++i) {
                put(type, gradients.data(), i, value(static_cast<uint64_t>(member.rank) + addition, i));
            }
            check(odc_scatter_add(shard, gradients.data(), kNumel, nullptr));
            check(odc_wait(context, gather));
            check(full == parameters, "what was gathered are the parameters");
            std::fill(full.begin(), full.end(), '\x55');
            std::fill(gradients.begin(), gradients.end(), '\x55');
        }
        check(odc_minibatch_sync(context));
        for (uint64_t i = 0; i < slice.numel; ++i) {
            int expected = 0;
            for (uint64_t rank = 0; rank < kRanks; ++rank) {
                for (uint64_t addition = 0; addition < kAdditions; ++addition) {
                    expected += value(rank + addition, i);
                }
            }
            check(sum(type, slice.gradients, i) == expected, "each element was added exactly once");
        }
    }
    odc_destroy(context);
}

// A rank that has no memory when it joins.
void run_out(Member member, int) {
    odc_context *context = nullptr;
    const odc_status status = member.join(&context);
    const std::string sentence = odc_last_error();
    std::printf("%s\n", sentence.c_str());
    check(status == ODC_ERROR_NO_MEMORY || status == ODC_ERROR_RENDEZVOUS, "no rank joins");
    for (const char *word : {"provider tcp;ofi_rxm on lo: fi_", "Cannot allocate memory", " KiB", "ulimit -l"}) {
        check(sentence.find(word) != std::string::npos, word);
    }
}

void run_job(int type, void (*run)(Member, int) = run_rank) {
    ThreadJob job(kRanks);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back(run, Member{&job, rank}, type);
    }
    for (std::thread &rank : ranks) {
        rank.join();
    }
}

void check_staging() {
    std::printf("staging: %zu KiB at most\n", most_staged.load() >> 10);
    assert_true(most_staged > 0);
    assert_true(most_staged <= kStagingBytes);
}

void everybody_adds_to_one_owner_through_bounded_staging(void **) {
    for (const int type : {ODC_F32, ODC_F64, ODC_BF16, ODC_F16}) {
        run_job(type);
    }
    check_staging();
}

void also_where_all_local_memory_must_be_registered(void **) {
    wants_local = true;
    staged_late = false;
    const size_t without = most_staged.exchange(0);
    for (const int type : {ODC_F32, ODC_F64, ODC_BF16, ODC_F16}) {
        run_job(type);
    }
    check_staging();
    assert_int_not_equal(most_staged, without);  // gathers and accumulations were staged, too
    assert_false(registered_absent);             // such memory could not be pinned
    assert_false(staged_late);                   // registering within a minibatch could fail
}

// -1: opening a domain fails; else the registration with this number fails for lack of memory.
void too_little_locked_memory_is_an_error_of_init(void **) {
    wants_local = true;
    rlimit limit{};
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    limit.rlim_cur =
        std::min<rlim_t>(limit.rlim_max, rlim_t{8} << 20);  // if it is unlimited, the error does not name it
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    for (const int registrations : {-1, 0, 1, 2}) {
        allowed = registrations;
        run_job(ODC_F32, run_out);
    }
    allowed = INT_MAX;
}

}  // namespace

int main() {
    setenv("ODC_INTERFACE", "lo", 1);
    setenv("ODC_PROVIDER", "tcp;ofi_rxm", 1);
    setenv("ODC_STAGING_BYTES", std::to_string(kStagingBytes).c_str(), 1);
    const CMUnitTest tests[] = {
        cmocka_unit_test(everybody_adds_to_one_owner_through_bounded_staging),
        cmocka_unit_test(also_where_all_local_memory_must_be_registered),
        cmocka_unit_test(too_little_locked_memory_is_an_error_of_init),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
