// SPDX-License-Identifier: Apache-2.0
// A job whose ranks are threads of one process, each on a host of its own (odc_config.host).
#pragma once

#include <odc/odc.h>

#include <barrier>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

class ThreadJob {
public:
    explicit ThreadJob(int ranks) : ranks_(ranks), all_(ranks) {}

    struct Member {
        ThreadJob *job;
        int rank;

        odc_status join(odc_context **context) {
            const std::string host = "host " + std::to_string(rank);
            odc_config config{};
            config.struct_size = sizeof(config);
            config.rank = rank;
            config.size = job->ranks_;
            config.host = host.c_str();
            config.timeout_ms = 60'000;
            config.all_gather = all_gather;
            config.all_gather_arg = this;
            return odc_init(&config, context);
        }
    };

private:
    static int all_gather(void *arg, const void *mine, void *all, size_t bytes) {
        const auto &[job, rank] = *static_cast<const Member *>(arg);
        return job->gather(static_cast<size_t>(rank), mine, all, bytes);
    }
    int gather(size_t rank, const void *mine, void *all, size_t bytes) {
        if (rank == 0) {
            gathered_.resize(bytes * static_cast<size_t>(ranks_));
        }
        all_.arrive_and_wait();
        std::memcpy(gathered_.data() + bytes * rank, mine, bytes);
        all_.arrive_and_wait();
        std::memcpy(all, gathered_.data(), gathered_.size());
        all_.arrive_and_wait();
        return 0;
    }

    int ranks_;
    std::barrier<> all_;
    std::vector<char> gathered_;
};
