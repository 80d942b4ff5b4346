// SPDX-License-Identifier: Apache-2.0
// `odc run --hosts`: a job on several hosts. A start command (ssh) starts `odc run --agent` on each; the launcher sends it its
// part of the job through its standard input, and passes on what it prints. The agent runs its ranks as `odc run` does on one
// host, and ends them when its input ends: nothing keeps running on any host when the launcher is killed.
#pragma once

#include <string>
#include <vector>

namespace odc_tool {

struct HostsLaunch {
    int ranks = 0;
    std::vector<std::string> argv;
    std::string hosts;               // "a,b": the ranks are divided over them in blocks
    std::string via = "ssh {host}";  // starts the words that follow it on a host
    std::string address;             // of the first host, for the others; empty: its name
};

// Like launch() of run/launch.h, with the same statuses. Throws Exit{2, ...} for what cannot be started.
int launch_on_hosts(const HostsLaunch &wanted);

}  // namespace odc_tool
