// SPDX-License-Identifier: Apache-2.0
#include "routing/route_options.h"

#include "base/error.h"
#include "base/settings.h"
#include "routing/provider_table.h"
#include "routing/transport_table.h"

#include <algorithm>

namespace odc {

namespace {

// The items of a list such as "shm,fabric"; none when it is unset.
std::vector<std::string> items_of(Setting which) {
    const std::string text = setting(which);
    std::vector<std::string> items;
    for (size_t start = 0; !text.empty() && start <= text.size();) {
        const size_t end = std::min(text.find(',', start), text.size());
        items.push_back(text.substr(start, end - start));
        start = end + 1;
    }
    for (const std::string &item : items) {
        if (item.empty() || item.find_first_of(" \t") != std::string::npos) {
            fail(ODC_ERROR_ARGUMENT, "{}=\"{}\" is wrong: it must be names with a comma and no space between them",
                 setting_row(which).name, text);
        }
    }
    return items;
}

[[noreturn]] void refuse(Setting which, const std::string &item, const std::string &valid) {
    fail(ODC_ERROR_ARGUMENT, "{}=\"{}\" is wrong: \"{}\" is none of {}", setting_row(which).name, setting(which), item,
         valid);
}

// The index of `item` among the rows' names.
template <class Rows, class Name>
size_t index_of(Setting which, const std::string &item, const Rows &rows, Name name) {
    std::vector<std::string> valid;
    for (size_t i = 0; i < rows.size(); ++i) {
        if (item == name(rows[i])) {
            return i;
        }
        valid.emplace_back(name(rows[i]));
    }
    refuse(which, item, joined(valid, ", "));
}

// "tcp" is tcp, with ofi_rxm and without; "tcp;ofi_rxm" is only that.
std::vector<std::string> providers_called(const std::string &item) {
    std::vector<std::string> found;
    std::vector<std::string> valid;
    for (const ProviderRow &row : kProviders) {
        const std::string name = row.name;
        const std::string core = name.substr(0, name.find(';'));
        if (item == name || item == core) {
            found.push_back(name);
        }
        for (const std::string &one : {core, name}) {
            if (std::find(valid.begin(), valid.end(), one) == valid.end()) {
                valid.push_back(one);
            }
        }
    }
    if (found.empty()) {
        refuse(Setting::kProvider, item, joined(valid, ", "));
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
    for (const std::string &item : items_of(Setting::kUsableTransports)) {
        transports |= 1U << index_of(Setting::kUsableTransports, item, kTransports,
                                     [](const TransportRow &row) { return row.name; });
    }
    options.transports = transports != 0 ? transports : kAllTransports;
    for (const std::string &item : items_of(Setting::kProvider)) {
        for (const std::string &name : providers_called(item)) {
            options.providers.push_back(name);
        }
    }
    for (const std::string &item : items_of(Setting::kRequire)) {
        options.requirements |=
            1U << index_of(Setting::kRequire, item, kRequirements, [](const RequirementRow &row) { return row.name; });
    }
    options.interfaces = items_of(Setting::kInterface);
    return options;
}

}  // namespace odc
