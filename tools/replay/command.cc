// SPDX-License-Identifier: Apache-2.0
// `odc replay`: real sequence lengths, real communication, emulated compute; compares the collective schedule with ODC.
#include "cli/exit.h"
#include "cli/files.h"
#include "cli/number_options.h"
#include "cli/verbs.h"
#include "rank/context.h"
#include "replay/rank.h"
#include "replay/schedule.h"
#include "run/launch.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace odc_tool {
namespace {

namespace fs = std::filesystem;

// This command line again.
std::vector<std::string> own_arguments() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::vector<std::string> arguments;
    for (std::string argument; std::getline(file, argument, '\0');) {
        arguments.push_back(argument);
    }
    if (arguments.empty()) {
        throw Exit{1, "replay: /proc/self/cmdline cannot be read, so no ranks can be started; start them with odc run"};
    }
    arguments[0] = "/proc/self/exe";
    return arguments;
}

// Wrong settings are reported once here, not by every rank.
void check_settings(const ReplaySettings &settings, int ranks) {
    find_model(settings.model);
    if (!settings.lengths.empty() && !settings.corpus.empty()) {
        throw Exit{2, "replay needs one set of sequence lengths: give either --lengths FILE or --corpus DIR"};
    }
    check_workload(settings, replay_lengths(settings).size(), ranks);
}

// The canonical form of a path that may not exist yet.
fs::path resolved(const std::string &path) {
    const fs::path whole = fs::absolute(path);
    std::error_code error;
    const fs::path found = fs::weakly_canonical(whole, error);
    return error ? whole : found;
}

bool is_one_file(const std::string &first, const std::string &second) {
    std::error_code not_both;
    return resolved(first) == resolved(second) || fs::equivalent(first, second, not_both);
}

void check_pictures(const ReplaySettings &settings) {
    const std::array<std::pair<const char *, const std::string &>, 3> files{
        {{"--timeline", settings.timeline}, {"--trace", settings.trace}, {"--lengths", settings.lengths}}};
    for (size_t i = 0; i < files.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
            if (!files[i].second.empty() && !files[j].second.empty() && is_one_file(files[i].second, files[j].second)) {
                throw Exit{2, fmt::format("{} and {} are one file, {}; give each its own", files[j].first,
                                          files[i].first, files[i].second)};
            }
        }
    }
}

// Before ranks are started; each rank would take its time to find out.
void check_pictures_writable(const ReplaySettings &settings) {
    for (const std::string &picture : {settings.timeline, settings.trace}) {
        if (!picture.empty()) {
            check_writable(picture);
        }
    }
}

void replay(const ReplaySettings &settings) {
    check_pictures(settings);
    if (inside_a_job()) {
        replay_rank(settings);
        return;
    }
    Launch ranks;
    ranks.ranks = settings.ranks == 0 ? kDefaultRanks : settings.ranks;
    check_settings(settings, ranks.ranks);
    check_environment(ranks.ranks);
    check_pictures_writable(settings);
    ranks.argv = own_arguments();
    ranks.output = Output::Inherit;
    if (const int status = launch(ranks); status != 0) {
        throw Exit{status, ""};
    }
}

