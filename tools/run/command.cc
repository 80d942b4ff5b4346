// SPDX-License-Identifier: Apache-2.0
// odc run: starts the ranks of a job on this host or on several.
#include "cli/exit.h"
#include "cli/number_options.h"
#include "cli/verbs.h"
#include "run/agent.h"
#include "run/hosts.h"
#include "run/launch.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace odc_tool {

namespace {

struct RunOptions {
    HostsLaunch launch;
    bool agent = false;
};

int run(const RunOptions &options) {
    const HostsLaunch &wanted = options.launch;
    if (options.agent) {
        return serve_as_agent();
    }
    if (wanted.ranks == 0) {
        throw Exit{2, "--ranks is missing: odc run -n N says how many ranks to start (see 'odc run --help')"};
    }
    if (wanted.argv.empty()) {
        throw Exit{2, "no command to run was given (see 'odc run --help')"};
    }
    if (!wanted.hosts.empty()) {
        return launch_on_hosts(wanted);
    }
    return launch({wanted.ranks, wanted.argv, Output::Prefixed});
}

}  // namespace

void add_run(CLI::App &app) {
    auto options = std::make_shared<RunOptions>();
    HostsLaunch &launch = options->launch;
    CLI::App *verb = app.add_subcommand(
        "run", "Start a command as the N ranks of a job: odc run -n N [--hosts A,B,...] [--] CMD...");
    add_whole(verb, "-n,--ranks", launch.ranks, {1, 1 << 20}, "Number of ranks");
    CLI::Option *hosts =
        verb->add_option("--hosts", launch.hosts, "Hosts to start them on, in blocks: A,B,... (default: this one)")
            ->check([](const std::string &text) { return std::string(text.empty() ? "it names no host" : ""); });
    verb->add_option("--via", launch.via, "Command that starts another command on {host}")
        ->capture_default_str()
        ->needs(hosts);
    verb->add_option("--address", launch.address, "Address of the first host, for the others (default: its name)")
        ->needs(hosts);
    verb->add_flag("--agent", options->agent)->group("");  // started by --hosts on each host
    verb->prefix_command();
    verb->footer(
        "Each rank gets ODC_RANK, ODC_SIZE and ODC_JOB, and torch's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
        "MASTER_ADDR and MASTER_PORT (those of the environment are kept, unless RANK is set there), and OMP_NUM_THREADS=1\n"
        "where a host has several ranks and the environment does not set it. Its output lines begin with its rank.\n"
        "Rank 0 reads the standard input of odc run unless that is a terminal; the others read nothing. Signals are\n"
        "passed on.\n"
        "When a rank fails, the others have 2 s, then get SIGTERM, and SIGKILL 2 s later; the exit status is that of\n"
        "the first rank that failed (128 + signal if it was killed).\n"
        "With --hosts each host must have odc and the command at the same paths, and the directory; no rank reads\n"
        "standard input. Ranks meet at the first host by ODC_RENDEZVOUS with a random ODC_SECRET, and get the other\n"
        "ODC_* settings of odc run. When odc run ends, so do the ranks on all hosts.");
    verb->callback([verb, options] {
        options->launch.argv = verb->remaining();
        if (const int status = run(*options); status != 0) {
            throw Exit{status, ""};
        }
    });
}

}  // namespace odc_tool
