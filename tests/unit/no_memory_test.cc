// SPDX-License-Identifier: Apache-2.0
// When an allocation fails a call returns a status and an error text and has changed nothing, whichever allocation it was. In
// GPU memory the job may have failed instead, for good.
#include <odc/odc.h>

#include <atomic>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <future>
#include <new>
#include <string>
#include <thread>

#include <unistd.h>

extern "C" {
#include <cmocka.h>

#include "gpu.h"
}

namespace {

thread_local bool exhausted = false;
thread_local long allocations_left = -1;  // allocations before one fails; -1: none fails

}  // namespace

// Inlined, gcc takes these for mismatched ones (-Wmismatched-new-delete).
[[gnu::noinline]] void *operator new(size_t bytes) {
    const bool fails = allocations_left >= 0 && allocations_left-- == 0;
    void *memory = exhausted || fails ? nullptr : std::malloc(bytes);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}
[[gnu::noinline]] void operator delete(void *memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void *memory, size_t) noexcept { std::free(memory); }

namespace {

void test_no_memory_for_an_error_text(void **) {
    exhausted = true;
    const odc_status status = odc_plan(nullptr, nullptr, nullptr, nullptr);
    exhausted = false;
    assert_int_equal(status, ODC_ERROR_NO_MEMORY);
    assert_non_null(std::strstr(odc_last_error(), "no memory left"));
    assert_int_equal(odc_plan(nullptr, nullptr, nullptr, nullptr), ODC_ERROR_ARGUMENT);
    assert_null(std::strstr(odc_last_error(), "no memory left"));
}

enum class Tried { Publish, PublishAll, Gather, ScatterAdd, ScatterAddStart, Wait, Sync, Calls };

constexpr uint64_t kNumel = 8;
constexpr int64_t kTimeoutMs = 20000;

// A buffer of kNumel f32, in the memory where shards are.
class Buffer {
public:
    ~Buffer() {
        if (tests_gpu()) {
            gpu_free(start);
        }
    }

private:
    float on_host_[kNumel] = {};

public:
    void *const start = tests_gpu() ? gpu_new(sizeof(on_host_)) : on_host_;
};

void copy(void *to, const void *from, void (*by_gpu)(void *, const void *, size_t)) {
    constexpr size_t kBytes = kNumel * sizeof(float);
    tests_gpu() ? by_gpu(to, from, kBytes) : static_cast<void>(std::memcpy(to, from, kBytes));
}

// A job of one rank, in one of whose calls an allocation fails.
class Job {
public:
    Job(Tried tried, long allocations) : tried_(tried), allocations_(allocations) {
        odc_config config{};
        config.device = gpu_of(0);
        config.timeout_ms = kTimeoutMs;
        config.struct_size = sizeof(config);
        config.size = 1;
        const std::string job = "no_memory_unit_test." + std::to_string(getpid());
        config.job = job.c_str();
        assert_int_equal(odc_init(&config, &context_), ODC_OK);
        const char *names[] = {"a", "b"};
        for (int i = 0; i < 2; ++i) {
            odc_shard_desc desc{};
            desc.struct_size = sizeof(desc);
            desc.name = names[i];
            desc.numel = kNumel;
            desc.parameter_type = desc.gradient_type = ODC_F32;
            desc.memory = tests_gpu() ? ODC_GPU_MEMORY : ODC_HOST_MEMORY;
            assert_int_equal(odc_register_shard(context_, &desc, &shards_[i]), ODC_OK);
        }
    }
    ~Job() {
        odc_destroy(context_);
        if (tests_gpu()) {
            gpu_wait(nullptr);  // work that a failed call enqueued uses the buffers
        }
    }