// What is trained, on how many ranks.
void add_training_options(CLI::App *verb, ReplaySettings &settings) {
    verb->add_option("--lengths", settings.lengths,
                     "Sequence lengths, one per line; default: built-in ones, the sizes of 796 source files")
        ->type_name("FILE");
    verb->add_option("--corpus", settings.corpus, "Directory of text files whose sizes are the lengths")
        ->type_name("DIR");
    add_whole(verb, "--max-tokens", settings.max_tokens, kTokens, "Token budget of a microbatch");
    verb->add_option("--model", settings.model, "Model that sets the layers and the cost of a sample")
        ->type_name("{1.5b,7b,14b,32b}")
        ->capture_default_str();
    add_whole(verb, "--scale", settings.scale, kPositive, "Divisor of the elements of each layer");
    add_whole(verb, "--ranks", settings.ranks, {1, 1024},
              fmt::format("Ranks to start on this host (default: {}; inside a job: its ranks)", kDefaultRanks));
    add_whole(verb, "--minibatch", settings.minibatch, {1, 100'000}, "Samples per rank and minibatch");
    add_whole(verb, "--minibatches", settings.minibatches, {1, 100'000},
              fmt::format("Minibatches of each arm; default: one pass over the lengths, at most {}", kMostMinibatches));
}

}  // namespace

void add_replay(CLI::App &app) {
    auto settings = std::make_shared<ReplaySettings>();
    CLI::App *verb = app.add_subcommand(
        "replay",
        "Replay real sequence lengths with real communication and emulated compute: collective schedule against ODC");
    add_training_options(verb, *settings);
    CLI::Option *lookahead =
        add_whole(verb, "--lookahead", settings->lookahead, {1, 16},
                  "Two arms more, in which so many minibatches are planned together and exchange samples");
    add_window_options(verb, settings->window, lookahead);
    CLI::Option *noise = add_real(verb, "--noise", settings->noise, {0, 0.9},
                                  "Speeds of the devices differ by up to this share, anew for each rank and minibatch");
    CLI::Option *slow =
        add_text(
            verb, "--slow",
            "Ranks whose devices take FACTOR times as long, in all minibatches or in FIRST to LAST, from 1",
            [settings](const std::string &name, const std::string &text) { settings->slow = parse_slow(name, text); })
            ->type_name("RANK:FACTOR[:FIRST-LAST],...");
    CLI::Option *claim = add_real(verb, "--claim", settings->claim, {0.01, 1},
                                  "Three arms: planned with measured speeds, all of the work claimed, and planned with "
                                  "measured speeds but for this share of the cost, which is claimed")
                             ->default_str("");
    CLI::Option *seconds = add_real(verb, "--seconds", settings->seconds, {0.1, 1e6},
                                    "Emulated time of all arms together; sets the device's speed");
    add_whole(verb, "--seed", settings->seed, {0, kPositive.high}, "Seed of the order of the samples");
    CLI::Option *timeline = verb->add_option("--timeline", settings->timeline,
                                             "Write a picture (SVG) of when ranks compute, wait and move bytes")
                                ->type_name("FILE");
    CLI::Option *trace =
        verb->add_option("--trace", settings->trace, "Write a trace (JSON) for Perfetto or chrome://tracing")
            ->type_name("FILE");
    verb->add_flag_callback(
        "--exact", [settings] { settings->sum = ODC_SUM_EXACT; },
        "Add gradients by exact sums, whose bits depend neither on the order nor on the ranks, in all arms");
    CLI::Option *prefetch =
        verb->add_flag("--prefetch", settings->prefetch,
                       "Measure how much of the communication compute hides when one thread starts it a layer ahead");
    CLI::Option *hosts =
        add_whole(verb, "--hosts", settings->hosts, {2, 512},
                  "Divide the ranks over so many emulated hosts, and compare what crosses between them: ring "
                  "collectives, ODC without the node cache, with it, and with it and its sums")
            ->default_str("");
    add_text(verb, "--bandwidth",
             "With --hosts: of the emulated link of each host and direction, in bits a second, with k, M, G or T",
             [settings](const std::string &name, const std::string &text) {
                 settings->bandwidth = read_bandwidth(name, text);
             })
        ->type_name("RATE")
        ->default_str("25G")
        ->needs(hosts);
    for (CLI::Option *other : {seconds, timeline, trace, lookahead, noise, slow, claim, hosts}) {
        prefetch->excludes(other);
    }
    for (CLI::Option *other : {lookahead, noise, slow, claim}) {
        hosts->excludes(other);
    }
    add_real(verb, "--compute", settings->compute, {0.01, 1000},
             "With --prefetch: compute time as a multiple of the time of communication alone, which is measured first")
        ->needs(prefetch);
    verb->add_flag("--json", settings->json, "Print one JSON object instead of a table");
    verb->callback([settings] { replay(*settings); });
}

}  // namespace odc_tool
