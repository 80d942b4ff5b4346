// SPDX-License-Identifier: Apache-2.0
// The agent of a host (run/hosts.h) and the line protocol between it and its launcher. Agent: "odc-agent VERSION ready PORT
// TORCH_PORT", which are free on its host until it ends, and for each rank that failed "odc-agent VERSION failed STATUS RANK HOW";
// no line of a rank begins so. Launcher: its part of the job as JSON, then orders (run/orders.h).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace odc_tool {

struct AgentMessage {
    enum class Kind { Ready, Failed };
    Kind kind;
    int number;       // port, or status
    int second;       // MASTER_PORT, of the first host's; or the rank
    std::string how;  // "exited with status 7"; empty: nothing to say
};

// Nothing if the line is not an agent's. Throws Exit if it is from another version.
std::optional<AgentMessage> read_agent_message(const std::string &line);

struct AgentPart {
    int first = 0;  // ranks first..end-1
    int end = 0;
    int size = 0;  // ranks of the job
    std::string job;
    std::string directory;  // to run in
    std::vector<std::string> argv;
    std::vector<std::pair<std::string, std::string>> environment;
};

std::string write_part(const AgentPart &part);

// On a host: receives its part of a job and runs it. Returns the status of the first of its ranks that failed.
int serve_as_agent();

}  // namespace odc_tool
