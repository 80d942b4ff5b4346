// SPDX-License-Identifier: Apache-2.0
// Finds unknown verbs and options, and the known ones that are spelt like them.
#include "cli/command_line.h"

#include "cli/exit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>

namespace odc_tool {

namespace {

// How many letters must be inserted, removed, replaced or swapped with their neighbour to make one word of the other.
size_t edit_distance(const std::string &a, const std::string &b) {
    std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); ++i) {
        for (size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                table[i][j] = i + j;
                continue;
            }
            const size_t replaced = table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            table[i][j] = std::min({replaced, table[i - 1][j] + 1, table[i][j - 1] + 1});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                table[i][j] = std::min(table[i][j], table[i - 2][j - 2] + 1);
            }
        }
    }
    return table[a.size()][b.size()];
}

const CLI::App &find_verb(const CLI::App &app, const std::string &word) {
    std::vector<std::string> names;
    for (const CLI::App *verb : app.get_subcommands([](const CLI::App *) { return true; })) {
        if (verb->get_name() == word) {
            return *verb;
        }
        names.push_back(verb->get_name());
    }
    throw Exit{2, fmt::format("there is no verb '{}'{} (the verbs are {}; see 'odc --help')", word,
                              did_you_mean(word, names), fmt::join(names, ", "))};
}

std::string command_of(const CLI::App &app) { return app.get_parent() == nullptr ? "odc" : "odc " + app.get_name(); }

// The option in "--name=value" or "-nvalue".
std::string option_name(const std::string &word) {
    return word.starts_with("--") ? word.substr(0, word.find('=')) : word.substr(0, 2);
}

// The long name of what another verb calls `name`: --ranks, which only odc run calls -n, too.
std::string long_name(const CLI::App &app, const std::string &name) {
    const CLI::App *odc = app.get_parent() == nullptr ? &app : app.get_parent();
    for (const CLI::App *verb : odc->get_subcommands([](const CLI::App *) { return true; })) {
        const CLI::Option *option = verb->get_option_no_throw(name);
        if (option != nullptr && !option->get_lnames().empty()) {
            return "--" + option->get_lnames().front();
        }
    }
    return name;
}

[[noreturn]] void refuse_option(const CLI::App &app, const std::string &name) {
    std::vector<std::string> names;
    for (const CLI::Option *option : app.get_options()) {
        for (const std::string &known : option->get_lnames()) {
            if (!option->get_group().empty()) {  // those are not for users
                names.push_back("--" + known);
            }
        }
    }
    throw Exit{2, fmt::format("{} has no option '{}'{}{}", command_of(app), name,
                              did_you_mean(long_name(app, name), names), see_help(app))};
}

// Checks the options from `at` on; returns the place of the first word that is neither an option nor a value of one, for odc
// and for a verb that starts a command, whose options follow; otherwise of the end or of "--".
size_t check_options(const CLI::App &app, const std::vector<std::string> &words, size_t at) {
    const bool stops = app.get_parent() == nullptr || app.get_prefix_command();
    for (; at < words.size() && words[at] != "--"; ++at) {
        const std::string &word = words[at];
        if (word.size() < 2 || word[0] != '-') {
            if (stops) {
                break;
            }
            continue;
        }
        const std::string name = option_name(word);
        const CLI::Option *option = app.get_option_no_throw(name);
        if (option == nullptr) {
            refuse_option(app, name);
        }
        if (option->get_items_expected_max() == 0 && word != name && word.starts_with("--")) {
            throw Exit{2, fmt::format("{} takes no value{}", name, see_help(app))};
        }
        if (option->get_items_expected_min() > 0 && name == word) {
            ++at;  // its value may begin with "-"
        }
    }
    return std::min(at, words.size());
}

}  // namespace

std::string did_you_mean(const std::string &word, const std::vector<std::string> &names) {
    const std::string *nearest = nullptr;
    size_t least = 0;
    for (const std::string &name : names) {
        const size_t distance = edit_distance(word, name);
        const size_t same = name.starts_with("ODC_") ? 4 : std::min(name.find_first_not_of('-'), name.size());
        const size_t letters = name.size() - same;
        if (distance <= std::max<size_t>(letters / 3, 1) && (nearest == nullptr || distance < least)) {
            nearest = &name;
            least = distance;
        }
    }
    return nearest == nullptr ? "" : fmt::format("; did you mean {}?", *nearest);
}

CLI::Option *accept_only(CLI::Option *option, const std::vector<std::string> &choices) {
    const auto refuse_others = [name = option->get_name(), choices](const std::string &text) -> std::string {
        if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
            throw Exit{2, fmt::format("{}: \"{}\" is none of {}{}", name, text, fmt::join(choices, ", "),
                                      did_you_mean(text, choices))};
        }
        return "";
    };
    // With the braces, as CLI11 has them, help and completion name the choices.
    return option->check(refuse_others, fmt::format("{{{}}}", fmt::join(choices, ",")));
}

std::string see_help(const CLI::App &app) { return fmt::format(" (see '{} --help')", command_of(app)); }

std::vector<std::string> checked_words(const CLI::App &app, std::vector<std::string> words) {
    if (words.empty()) {
        return {"--help"};
    }
    const size_t at = check_options(app, words, 0);
    if (at == words.size()) {
        return words;
    }
    if (words[at] == "help") {
        words.erase(words.begin() + static_cast<std::ptrdiff_t>(at));
        if (at == words.size()) {
            return {"--help"};
        }
        return {find_verb(app, words[at]).get_name(), "--help"};
    }
    const CLI::App &verb = find_verb(app, words[at]);
    const size_t end = check_options(verb, words, at + 1);
    if (verb.get_prefix_command() && end < words.size() && words[end] == "--") {
        words.erase(words.begin() + static_cast<std::ptrdiff_t>(end));
    }
    return words;
}

}  // namespace odc_tool
