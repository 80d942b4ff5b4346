// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include "base/error.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

namespace odc {

std::string environment(const char *name) {
    const char *value = std::getenv(name);
    return value != nullptr ? value : "";
}

std::string setting(Setting which) {
    const SettingRow &row = setting_row(which);
    std::string value = environment(row.name);
    return value.empty() ? row.fallback : value;
}

int64_t parse_number(const std::string &name, const std::string &text, int64_t low, int64_t high) {
    int64_t number = 0;
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stop != end || number < low || number > high) {
        fail(ODC_ERROR_ARGUMENT, "{}=\"{}\" is wrong: it must be a whole number from {} to {}", name, text, low, high);
    }
    return number;
}

int64_t setting_number(Setting which) {
    const SettingRow &row = setting_row(which);
    return parse_number(row.name, setting(which), row.low, row.high);
}

}  // namespace odc
