// SPDX-License-Identifier: Apache-2.0
// odc info: this build, the transports and why some are not ready, and the settings in effect.
#include "cli/command_line.h"
#include "cli/exit.h"
#include "cli/json.h"
#include "cli/sysfs.h"
#include "cli/verbs.h"
#include "cli/version.h"
#include "rank/context.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <odc/odc.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace odc_tool {

namespace {

struct Transport {
    std::string name;
    std::string why_not;  // empty: ready
};

struct Setting {
    std::string name;
    std::string value;  // in effect; a program's odc_config overrides it
    bool from_environment;
    std::string refusal;  // odc_init's error for this value; empty: it accepts it
    std::string help;
};

// The file of the libodc in use; of this program where that contains it.
std::string library_path() {
    Dl_info info{};
    return dladdr(reinterpret_cast<void *>(&odc_build), &info) != 0 ? info.dli_fname : "(unknown)";
}

// Reads a table of the API row by row.
template <class Row, class Read>
std::vector<Row> rows(Read read) {
    std::vector<Row> table;
    while (std::optional<Row> row = read(table.size())) {
        table.push_back(*row);
    }
    return table;
}

std::vector<Transport> transports() {
    return rows<Transport>([](size_t index) -> std::optional<Transport> {
        odc_transport row = {};
        row.struct_size = sizeof row;
        if (odc_get_transport(index, &row) != ODC_OK) {
            return std::nullopt;
        }
        return Transport{row.name, row.why_not != nullptr ? row.why_not : ""};
    });
}

// The library's settings, with no refusal yet.
std::vector<Setting> read_settings() {
    return rows<Setting>([](size_t index) -> std::optional<Setting> {
        odc_setting row = {};
        row.struct_size = sizeof row;
        if (odc_get_setting(index, &row) != ODC_OK) {
            return std::nullopt;
        }
        const char *value = std::getenv(row.name);
        const bool is_set = value != nullptr && *value != '\0';
        const bool secret = std::string_view(row.name) == "ODC_SECRET";
        return Setting{row.name, !is_set ? row.fallback : secret ? "(not shown)" : value, is_set, "", row.help};
    });
}

struct Settings {
    std::vector<Setting> table;
    std::set<std::string> other_refusals;  // odc_init's errors that name no setting
};

// odc_init reports one mistake at a time: the refused setting is removed from the environment until nothing is refused, and
// restored afterwards.
Settings settings() {
    Settings all{read_settings(), {}};
    std::vector<Setting> &table = all.table;
    std::map<std::string, std::string> refused;
    for (const int32_t size : {1, 0}) {
        std::string error;
        while (!(error = init_error(size)).empty()) {
            const auto row = std::find_if(table.begin(), table.end(), [&](const Setting &one) {
                return one.refusal.empty() && error.starts_with(one.name + "=");
            });
            const char *value = row != table.end() ? std::getenv(row->name.c_str()) : nullptr;
            if (value == nullptr) {
                break;
            }
            row->refusal = error;
            refused[row->name] = value;
            unsetenv(row->name.c_str());
        }
        if (!error.empty()) {
            all.other_refusals.insert(error);
        }
    }
    for (const auto &[name, value] : refused) {
        setenv(name.c_str(), value.c_str(), 1);
    }
    return all;
}

// What reads them is not the library: odc bench, the bindings, their builds, tools/demo.sh, and the tests.
constexpr std::array<std::string_view, 6> kOthersVariables = {"ODC_BUILD_DIR", "ODC_LIBRARY",    "ODC_LIB_DIR",
                                                              "ODC_NCCL",      "ODC_SOURCE_DIR", "ODC_TORCH_INDEX"};
constexpr std::array<std::string_view, 3> kOthersPrefixes = {"ODC_BENCH_", "ODC_RUST_TEST_", "ODC_TEST_"};

// The ODC_* variables of the environment that nothing reads, by name: each with a sentence.
std::map<std::string, std::string> unread_variables(const std::vector<Setting> &settings) {
    std::vector<std::string> names;
    for (const Setting &row : settings) {
        names.push_back(row.name);
    }
    names.insert(names.end(), kOthersVariables.begin(), kOthersVariables.end());
    std::map<std::string, std::string> unread;
    for (char **variable = environ; *variable != nullptr; ++variable) {
        const std::string_view text = *variable;
        const std::string name(text.substr(0, text.find('=')));
        const bool read = !name.starts_with("ODC_") || std::find(names.begin(), names.end(), name) != names.end() ||
                          std::any_of(kOthersPrefixes.begin(), kOthersPrefixes.end(),
                                      [&](std::string_view prefix) { return name.starts_with(prefix); });
        if (!read) {
            unread[name] = fmt::format("{} is set, but nothing reads it{}", name, did_you_mean(name, names));
        }
    }
    return unread;
}

void print_json(const std::vector<Transport> &transports, const Settings &settings,
                const std::map<std::string, std::string> &unread) {
    Json json = {{"build", odc_build()}};
    json["version"] = version_text();
    json["library"] = library_path();
    for (const Transport &row : transports) {
        Json &entry = json["transports"].emplace_back();
        entry = {{"name", row.name}, {"ready", row.why_not.empty()}};
        if (!row.why_not.empty()) {
            entry["why_not"] = row.why_not;
        }
    }
    for (const Setting &row : settings.table) {
        Json &entry = json["settings"].emplace_back();
        entry = {{"name", row.name},
                 {"value", row.value},
                 {"source", row.from_environment ? "environment" : "default"},
                 {"help", row.help}};
        if (!row.refusal.empty()) {
            entry["refused"] = row.refusal;
        }
    }
    json["other_refusals"] = settings.other_refusals;
    json["unread_variables"] = Json::array();
    for (const auto &[name, why] : unread) {
        json["unread_variables"].push_back(name);
    }
    fmt::print("{}\n", lines_text(json));
}

void print_transports(const std::vector<Transport> &transports) {
    fmt::print("{}\nfrom {}\n\ntransports, most wanted first:\n", odc_build(), library_path());
    for (const Transport &row : transports) {
        fmt::print("  {:<8} {}\n", row.name,
                   row.why_not.empty() ? "ready" : fmt::format("unavailable: {}", row.why_not));
    }
}

void print_settings(const std::vector<Setting> &settings) {
    fmt::print("\nsettings (a program's odc_config comes before the environment):\n");
    for (const Setting &row : settings) {
        const std::string value = row.value.empty() ? "(none)" : row.value;
        fmt::print("  {:<17} {:<12} {:<12} {}\n", row.name, value, row.from_environment ? "environment" : "default",
                   row.refusal.empty() ? row.help : "odc_init will refuse it: " + row.refusal);
    }
}

// Throws Exit with odc_init's errors, a line each.
void check_accepted(const Settings &settings) {
    std::vector<std::string> refusals;
    for (const Setting &row : settings.table) {
        if (!row.refusal.empty()) {
            refusals.push_back(row.refusal);
        }
    }
    refusals.insert(refusals.end(), settings.other_refusals.begin(), settings.other_refusals.end());
    if (!refusals.empty()) {
        throw Exit{1, fmt::format("{}", fmt::join(refusals, "\nodc: "))};
    }
}

}  // namespace

