// SPDX-License-Identifier: Apache-2.0
// Gathers and additions between hosts as providers need them that want all local memory registered (FI_MR_LOCAL: verbs,
// efa): through bounded staging. The provider here does not want that, so it is made to say that it does: this is linked
// statically, and hands the library another fi_getinfo. Ranks are threads.
#include <odc/odc.h>

#include <dlfcn.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include <cmocka.h>
}

namespace {

constexpr int kRanks = 5;
constexpr int kAdditions = 2;  // of each rank in a minibatch
constexpr size_t kStagingBytes = 256 << 10;
constexpr uint64_t kNumel = 150'003;  // many chunks, and a rest

std::atomic<bool> wants_local{false};
std::atomic<size_t> most_staged{0};  // by one library thread
decltype(&fi_getinfo) real_getinfo = nullptr;

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

// Not libfabric's, which is called by that thread, too.
bool is_ours(const void *code) {
    Dl_info here{};
    Dl_info there{};
    return dladdr(reinterpret_cast<void *>(&is_ours), &here) != 0 && dladdr(code, &there) != 0 &&
           here.dli_fbase == there.dli_fbase;
}

}  // namespace

extern "C" void *dlvsym(void *library, const char *name, const char *version) {
    static const auto next = reinterpret_cast<decltype(&dlvsym)>(dlsym(RTLD_NEXT, "dlvsym"));
    void *found = next(library, name, version);
    if (std::strcmp(name, "fi_getinfo") == 0) {
        real_getinfo = reinterpret_cast<decltype(real_getinfo)>(found);
        return reinterpret_cast<void *>(&getinfo);
    }
    return found;
}

// Staging is all that a library thread maps itself; each context has one of its own.
extern "C" void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    static const auto next = reinterpret_cast<decltype(&mmap)>(dlsym(RTLD_NEXT, "mmap"));
    static thread_local size_t staged = 0;
    if (fd == -1 && (flags & MAP_ANONYMOUS) != 0 && on_library_thread() && is_ours(__builtin_return_address(0))) {
        staged += bytes;
        size_t most = most_staged;
        while (most < staged && !most_staged.compare_exchange_weak(most, staged)) {
        }
    }
    return next(at, bytes, protection, flags, fd, offset);
}

namespace {

struct Meeting {
    std::barrier<> all{kRanks};
    std::vector<char> cards;
};

struct Seat {
    Meeting *meeting;
    int rank;
};

int all_gather(void *arg, const void *mine, void *all, size_t bytes) {
    const auto &[meeting, rank] = *static_cast<Seat *>(arg);
    if (rank == 0) {
        meeting->cards.resize(bytes * kRanks);
    }
    meeting->all.arrive_and_wait();
    std::memcpy(meeting->cards.data() + bytes * static_cast<size_t>(rank), mine, bytes);
    meeting->all.arrive_and_wait();
    std::memcpy(all, meeting->cards.data(), meeting->cards.size());
    meeting->all.arrive_and_wait();
    return 0;
}

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

// Whole numbers that every type holds, and the sums of all of them.
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

// All ranks gather from, and add to, the one that owns all.
void run_rank(Seat seat, int type) {
    const std::string host = "host " + std::to_string(seat.rank);
    odc_config config{};
    config.struct_size = sizeof(config);
    config.rank = seat.rank;
    config.size = kRanks;
    config.host = host.c_str();
    config.timeout_ms = 60'000;
    config.all_gather = all_gather;
    config.all_gather_arg = &seat;
    odc_context *context = nullptr;
    check(odc_init(&config, &context));
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
        check(odc_publish_all(context));
        for (uint64_t addition = 0; addition < kAdditions; ++addition) {
            uint64_t gather = 0;
            check(odc_gather_start(shard, full.data(), kNumel, nullptr, &gather));
            for (uint64_t i = 0; i < kNumel; ++i) {
                put(type, gradients.data(), i, value(static_cast<uint64_t>(seat.rank) + addition, i));
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

void run_job(int type) {
    Meeting meeting;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back(run_rank, Seat{&meeting, rank}, type);
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
    const size_t without = most_staged.exchange(0);
    for (const int type : {ODC_F32, ODC_F64, ODC_BF16, ODC_F16}) {
        run_job(type);
    }
    check_staging();
    assert_int_not_equal(most_staged, without);  // gathers and offers were staged, too
}

}  // namespace

int main() {
    setenv("ODC_INTERFACE", "lo", 1);
    setenv("ODC_PROVIDER", "tcp;ofi_rxm", 1);
    setenv("ODC_STAGING_BYTES", std::to_string(kStagingBytes).c_str(), 1);
    const CMUnitTest tests[] = {
        cmocka_unit_test(everybody_adds_to_one_owner_through_bounded_staging),
        cmocka_unit_test(also_where_all_local_memory_must_be_registered),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
