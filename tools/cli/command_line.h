// SPDX-License-Identifier: Apache-2.0
// What of the command line is checked before CLI11 parses it: that its verb and its options exist. CLI11 would take an unknown
// option's value for an operand, and complain about that.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace odc_tool {

// The words for CLI11, without the mark of `odc run -n N -- CMD...`, as CLI11 would hand the words after it to the parent
// command. Throws Exit{2, ...}, with the name that was probably meant.
std::vector<std::string> checked_words(const CLI::App &app, std::vector<std::string> words);

// " (see 'odc plan --help')", for the end of a sentence about a wrong command line of `app`, which is odc or a verb.
std::string see_help(const CLI::App &app);

}  // namespace odc_tool
