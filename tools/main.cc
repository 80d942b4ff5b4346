// SPDX-License-Identifier: Apache-2.0
// The odc command; cli/verbs.h has its verbs. Exit status: 0, 1 when the work failed, 2 for a wrong command line or wrong
// lengths; of odc run that of its ranks.
#include "cli/command_line.h"
#include "cli/exit.h"
#include "cli/verbs.h"
#include "cli/version.h"
#include "run/descriptors.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace odc_tool {

namespace {

// ": gather, scatter-add, sync or claim", of the operand or option that a verb lacks.
std::string described(const CLI::App &verb) {
    for (const CLI::Option *option : verb.get_options()) {
        if (option->get_required() && option->count() == 0) {
            return ": " + option->get_description();
        }
    }
    return "";
}

int parse(int argc, char **argv) {
    CLI::App app("On-Demand Communication for sharded data-parallel training");
    app.name("odc");
    app.set_version_flag("--version", "odc " + version_text(), "Print the version and exit");
    app.set_help_flag("-h,--help", "Print this help and exit");
    app.require_subcommand(1);
    app.footer("See 'odc help VERB' and the man pages odc(1) and odc-VERB(1).");
    add_run(app);
    add_plan(app);
    add_replay(app);
    add_bench(app);
    add_topo(app);
    add_info(app);
    std::vector<std::string> words = checked_words(app, {argv + 1, argv + argc});
    std::reverse(words.begin(), words.end());  // as CLI11 expects
    try {
        app.parse(std::move(words));
        return 0;
    } catch (const CLI::ParseError &error) {
        if (error.get_exit_code() == 0) {
            return app.exit(error);  // --help and --version
        }
        const std::vector<CLI::App *> verbs = app.get_subcommands();  // that was parsed
        const CLI::App &verb = verbs.empty() ? app : *verbs.front();
        const bool lacking = dynamic_cast<const CLI::RequiredError *>(&error) != nullptr;
        throw Exit{2, error.what() + (lacking ? described(verb) : "") + see_help(verb)};
    }
}

int finish(int status) {
    std::cout.flush();
    if (std::fflush(stdout) != 0 || std::cout.fail()) {
        std::cerr << "odc: cannot write the output: " << std::strerror(errno) << "\n";
        return status == 0 ? 1 : status;
    }
    return status;
}

}  // namespace

}  // namespace odc_tool

int main(int argc, char **argv) {
    odc_tool::open_standard_streams();
    try {
        return odc_tool::finish(odc_tool::parse(argc, argv));
    } catch (const odc_tool::Exit &exit) {
        if (!exit.message.empty()) {
            std::cout.flush();
            std::cerr << "odc: " << exit.message << "\n";
        }
        return odc_tool::finish(exit.status);
    } catch (const std::exception &error) {
        std::cerr << "odc: " << error.what() << "\n";
        return 1;
    }
}