void add_info(CLI::App &app) {
    struct Wanted {
        bool settings = false;
        bool json = false;
    };
    auto wanted = std::make_shared<Wanted>();
    CLI::App *verb = app.add_subcommand("info", "Show the build, its file, the transports and the settings");
    verb->add_flag("--settings", wanted->settings, "Print every ODC_* setting with its value and help");
    verb->add_flag("--json", wanted->json, "Print everything as JSON");
    verb->footer(
        "The exit status is 0 if any transport is ready on this machine and odc_init accepts every setting, otherwise 1.");
    verb->callback([wanted] {
        hide_missing_sysfs();
        const std::vector<Transport> table = transports();
        const Settings in_effect = settings();
        const std::map<std::string, std::string> unread = unread_variables(in_effect.table);
        for (const auto &[name, why] : unread) {
            fmt::print(stderr, "odc: {}\n", why);
        }
        if (wanted->json) {
            print_json(table, in_effect, unread);
        } else {
            print_transports(table);
            if (wanted->settings) {
                print_settings(in_effect.table);
            }
        }
        check_accepted(in_effect);
        for (const Transport &row : table) {
            if (row.why_not.empty()) {
                return;
            }
        }
        throw Exit{1, "no transport is ready on this machine"};
    });
}

}  // namespace odc_tool
