// SPDX-License-Identifier: Apache-2.0
// odc run: starts the ranks of a job on this host.
#include "launch.h"
#include "numbers.h"
#include "verbs.h"

#include <memory>

namespace odc_tool {

void add_run(CLI::App &app) {
    auto ranks = std::make_shared<int>(0);
    CLI::App *verb =
        app.add_subcommand("run", "Start a command as the N ranks of a job on this host: odc run -n N [--] CMD...");
    add_whole(verb, "-n,--ranks", *ranks, {1, 1 << 20}, "How many ranks to start")->required();
    verb->prefix_command();
    verb->footer(
        "Each rank gets ODC_RANK, ODC_SIZE and ODC_JOB. Its output lines begin with its rank. Rank 0 reads our\n"
        "standard input unless that is a terminal; the others read nothing. Signals are passed on. When a rank\n"
        "fails, the others have 2 s, then get SIGTERM, and SIGKILL 2 s later; the status is that of the first\n"
        "rank that failed (128 + signal if it was killed).");
    verb->callback([verb, ranks] {
        Launch wanted;
        wanted.ranks = *ranks;
        wanted.argv = verb->remaining();
        if (!wanted.argv.empty() && wanted.argv.front().starts_with("-")) {
            throw Exit{2, "odc run has no option '" + wanted.argv.front() + "'"};
        }
        if (const int status = launch(wanted); status != 0) {
            throw Exit{status, ""};
        }
    });
}

}  // namespace odc_tool
