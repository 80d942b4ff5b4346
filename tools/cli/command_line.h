// SPDX-License-Identifier: Apache-2.0
// What of the command line is checked before CLI11 parses it: that its verb and its options exist. CLI11 would take an unknown
// option's value for an operand, and complain about that.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace odc_tool {

// The words for CLI11, without the mark of `odc run -n N -- CMD...`, as CLI11 would hand the words after it to the parent
// command. Throws Exit{2, ...}, with the name that was probably meant.
std::vector<std::string> checked_words(const CLI::App &app, std::vector<std::string> words);

// "; did you mean NAME?", if one is so near that it is spelt wrongly rather than another word: a third of its letters.
std::string did_you_mean(const std::string &word, const std::vector<std::string> &names);

// Throws Exit{2, ...} for any other value than `choices`, and names them.
CLI::Option *accept_only(CLI::Option *option, const std::vector<std::string> &choices);

// " (see 'odc plan --help')", for the end of a sentence about a wrong command line of `app`, which is odc or a verb.
std::string see_help(const CLI::App &app);

}  // namespace odc_tool
