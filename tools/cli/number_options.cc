// SPDX-License-Identifier: Apache-2.0
#include "cli/number_options.h"

#include <fmt/format.h>

namespace odc_tool {

CLI::Option *add_text(CLI::App *verb, const std::string &names, const std::string &help,
                      const std::function<void(const std::string &, const std::string &)> &take) {
    const std::string name = names.substr(names.rfind("--"));
    return verb->add_option_function<std::string>(
        names, [take, name](const std::string &text) { take(name, text); }, help);
}

CLI::Option *add_bytes(CLI::App *verb, const std::string &names, uint64_t &value, WholeRange range,
                       const std::string &help) {
    return add_text(verb, names, help,
                    [&value, range](const std::string &name, const std::string &text) {
                        value = read_bytes(name, text, range);
                    })
        ->type_name("SIZE");
}

CLI::Option *add_real(CLI::App *verb, const std::string &names, double &value, RealRange range,
                      const std::string &help) {
    return add_text(verb, names, help,
                    [&value, range](const std::string &name, const std::string &text) {
                        value = read_real(name, text, range);
                    })
        ->type_name(fmt::format("N in {}..{}", range.low, range.high))
        ->default_str(fmt::format("{}", value));
}

}  // namespace odc_tool
