// SPDX-License-Identifier: Apache-2.0
// Shared by the tests: a test is a function that throws on failure, and ranks are threads of this process.
#ifndef TESTS_TESTING_H
#define TESTS_TESTING_H
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <odc/odc.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define REQUIRE(condition) require((condition), #condition, __FILE__, __LINE__)

inline void require(bool condition, const std::string &text, const char *file, int line) {
    if (!condition) {
        throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": not so: " + text);
    }
}

#define REQUIRE_SAYS(message, ...) require_says(message, {__VA_ARGS__}, __FILE__, __LINE__)

// One clear sentence that contains these texts.
inline void require_says(const std::string &message, const std::vector<std::string> &texts, const char *file,
                         int line) {
    require(message.size() > 15 && message.find('\n') == std::string::npos, "one clear sentence: " + message, file,
            line);
    for (const std::string &text : texts) {
        require(message.find(text) != std::string::npos, "\"" + text + "\" is in: " + message, file, line);
    }
}

#define REQUIRE_THROWS(status, call, ...)                                                  \
    require_says(thrown_by(                                                                \
                     status, [&] { static_cast<void>(call); }, #call, __FILE__, __LINE__), \
                 {__VA_ARGS__}, __FILE__, __LINE__)

template <class Body>
std::string thrown_by(int32_t status, Body body, const char *call, const char *file, int line) {
    try {
        body();
    } catch (const odc::Error &error) {
        require(error.status() == status,
                std::string(call) + " throws " + odc_status_string(status) + ", not: " + error.what(), file, line);
        require(error.is_job_error() == (status <= ODC_ERROR_PEER_LOST), std::string(call) + " is a job error", file,
                line);
        return error.what();
    }
    require(false, std::string(call) + " throws", file, line);
    return "";
}

inline odc::Config config_of(int32_t rank, int32_t size, const std::string &job) {
    odc::Config config;
    config.rank = rank;
    config.size = size;
    config.job = job;
    config.timeout = std::chrono::seconds(30);
    return config;
}

// A unique job name.
inline std::string new_job() {
    static std::atomic<int> number{0};
    return "cpp-test-" + std::to_string(getpid()) + "-" + std::to_string(++number) + "-" +
           std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Each rank is a thread with a config; reports the first failure.
template <class Body>
void run_configs(int32_t size, Body body) {
    const std::string job = new_job();
    std::vector<std::exception_ptr> failed(static_cast<size_t>(size));
    std::vector<std::thread> ranks;
    for (int32_t rank = 0; rank < size; ++rank) {
        ranks.emplace_back([&, rank] {
            try {
                body(config_of(rank, size, job));
            } catch (...) {
                failed[static_cast<size_t>(rank)] = std::current_exception();
            }
        });
    }
    for (std::thread &rank : ranks) {
        rank.join();
    }
    // Another rank's error for an aborted job says less.
    for (const bool job_errors : {false, true}) {
        for (const std::exception_ptr &one : failed) {
            try {
                if (one) {
                    std::rethrow_exception(one);
                }
            } catch (const odc::Error &error) {
                if (error.is_job_error() == job_errors) {
                    throw;
                }
            }
        }
    }
}

// Each rank is a thread with a context.
template <class Body>
void run(int32_t size, Body body) {
    run_configs(size, [&](const odc::Config &config) {
        odc::Context context = odc::Context::join(config);
        body(context);
    });
}

// Waits for another thread, which may have failed.
template <class Condition>
void await(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition()) {
        REQUIRE(std::chrono::steady_clock::now() < deadline);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

inline odc::Context alone() { return odc::Context::join(config_of(0, 1, "")); }

// ODC_TEST_SEED, or a random seed; printed.
inline uint64_t test_seed() {
    const char *given = std::getenv("ODC_TEST_SEED");
    const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : now >> 8;
    std::printf("seed: ODC_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return seed;
}

// Pseudo-random numbers for a purpose.
inline uint64_t mix(std::initializer_list<uint64_t> words) {
    uint64_t state = 0x9e3779b97f4a7c15;
    for (const uint64_t word : words) {
        state = (state ^ word) + 0x9e3779b97f4a7c15;
        state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
        state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
        state ^= state >> 31;
    }
    return state;
}

using Test = std::pair<const char *, void (*)()>;
#define TEST(name) \
    { #name, name }

// The named ones, or all.
inline int run_tests(const char *what, const std::vector<Test> &tests, int argc, char **argv) {
    int passed = 0, failed = 0;
    for (const auto &[name, test] : tests) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; ++i) {
            wanted = wanted || std::strcmp(argv[i], name) == 0;
        }
        if (!wanted) {
            continue;
        }
        try {
            test();
            ++passed;
        } catch (const std::exception &error) {
            std::printf("FAILED: %s: %s\n", name, error.what());
            ++failed;
        }
    }
    std::printf("%d passed, %d failed in %s\n", passed, failed, what);
    return failed == 0 && passed > 0 ? 0 : 1;
}

#endif
