// SPDX-License-Identifier: Apache-2.0
// The agent: receives its part of the job and supervises its ranks.
#include "run/agent.h"

#include "cli/exit.h"
#include "cli/json.h"
#include "cli/version.h"
#include "run/held_port.h"
#include "run/launch.h"
#include "run/supervisor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

namespace odc_tool {

namespace {

constexpr const char *kGreeting = "odc-agent";

// The messages of agents count among what builds exchange: raise lib/base/layout_version.cc with every change.
std::string agent_line(const std::string &message) {
    return fmt::format("{} {} {}", kGreeting, layout_version_text(), message);
}

// Reads the first line of the input, and no byte more.
std::string read_order() {
    std::string line;
    for (char byte = 0; byte != '\n';) {
        const ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got <= 0) {
            throw Exit{1, ""};  // the launcher has gone
        }
        line += byte;
    }
    if (line.starts_with("signal ")) {
        throw Exit{1, ""};
    }
    return line;
}

AgentPart hear_part() {
    try {
        const Json json = parse_json(read_order());
        AgentPart part;
        json.at("first").get_to(part.first);
        json.at("end").get_to(part.end);
        json.at("size").get_to(part.size);
        json.at("job").get_to(part.job);
        json.at("directory").get_to(part.directory);
        json.at("argv").get_to(part.argv);
        json.at("environment").get_to(part.environment);
        return part;
    } catch (const Json::exception &error) {
        throw Exit{2, fmt::format("odc run --agent is for odc run --hosts only: {}", error.what())};
    }
}

}  // namespace

std::string write_part(const AgentPart &part) {
    return line_text({{"first", part.first},
                      {"end", part.end},
                      {"size", part.size},
                      {"job", part.job},
                      {"argv", part.argv},
                      {"directory", part.directory},
                      {"environment", part.environment}});
}

std::optional<AgentMessage> read_agent_message(const std::string &line) {
    std::istringstream words(line);
    std::string greeting;
    std::string version;
    std::string kind;
    int number = 0;
    if (!(words >> greeting >> version >> kind >> number) || greeting != kGreeting) {
        return std::nullopt;
    }
    if (const std::string ours = layout_version_text(); version != ours) {
        throw Exit{1, fmt::format("a host has odc {}, this is {}; install one build on all", version, ours)};
    }
    AgentMessage message{kind == "ready" ? AgentMessage::Kind::Ready : AgentMessage::Kind::Failed, number, 0, ""};
    words >> message.second >> std::ws;
    std::getline(words, message.how);
    return message;
}

int serve_as_agent() {
    const HeldPort port;
    const HeldPort torch_port;
    fmt::print("{}\n", agent_line(fmt::format("ready {} {}", port.number(), torch_port.number())));
    std::fflush(stdout);
    const AgentPart part = hear_part();
    if (chdir(part.directory.c_str()) != 0) {
        throw Exit{1, fmt::format("cannot run in '{}': {}", part.directory, strerror(errno))};
    }
    Work work;
    work.noun = "rank";
    work.orders = STDIN_FILENO;
    work.processes = rank_processes({part.first, part.end, part.size, part.job, part.argv, part.environment});
    Supervisor *told = nullptr;
    work.on_failure = [&](int status, const Failure &failure) {
        told->output().report(agent_line(fmt::format("failed {} {} {}", status, failure.label, failure.how)));
    };
    Supervisor supervisor(work);
    told = &supervisor;
    supervisor.start();
    supervisor.supervise();
    return supervisor.status();
}

}  // namespace odc_tool
