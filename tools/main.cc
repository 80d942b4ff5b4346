// SPDX-License-Identifier: Apache-2.0
// The odc command: one file per verb (cli/verbs.h). Exit status: 0, 1 when the work failed, 2 for a wrong command line or wrong
// lengths.
#include "cli/exit.h"
#include "cli/verbs.h"
#include "cli/version.h"
#include "run/descriptors.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace odc_tool {

namespace {

void check_verb(const CLI::App &app, const char *word) {
    std::string verbs;
    for (const CLI::App *verb : app.get_subcommands([](const CLI::App *) { return true; })) {
        if (verb->get_name() == word) {
            return;
        }
        verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
    }
    throw Exit{2, std::string("there is no verb '") + word + "'; the verbs are " + verbs + "; see 'odc --help'"};
}

// The command line, last word first as CLI11 expects. For `odc run -n N -- CMD...` without the mark, as CLI11 would hand the
// words after it to the parent command.
std::vector<std::string> reversed_words(int argc, char **argv) {
    std::vector<std::string> words(argv + 1, argv + argc);
    size_t mark = 1;  // after the options, each of which has a value
    while (mark < words.size() && words[mark].starts_with("-") && words[mark] != "--") {
        mark += words[mark].find('=') == std::string::npos && (words[mark].starts_with("--") || words[mark] == "-n")
                    ? 2
                    : 1;
    }
    if (mark < words.size() && words[0] == "run" && words[mark] == "--") {
        words.erase(words.begin() + static_cast<std::ptrdiff_t>(mark));
    }
    std::reverse(words.begin(), words.end());
    return words;
}

int parse(int argc, char **argv) {
    CLI::App app("On-Demand Communication for sharded data-parallel training");
    app.name("odc");
    app.set_version_flag("--version", "odc " + version_text(), "Print the version and exit");
    app.set_help_flag("-h,--help", "Print this help and exit");
    app.require_subcommand(1);
    app.footer("See 'odc VERB --help' and the man pages odc(1) and odc-VERB(1).");
    add_run(app);
    add_plan(app);
    add_replay(app);
    add_bench(app);
    add_topo(app);
    add_info(app);
    if (argc > 1 && argv[1][0] != '-') {
        check_verb(app, argv[1]);
    }
    try {
        app.parse(reversed_words(argc, argv));
        return 0;
    } catch (const CLI::ParseError &error) {
        if (error.get_exit_code() == 0) {
            return app.exit(error);  // --help and --version
        }
        throw Exit{2, std::string(error.what()) + " (see '--help')"};
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
