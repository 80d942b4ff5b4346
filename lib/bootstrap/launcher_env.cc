// SPDX-License-Identifier: Apache-2.0
// Finding rank, size and job name in the environment of the launchers.
#include "bootstrap/launcher_env.h"

#include "base/error.h"
#include "base/settings.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <sstream>

#include <unistd.h>

namespace odc {
namespace {

constexpr size_t kMaxJob = 64;

bool given(const char *name) { return !environment(name).empty(); }

// The name of a job from what identifies it: as it is when short and plain, else its hash.
std::string job_name(const std::string &kind, const std::string &identity) {
    const auto plain = [](char c) {
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
               c == ':' || c == '-';
    };
    if (kind.size() + 1 + identity.size() <= kMaxJob && std::all_of(identity.begin(), identity.end(), plain)) {
        return kind + "." + identity;
    }
    std::array<unsigned char, 20> hash{};
    std::array<char, 2 * hash.size() + 1> hex{};
    crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char *>(identity.data()),
                       identity.size(), nullptr, 0);
    sodium_bin2hex(hex.data(), hex.size(), hash.data(), hash.size());
    return kind + "." + hex.data();
}

std::string join(std::initializer_list<std::string> parts) {
    std::string all;
    for (const std::string &part : parts) {
        if (!part.empty()) {
            all += (all.empty() ? "" : "-") + part;
        }
    }
    return all;
}

// Reads rank and size; `launcher` sets both, so one without the other is a broken environment.
LaunchInfo rank_and_size(const char *launcher, const char *rank_name, const char *size_name) {
    const std::string rank = environment(rank_name);
    const std::string size = environment(size_name);
    if (rank.empty() || size.empty()) {
        fail(ODC_ERROR_ARGUMENT, "{} is set but {} is not: {} sets both; unset it or give both",
             rank.empty() ? size_name : rank_name, rank.empty() ? rank_name : size_name, launcher);
    }
    LaunchInfo launch;
    launch.size_from = size_name;
    launch.size = static_cast<int>(parse_number(size_name, size, 1, std::numeric_limits<int32_t>::max()));
    launch.rank = static_cast<int>(parse_number(rank_name, rank, 0, launch.size - 1));
    return launch;
}

// True when the variable says that as many ranks are on this host as the job has.
bool all_local(const LaunchInfo &launch, const char *local_size_name) {
    const std::string local = environment(local_size_name);
    return !local.empty() && parse_number(local_size_name, local, 1, launch.size) == launch.size;
}

LaunchInfo from_odc_run() {
    LaunchInfo launch = rank_and_size("odc run", setting_row(Setting::kRank).name, setting_row(Setting::kSize).name);
    // Ranks numbered by hand may be anywhere; only odc run names the job, too.
    launch.one_host = !setting(Setting::kJob).empty();
    return launch;
}

LaunchInfo from_torchrun() {
    LaunchInfo launch = rank_and_size("torchrun", "RANK", "WORLD_SIZE");
    launch.one_host = all_local(launch, "LOCAL_WORLD_SIZE");
    // The run id of a job without --rdzv-id is always "none", so the store's address, which two jobs cannot share,
    // joins in.
    const std::string store = join({environment("MASTER_ADDR"), environment("MASTER_PORT")});
    const std::string identity =
        join({environment("TORCHELASTIC_RUN_ID"), store, environment("TORCHELASTIC_RESTART_COUNT")});
    if (!store.empty()) {
        launch.job = job_name("torchrun", identity);
    }
    return launch;
}

LaunchInfo from_open_mpi() {
    LaunchInfo launch = rank_and_size("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    launch.one_host = all_local(launch, "OMPI_COMM_WORLD_LOCAL_SIZE");
    const std::string name = environment(given("PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "OMPI_MCA_ess_base_jobid");
    // Open MPI 4 makes its 32-bit job id from host name and pid; its random transport key makes the name unique.
    const std::string key = environment("OMPI_MCA_orte_precondition_transports");
    if (!name.empty()) {
        launch.job = job_name("ompi", join({name, key}));
    }
    return launch;
}

struct Process {
    std::string name;
    long parent = 0;
    std::string start_time;
};

// From /proc/PID/stat; the name stands in parentheses and may hold any character, so the last one closes it.
Process read_process(long pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string stat{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const size_t open = stat.find('(');
    const size_t close = stat.rfind(')');
    Process process;
    if (open == std::string::npos || close == std::string::npos) {
        return process;
    }
    process.name = stat.substr(open + 1, close - open - 1);
    std::istringstream rest(stat.substr(close + 1));
    std::string word;
    for (int field = 3; rest >> word && field <= 22; ++field) {
        if (field == 4) {
            process.parent = std::stol(word);
        }
        if (field == 22) {
            process.start_time = word;
        }
    }
    return process;
}

// Hydra gives its ranks no job id, but all of a job's ranks on one host descend from one proxy.
std::string hydra_proxy() {
    long pid = getppid();
    while (pid > 0) {
        const Process process = read_process(pid);
        if (process.name == "hydra_pmi_proxy") {
            return join({std::to_string(pid), process.start_time});
        }
        pid = process.parent;
    }
    return "";
}

LaunchInfo from_mpich() {
    LaunchInfo launch = rank_and_size("MPICH", "PMI_RANK", "PMI_SIZE");
    launch.one_host = all_local(launch, "MPI_LOCALNRANKS");
    const std::string proxy = hydra_proxy();
    if (!proxy.empty()) {
        launch.job = job_name("mpich", proxy);
    }
    return launch;
}

LaunchInfo from_slurm() {
    // SLURM_NTASKS is the allocation's, which a step need not fill.
    LaunchInfo launch =
        rank_and_size("Slurm", "SLURM_PROCID", given("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
    const char *nodes_name = given("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
    const std::string nodes = environment(nodes_name);
    launch.one_host = !nodes.empty() && parse_number(nodes_name, nodes, 1, std::numeric_limits<int32_t>::max()) == 1;
    if (given("SLURM_JOB_ID")) {
        launch.job = job_name("slurm", join({environment("SLURM_JOB_ID"), environment("SLURM_STEP_ID"),
                                             environment("SLURM_RESTART_COUNT")}));
    }
    return launch;
}

struct Launcher {
    const char *first;  // the launcher has started this process when both are set
    const char *second;
    LaunchInfo (*read)();
};

// PMI_RANK alone may be Slurm's, hence hydra's own MPI_LOCALNRANKS; a batch script has SLURM_PROCID but no step, and
// is not one of the job's ranks. Torch ranks started by hand lack LOCAL_WORLD_SIZE: any real launcher beats them.
constexpr std::array<Launcher, 9> kLaunchers = {{
    {"ODC_RANK", "ODC_RANK", from_odc_run},
    {"ODC_SIZE", "ODC_SIZE", from_odc_run},
    {"RANK", "LOCAL_WORLD_SIZE", from_torchrun},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", from_open_mpi},
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", from_open_mpi},
    {"PMI_RANK", "MPI_LOCALNRANKS", from_mpich},
    {"SLURM_PROCID", "SLURM_STEP_ID", from_slurm},
    {"PMI_RANK", "PMI_SIZE", from_mpich},
    {"RANK", "WORLD_SIZE", from_torchrun},
}};

}  // namespace

LaunchInfo find_launch_info() {
    LaunchInfo launch;
    for (const Launcher &launcher : kLaunchers) {
        if (given(launcher.first) && given(launcher.second)) {
            launch = launcher.read();
            break;
        }
    }
    const std::string job = setting(Setting::kJob);
    if (!job.empty()) {
        launch.job = job_name("odc", job);
    }
    // Without a name they cannot meet on the host alone.
    launch.one_host = launch.one_host && !launch.job.empty();
    return launch;
}

}  // namespace odc