    // Returns whether an allocation failed. Every failed call is made again; then the sums are as if none had failed, unless
    // the job failed.
    bool run() {
        const float ones[kNumel] = {1, 1, 1, 1, 1, 1, 1, 1};
        uint64_t operation = 0;
        copy(ones_.start, ones, gpu_write);
        call(Tried::Publish, [&] { return odc_publish(shards_[0], nullptr); });
        call(Tried::PublishAll, [&] { return odc_publish_all(context_, nullptr); });
        call(Tried::Gather, [&] { return odc_gather(shards_[0], full_.start, kNumel, nullptr); });
        call(Tried::ScatterAdd, [&] { return odc_scatter_add(shards_[0], ones_.start, kNumel, nullptr); });
        call(Tried::ScatterAddStart,
             [&] { return odc_scatter_add_start(shards_[0], ones_.start, kNumel, nullptr, &operation); });
        call(Tried::Wait, [&] { return odc_wait(context_, operation); });
        call(Tried::Sync, [&] { return odc_minibatch_sync(context_); });
        check_sums();
        return failed_;
    }

private:
    template <class Call>
    void call(Tried which, const Call &made) {
        odc_status status = ODC_ERROR_NO_MEMORY;
        if (fault_ != ODC_OK && which != Tried::Sync) {
            return;
        }
        if (which == tried_) {
            allocations_left = allocations_;
            status = made();
            failed_ = allocations_left == -1;
            fault_ = tests_gpu() && status == ODC_ERROR_DEVICE ? status : ODC_OK;
            allocations_left = -1;
        }
        if (status == ODC_ERROR_NO_MEMORY) {
            status = made();
        }
        assert_int_equal(status, fault_);
    }
    void check_sums() {
        if (fault_ != ODC_OK) {
            return;
        }
        float sums[kNumel];
        odc_slice slice{};
        slice.struct_size = sizeof(slice);
        assert_int_equal(odc_get_slice(shards_[0], &slice), ODC_OK);
        copy(sums, slice.gradients, gpu_read);
        for (const float sum : sums) {
            assert_true(sum == 2);
        }
    }

