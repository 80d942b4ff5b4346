// SPDX-License-Identifier: Apache-2.0
// What a launcher (odc run, torchrun, mpirun, Slurm) says through the environment: this process's rank, the job's size
// and a name for the job that its ranks on one host share.
#pragma once

#include <string>

namespace odc {

struct LaunchInfo {
    std::string size_from;  // the variable that gives the size; empty: no launcher is found
    int rank = 0;
    int size = 0;
    bool one_host = false;  // the launcher says that all ranks are on this host, and `job` names the job
    // The same for all ranks of this job on this host, different for every other job: at most 64 characters of
    // [A-Za-z0-9._:-]. ODC_JOB beats the launcher's. Empty: neither gives one.
    std::string job;
};

// Asks odc run first, then torchrun, Open MPI, MPICH, Slurm, and last the bare RANK and WORLD_SIZE of torch scripts.
// Throws ODC_ERROR_ARGUMENT when a launcher's variables are present but make no sense.
LaunchInfo find_launch_info();

}  // namespace odc
