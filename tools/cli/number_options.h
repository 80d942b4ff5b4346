// SPDX-License-Identifier: Apache-2.0
// Numeric options of all verbs.
#pragma once

#include "cli/numbers.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace odc_tool {

// An option whose text is parsed by `take`, given its long name and the text.
CLI::Option *add_text(CLI::App *verb, const std::string &names, const std::string &help,
                      const std::function<void(const std::string &, const std::string &)> &take);

// Shows `value` as the default, unless it is 0.
template <class Whole>
CLI::Option *add_whole(CLI::App *verb, const std::string &names, Whole &value, WholeRange range,
                       const std::string &help) {
    CLI::Option *option =
        add_text(verb, names, help, [&value, range](const std::string &name, const std::string &text) {
            value = static_cast<Whole>(read_whole(name, text, range));
        });
    option->type_name(
        range.high < kTokens.high ? "N in " + std::to_string(range.low) + ".." + std::to_string(range.high) : "N");
    return value != 0 ? option->default_str(std::to_string(value)) : option;
}
CLI::Option *add_bytes(CLI::App *verb, const std::string &names, uint64_t &value, WholeRange range,
                       const std::string &help);
CLI::Option *add_real(CLI::App *verb, const std::string &names, double &value, RealRange range,
                      const std::string &help);

}  // namespace odc_tool
