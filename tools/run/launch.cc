// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a job on this host.
#include "run/launch.h"

#include "cli/exit.h"
#include "run/held_port.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace odc_tool {

namespace {

bool is_set(const char *name) {
    const char *value = std::getenv(name);
    return value != nullptr && *value != '\0';
}

}  // namespace

std::string random_name() {
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
        throw Exit{1, fmt::format("no random bytes for the job's name: {}", strerror(errno))};
    }
    std::string text;
    for (const unsigned char byte : bytes) {
        constexpr char kDigits[] = "0123456789abcdef";
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

std::vector<Process> rank_processes(const LocalRanks &ranks) {
    std::vector<Process> processes;
    for (int rank = ranks.first; rank < ranks.end; ++rank) {
        const std::string number = std::to_string(rank);
        const std::string size = std::to_string(ranks.size);
        processes.push_back({number, "[" + number + "] ", ranks.argv, ranks.environment, Input::Nothing});
        auto &environment = processes.back().environment;
        environment.insert(environment.end(), {{"ODC_RANK", number},
                                               {"ODC_SIZE", size},
                                               {"ODC_JOB", ranks.job},
                                               {"RANK", number},
                                               {"WORLD_SIZE", size},
                                               {"LOCAL_RANK", std::to_string(rank - ranks.first)},
                                               {"LOCAL_WORLD_SIZE", std::to_string(ranks.end - ranks.first)}});
        // As torchrun: else each rank starts a thread for each core of the host, and they crowd each other out.
        if (ranks.end - ranks.first > 1 && !is_set("OMP_NUM_THREADS")) {
            environment.emplace_back("OMP_NUM_THREADS", "1");
        }
    }
    return processes;
}

std::vector<std::pair<std::string, std::string>> torch_rendezvous(const std::string &address, int port) {
    const auto own_or = [](const char *name, const std::string &otherwise) {
        return is_set(name) && !is_set("RANK") ? std::getenv(name) : otherwise;
    };
    return {{"MASTER_ADDR", own_or("MASTER_ADDR", address)},
            {"MASTER_PORT", own_or("MASTER_PORT", std::to_string(port))}};
}

int launch(const Launch &wanted) {
    Work work;
    work.noun = "rank";
    work.output = wanted.output;
    const HeldPort torch_port;
    work.processes = rank_processes({0, wanted.ranks, wanted.ranks, random_name(), wanted.argv,
                                     torch_rendezvous("127.0.0.1", torch_port.number())});
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
    return std::any_of(kLaunchers.begin(), kLaunchers.end(),
                       [&](const auto &pair) { return is_set(pair[0]) && is_set(pair[1]); });
}

}  // namespace odc_tool