    Tried tried_;
    long allocations_;
    bool failed_ = false;
    odc_status fault_ = ODC_OK;  // the status that the job failed with
    Buffer ones_;
    Buffer full_;
    odc_context *context_ = nullptr;
    odc_shard *shards_[2] = {};
};

void test_a_call_without_memory_changes_nothing(void **) {
    int failures = 0;
    for (int tried = 0; tried < static_cast<int>(Tried::Calls); ++tried) {
        long allocations = 0;
        while (Job(static_cast<Tried>(tried), allocations).run()) {
            ++allocations;
        }
        failures += static_cast<int>(allocations);
    }
    assert_in_range(failures, 5, 1000);
}

odc_context *join_two(int32_t rank, const std::string &job) {
    odc_config config{};
    config.struct_size = sizeof(config);
    config.rank = rank;
    config.size = 2;
    config.job = job.c_str();
    config.timeout_ms = kTimeoutMs;
    odc_context *context = nullptr;
    assert_int_equal(odc_init(&config, &context), ODC_OK);
    return context;
}

odc_context *join_two(int32_t rank, const std::string &job, odc_shard **shard) {
    odc_context *context = join_two(rank, job);
    const uint64_t slices[] = {0, kNumel};
    odc_shard_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.name = "of rank 1";
    desc.numel = kNumel;
    desc.parameter_type = desc.gradient_type = ODC_F32;
    desc.slices = slices;
    assert_int_equal(odc_register_shard(context, &desc, shard), ODC_OK);
    return context;
}

// Registers `count` shards, which the other rank uses, too. With `allocations` >= 0 that allocation fails and the call is
// repeated. Returns whether one failed.
bool register_and_use(int32_t rank, const std::string &job, size_t count, long allocations) {
    odc_context *context = join_two(rank, job);
    const char *names[] = {"a", "b", "c"};
    odc_shard_desc descs[3]{};
    odc_shard *shards[3]{};
    for (size_t i = 0; i < count; ++i) {
        descs[i].struct_size = sizeof(descs[i]);
        descs[i].name = names[i];
        descs[i].numel = kNumel;
        descs[i].parameter_type = descs[i].gradient_type = ODC_F32;
    }
    const auto register_all = [&] {
        return count == 1 ? odc_register_shard(context, descs, shards)
                          : odc_register_shards(context, descs, count, shards);
    };
    allocations_left = allocations;
    odc_status status = register_all();
    const bool failed = allocations >= 0 && allocations_left == -1;
    allocations_left = -1;
    if (status == ODC_ERROR_NO_MEMORY) {
        assert_true(failed);
        status = register_all();
    }
    assert_int_equal(status, ODC_OK);
    assert_int_equal(odc_publish_all(context, nullptr), ODC_OK);
    for (size_t i = 0; i < count; ++i) {
        float full[kNumel] = {1, 1, 1, 1, 1, 1, 1, 1};
        assert_int_equal(odc_scatter_add(shards[i], full, kNumel, nullptr), ODC_OK);
        assert_int_equal(odc_gather(shards[i], full, kNumel, nullptr), ODC_OK);
        assert_true(full[0] == 0 && full[kNumel - 1] == 0);
    }
    assert_int_equal(odc_minibatch_sync(context), ODC_OK);
    for (size_t i = 0; i < count; ++i) {
        odc_slice slice{};
        slice.struct_size = sizeof(slice);
        assert_int_equal(odc_get_slice(shards[i], &slice), ODC_OK);
        assert_int_equal(slice.numel, kNumel / 2);
        assert_true(static_cast<float *>(slice.gradients)[0] == 2);
    }
    odc_destroy(context);
    return failed;
}

void test_registering_without_memory_shows_peers_nothing(void **) {
    for (const size_t count : {1, 3}) {
        long allocations = 0;
        for (bool failed = true; failed; ++allocations) {
            const std::string job = "no_memory_unit_test.register." + std::to_string(getpid()) + "." +
                                    std::to_string(count) + "." + std::to_string(allocations);
            std::thread peer([&] { register_and_use(1, job, count, -1); });
            failed = register_and_use(0, job, count, allocations);
            peer.join();
        }
        assert_in_range(allocations, 10, 10000);
    }
}

// The gather waits for rank 1's publish, and has no memory for the error text.
void test_a_wait_without_memory_can_be_made_again(void **) {
    const std::string job = "no_memory_unit_test.two." + std::to_string(getpid());
    std::promise<void> refused;
    std::thread other([&] {
        odc_shard *shard = nullptr;
        odc_context *context = join_two(1, job, &shard);
        refused.get_future().wait();
        assert_int_equal(odc_publish(shard, nullptr), ODC_OK);
        assert_int_equal(odc_minibatch_sync(context), ODC_OK);
        odc_destroy(context);
    });
    odc_shard *shard = nullptr;
    odc_context *context = join_two(0, job, &shard);
    float ones[kNumel] = {1, 1, 1, 1, 1, 1, 1, 1};
    uint64_t operation = 0;
    assert_int_equal(odc_scatter_add_start(shard, ones, kNumel, nullptr, &operation), ODC_OK);
    exhausted = true;
    const odc_status status = odc_wait(context, operation);
    exhausted = false;
    refused.set_value();
    assert_int_equal(status, ODC_ERROR_NO_MEMORY);
    assert_int_equal(odc_wait(context, operation), ODC_OK);
    assert_int_equal(odc_minibatch_sync(context), ODC_OK);
    odc_destroy(context);
    other.join();
}

int asks(void *refused) { return static_cast<std::atomic<bool> *>(refused)->load() ? 1 : 0; }

// Rank 1 joins, and one of its first allocations fails: it reports that, or joins; it is not taken for a foreign process.
void test_a_rank_without_memory_is_on_its_host_still(void **) {
    constexpr long kFirst = 12;
    for (long allocation = 0; allocation < kFirst; ++allocation) {
        const std::string job =
            "no_memory_unit_test.joins." + std::to_string(getpid()) + "." + std::to_string(allocation);
        std::atomic<bool> refused{false};
        const auto join = [&](int32_t rank, odc_context **context) {
            odc_config config{};
            config.struct_size = sizeof(config);
            config.rank = rank;
            config.size = 2;
            config.job = job.c_str();
            config.timeout_ms = kTimeoutMs;
            config.interrupted = asks;
            config.interrupted_arg = &refused;
            return odc_init(&config, context);
        };
        std::string error;
        odc_status status = ODC_OK;
        odc_context *other = nullptr;
        std::thread rank_1([&] {
            allocations_left = allocation;
            status = join(1, &other);
            allocations_left = -1;
            error = odc_last_error();
            refused = status != ODC_OK;
        });
        odc_context *context = nullptr;
        const odc_status first = join(0, &context);
        rank_1.join();
        if (status != ODC_OK && status != ODC_ERROR_NO_MEMORY) {
            fail_msg("allocation %ld: %s", allocation, error.c_str());
        }
        assert_int_equal(first == ODC_OK, status == ODC_OK);
        odc_destroy(other);
        odc_destroy(context);
    }
}

}  // namespace

int main() {
    if (tests_gpu()) {
        gpu_choose(0);
        const CMUnitTest on_a_gpu[] = {cmocka_unit_test(test_a_call_without_memory_changes_nothing)};
        return cmocka_run_group_tests(on_a_gpu, nullptr, nullptr);
    }
    const CMUnitTest tests[] = {cmocka_unit_test(test_no_memory_for_an_error_text),
                                cmocka_unit_test(test_a_call_without_memory_changes_nothing),
                                cmocka_unit_test(test_registering_without_memory_shows_peers_nothing),
                                cmocka_unit_test(test_a_wait_without_memory_can_be_made_again),
                                cmocka_unit_test(test_a_rank_without_memory_is_on_its_host_still)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
