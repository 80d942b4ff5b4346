// SPDX-License-Identifier: Apache-2.0
// The options of `odc bench`.
#pragma once

#include <odc/odc.h>

#include <cstdint>
#include <string>

namespace odc_tool {

struct BenchOptions {
    std::string operation;
    int ranks = 0;       // 0: the job's, or 2
    uint64_t bytes = 0;  // 0: 64 MiB, on GPUs 256 MiB, or 64 KiB for sync; none for claim
    std::string type = "f32";
    std::string transport;  // empty: any
    std::string memory = "host";
    std::string active;      // "all" or "one"; empty: all
    std::string peer;        // "nccl"; empty: none
    std::string sum;         // "exact"; empty: the default
    uint64_t sample_ms = 0;  // 0: 10, on GPUs 100
    int pairs = 0;           // 0: 31, or 1001 for sync
    bool json = false;

    odc_type element_type() const;
    double sample_seconds() const { return static_cast<double>(sample_ms) * 1e-3; }
    bool on_gpus() const { return memory == "cuda"; }
    bool exact() const { return sum == "exact"; }
    bool one_active() const { return active == "one"; }
};

}  // namespace odc_tool
