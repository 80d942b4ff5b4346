// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a job: for `odc run`, and for `odc replay` and `odc bench`.
#pragma once

#include "run/supervisor.h"

#include <string>
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

// The command of one rank; random_name makes a job's name.
Process rank_process(int rank, int size, const std::string &job, const std::vector<std::string> &argv);
// 128 random bits, so that no other job has the name.
std::string random_name();

// Whether a launcher (odc run, torchrun, mpirun, Slurm) started this process: then it joins as one rank.
bool inside_a_job();

}  // namespace odc_tool
