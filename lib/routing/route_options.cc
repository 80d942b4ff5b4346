// SPDX-License-Identifier: Apache-2.0
#include "routing/route_options.h"

#include "base/error.h"
#include "base/settings.h"
#include "routing/provider_table.h"
#include "routing/transport_table.h"

#include <algorithm>

namespace odc {

namespace {

// The words of a list such as "shm,fabric"; none when it is unset.
std::vector<std::string> words_of(Setting which) {
    const std::string text = setting(which);
    std::vector<std::string> words;
    for (size_t start = 0; !text.empty() && start <= text.size();) {
        const size_t end = std::min(text.find(',', start), text.size());
        words.push_back(text.substr(start, end - start));
        start = end + 1;
    }
    for (const std::string &word : words) {
        if (word.empty() || word.find_first_of(" \t") != std::string::npos) {
            fail(ODC_ERROR_ARGUMENT, "{}=\"{}\" is wrong: it must be names with a comma and no space between them",
                 setting_row(which).name, text);
        }
    }
    return words;
}

[[noreturn]] void refuse(Setting which, const std::string &word, const std::string &valid) {
    fail(ODC_ERROR_ARGUMENT, "{}=\"{}\" is wrong: \"{}\" is none of {}", setting_row(which).name, setting(which), word,
         valid);
}

// The place of `word` among the rows' names.
template <class Rows, class Name>
size_t place_of(Setting which, const std::string &word, const Rows &rows, Name name) {
    std::vector<std::string> valid;
    for (size_t i = 0; i < rows.size(); ++i) {
        if (word == name(rows[i])) {
            return i;
        }
        valid.emplace_back(name(rows[i]));
    }
    refuse(which, word, joined(valid, ", "));
}

// "tcp" is tcp, with ofi_rxm and without; "tcp;ofi_rxm" is only that.
std::vector<std::string> providers_called(const std::string &word) {
    std::vector<std::string> found;
    std::vector<std::string> valid;
    for (const ProviderRow &row : kProviders) {
        const std::string name = row.name;
        const std::string core = name.substr(0, name.find(';'));
        if (word == name || word == core) {
            found.push_back(name);
        }
        for (const std::string &one : {core, name}) {
            if (std::find(valid.begin(), valid.end(), one) == valid.end()) {
                valid.push_back(one);
            }
        }
    }
    if (found.empty()) {
        refuse(Setting::kProvider, word, joined(valid, ", "));
    }
    return found;
}

}  // namespace

std::string demand_of(Requirement one) {
    const RequirementRow &row = kRequirements[static_cast<size_t>(one)];
    return formatted("ODC_REQUIRE asks for {} ({}: {})", row.name, row.scope, row.demand);
}

RouteOptions read_route_options() {
    RouteOptions options;
    uint32_t transports = 0;
    for (const std::string &word : words_of(Setting::kUsableTransports)) {
        transports |= 1U << place_of(Setting::kUsableTransports, word, kTransports,
                                     [](const TransportRow &row) { return row.name; });
    }
    options.transports = transports != 0 ? transports : kAllTransports;
    for (const std::string &word : words_of(Setting::kProvider)) {
        for (const std::string &name : providers_called(word)) {
            options.providers.push_back(name);
        }
    }
    for (const std::string &word : words_of(Setting::kRequire)) {
        options.requirements |=
            1U << place_of(Setting::kRequire, word, kRequirements, [](const RequirementRow &row) { return row.name; });
    }
    options.interfaces = words_of(Setting::kInterface);
    return options;
}

}  // namespace odc
