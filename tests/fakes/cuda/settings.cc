// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>

namespace fake_cuda {

namespace {

uint64_t choose_seed() {
    // Different delays in each process, also if all have one seed.
    const uint64_t process = static_cast<uint64_t>(getpid()) << 32;
    const uint64_t otherwise = number_setting("ODC_TEST_SEED", std::random_device()());
    const uint64_t chosen = number_setting("FAKE_CUDA_SEED", otherwise ^ process);
    if (verbose()) {
        std::fprintf(stderr, "fake CUDA: FAKE_CUDA_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    }
    return chosen;
}

}  // namespace

std::string text_setting(const char *name, const char *otherwise) {
    const char *value = std::getenv(name);
    return value == nullptr || *value == '\0' ? otherwise : value;
}

uint64_t number_setting(const char *name, uint64_t otherwise) {
    const std::string value = text_setting(name, "");
    if (value.empty()) {
        return otherwise;
    }
    char *end = nullptr;
    const uint64_t number = std::strtoull(value.c_str(), &end, 0);
    if (*end != '\0') {
        std::fprintf(stderr, "fake CUDA: %s is \"%s\", which is no number\n", name, value.c_str());
        std::abort();
    }
    return number;
}

uint64_t seed() {
    static const uint64_t one = choose_seed();
    return one;
}

bool verbose() {
    static const bool one = number_setting("FAKE_CUDA_VERBOSE", 0) != 0;
    return one;
}

}  // namespace fake_cuda
