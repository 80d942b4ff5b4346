// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a job on this host.
#include "run/launch.h"

#include "cli/exit.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace odc_tool {

std::string random_name() {
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
        throw Exit{1, std::string("getrandom: ") + strerror(errno)};
    }
    std::string text;
    for (const unsigned char byte : bytes) {
        constexpr char kDigits[] = "0123456789abcdef";
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

Process rank_process(int rank, int size, const std::string &job, const std::vector<std::string> &argv) {
    const std::string number = std::to_string(rank);
    return {number,
            "[" + number + "] ",
            argv,
            {{"ODC_RANK", number}, {"ODC_SIZE", std::to_string(size)}, {"ODC_JOB", job}},
            Input::Nothing};
}

int launch(const Launch &wanted) {
    if (wanted.argv.empty()) {
        throw Exit{2, "no command to run was given"};
    }
    const std::string job = random_name();
    Work work;
    work.noun = "rank";
    work.output = wanted.output;
    for (int rank = 0; rank < wanted.ranks; ++rank) {
        work.processes.push_back(rank_process(rank, wanted.ranks, job, wanted.argv));
    }
    work.processes[0].input = Input::Ours;
    Supervisor supervisor(work);
    supervisor.start();
    supervisor.supervise();
    return supervisor.status();
}

bool inside_a_job() {
    // The variables of the library's launchers (kLaunchers in lib/bootstrap/launcher_env.cc): a Slurm batch script, or a stray
    // RANK, does not start ranks.
    constexpr std::array<std::array<const char *, 2>, 9> kLaunchers = {{
        {"ODC_RANK", "ODC_RANK"},
        {"ODC_SIZE", "ODC_SIZE"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK"},
        {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
        {"RANK", "LOCAL_WORLD_SIZE"},
        {"RANK", "WORLD_SIZE"},
        {"PMI_RANK", "MPI_LOCALNRANKS"},
        {"PMI_RANK", "PMI_SIZE"},
        {"SLURM_PROCID", "SLURM_STEP_ID"},
    }};
    const auto given = [](const char *name) {
        const char *value = std::getenv(name);
        return value != nullptr && *value != '\0';
    };
    return std::any_of(kLaunchers.begin(), kLaunchers.end(),
                       [&](const auto &pair) { return given(pair[0]) && given(pair[1]); });
}

}  // namespace odc_tool
