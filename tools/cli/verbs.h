// SPDX-License-Identifier: Apache-2.0
// The verbs of the odc command. Each function adds its subcommand, whose callback does the work and throws Exit
// to exit with a status other than 0.
#pragma once

namespace CLI {
class App;
}

namespace odc_tool {

void add_run(CLI::App &app);
void add_plan(CLI::App &app);
void add_replay(CLI::App &app);
void add_bench(CLI::App &app);
void add_topo(CLI::App &app);
void add_info(CLI::App &app);

}  // namespace odc_tool
