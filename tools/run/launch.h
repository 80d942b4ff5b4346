// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a job: for `odc run`, and for `odc replay` and `odc bench`.
#pragma once

#include "run/supervisor.h"

#include <string>
#include <utility>
#include <vector>

namespace odc_tool {

struct Launch {
    int ranks = 1;
    std::vector<std::string> argv;  // searched in PATH; "/proc/self/exe" starts this command again
    Output output = Output::Prefixed;
};

// On this host. Returns the exit status of the first rank that failed (128 + signal if it was killed), 0 if none did. When one
// fails the others have 2 s to report errors, then get SIGTERM, and SIGKILL 2 s later. Signals sent to this process are passed
// on to the ranks' process groups. Throws Exit when a rank cannot be started (127: command not found). Must be called from the
// process's main thread.
int launch(const Launch &wanted);

// The ranks of one host.
struct LocalRanks {
    int first;  // ranks first..end-1
    int end;
    int size;  // ranks of the job
    std::string job;
    std::vector<std::string> argv;
    std::vector<std::pair<std::string, std::string>> environment;  // of each, besides its place
};

// Their commands, with their places in the job in the variables of libodc and of torch.distributed.
std::vector<Process> rank_processes(const LocalRanks &ranks);
// MASTER_ADDR and MASTER_PORT for torch.distributed: those of this process, unless RANK says that they belong to a job of which
// it is itself a rank, else these.
std::vector<std::pair<std::string, std::string>> torch_rendezvous(const std::string &address, int port);
// 128 random bits, so that no other job has the name.
std::string random_name();

// Whether a launcher (odc run, torchrun, mpirun, Slurm) started this process: then it joins as one rank.
bool inside_a_job();

}  // namespace odc_tool
