// SPDX-License-Identifier: Apache-2.0
// What the library reports about itself, the machine and a job, and the properties of plans.
#include <fstream>
#include <numeric>

#include "testing.h"

namespace {

void the_right_library_is_taken() {
    REQUIRE(odc::check_library());
    REQUIRE(odc::Version::found().text() == odc::Version::needed().text());
    REQUIRE_SAYS(odc::library_path(), "/libodc.so");
    REQUIRE_SAYS(odc::build(), "libodc " + odc::Version::found().text());
}

void tables_and_topology_are_reported() {
    const auto transports = odc::transports();
    REQUIRE(transports.size() >= 3);
    REQUIRE(transports[0].name == "cuda" && transports[1].name == "shm" && transports.back().name == "fabric");
    REQUIRE(!transports[1].why_not);
    bool found = false;
    for (const odc::Setting &setting : odc::settings()) {
        REQUIRE(!setting.help.empty());
        found = found || (setting.name == "ODC_TIMEOUT_MS" && setting.fallback.find("600") != std::string::npos);
    }
    REQUIRE(found);
    const odc::Topology here = odc::topology();
    REQUIRE(here.json[here.json.find_first_not_of(" \n")] == '{' && here.xml.find("<topology") != std::string::npos);
    char file[] = "/tmp/odc-cpp-test-XXXXXX";
    const int descriptor = mkstemp(file);
    REQUIRE(descriptor >= 0 &&
            write(descriptor, here.xml.data(), here.xml.size()) == static_cast<ssize_t>(here.xml.size()));
    close(descriptor);
    const std::string recorded = odc::topology(file).json;
    std::ofstream(file) << "<no machine";
    odc::Status status;
    odc::topology(file, status);
    unlink(file);
    REQUIRE(recorded.find('{') != std::string::npos);
    REQUIRE(status.code() == ODC_ERROR_ARGUMENT);
    REQUIRE_SAYS(status.message(), file);
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::topology(std::string("a\0b", 3)), "NUL");
}

void routes_and_statistics_are_reported() {
    run(2, [](odc::Context &context) {
        const odc::Route route = context.route(1 - context.rank());
        REQUIRE(route.transport == "shm" && route.access == "direct" && route.nic.empty() && !route.why.empty());
        REQUIRE_THROWS(ODC_ERROR_ARGUMENT, context.route(2), "rank 2");
        REQUIRE(context.route_to_gpu(1 - context.rank()).access == "none");
        context.register_shard<float, float>({"layer", 100});
        REQUIRE(context.stats().slice_bytes >= 400);
        context.publish();
        context.sync();
        REQUIRE(context.stats().syncs == 1);
        REQUIRE(context.peer_stats(0).sync_last + context.peer_stats(1).sync_last == 1);
        REQUIRE_THROWS(ODC_ERROR_ARGUMENT, context.peer_stats(-1), "rank -1");
    });
}

// Every sample once, in contiguous microbatches within the budget; costs as reported.
void a_plan_keeps_its_promises() {
    const uint64_t seed = test_seed();
    for (uint64_t round = 0; round < 50; ++round) {
        const auto random = [&](uint64_t what, uint64_t below) { return mix({seed, round, what}) % below; };
        const auto ranks = static_cast<int32_t>(1 + random(0, 6));
        const uint64_t count = 1 + random(1, 60), budget = 1000;
        std::vector<uint64_t> lengths, seen(count);
        for (uint64_t i = 0; i < count; ++i) {
            lengths.push_back(1 + random(100 + i, budget));
        }
        const odc::Cost cost{static_cast<double>(random(2, 3)), 1};
        const odc::Plan plan = odc::plan(lengths, ranks, budget, odc::Policy::LbMini, cost);
        REQUIRE(plan.ranks.size() == static_cast<size_t>(ranks));
        double makespan = 0;
        for (const auto &microbatches : plan.ranks) {
            double total = 0;
            for (const auto &microbatch : microbatches) {
                uint64_t tokens = 0;
                for (const size_t sample : microbatch) {
                    const double x = static_cast<double>(lengths[sample]) / 32000;
                    total += cost.a * x * x + cost.b * x;
                    tokens += lengths[sample];
                    ++seen[sample];
                }
                REQUIRE(tokens > 0 && tokens <= budget);
            }
            makespan = std::max(makespan, total);
        }
        REQUIRE(seen == std::vector<uint64_t>(count, 1));
        REQUIRE(std::abs(plan.makespan - makespan) <= 1e-9 * makespan && plan.lower_bound <= makespan * (1 + 1e-12));
    }
    const std::vector<uint64_t> four{5, 7, 6, 8}, one{1}, none;
    const odc::Cost linear;
    for (const auto &microbatches : odc::plan(four, 2, 10, odc::Policy::LocalSort, linear).ranks) {
        for (const auto &microbatch : microbatches) {
            REQUIRE(microbatch.size() == 1);
        }
    }
    const std::vector<double> speeds{1, 0.5};
    const odc::Plan claimed = odc::plan_by_speed(four, speeds, 20, linear, 0.5);
    REQUIRE(claimed.ranks.size() == 2 && !claimed.items.empty());
    size_t samples = 0;
    for (const auto &rank : claimed.ranks) {
        for (const auto &microbatch : rank) {
            samples += microbatch.size();
        }
    }
    for (const auto &item : claimed.items) {
        samples += item.size();
    }
    REQUIRE(samples == 4);
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::plan_by_speed(four, speeds, 20, linear, 2), "`tail` is 2");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::plan(four, 2, 7, odc::Policy::LbMini, linear), "8", "7");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::plan(one, 0, 10, odc::Policy::LbMini, linear), "ranks");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::Cost::of_model("9b"), "9b");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::Cost::of_model(""), "\"\"");
    REQUIRE_THROWS(ODC_ERROR_ARGUMENT, odc::Cost::of_model(std::string("7\0b", 3)), "NUL");
    REQUIRE(odc::Cost::of_model("linear").a == linear.a && odc::Cost::of_model("linear").b == linear.b);
}

// On two ranks a long sample in each of two minibatches takes as long as both in one.
void a_window_lets_long_samples_meet() {
    const std::vector<uint64_t> lengths{1000, 60000, 1000, 1000, 1000, 60000, 1000, 1000}, counts{4, 4}, wrong{4, 3};
    for (const odc::WindowOrder order : {odc::WindowOrder::Exchanged, odc::WindowOrder::Sorted}) {
        odc::Lookahead lookahead;
        lookahead.order = order;
        lookahead.most_moved = 0.25;
        const odc::WindowPlan plan =
            odc::plan_window(lengths, counts, 2, 65536, odc::Policy::LbMini, odc::Cost(), lookahead);
        REQUIRE(plan.minibatches.size() == 2);
        std::vector<int> seen(lengths.size());
        std::vector<int> longs;
        for (const auto &ranks : plan.minibatches) {
            int samples = 0;
            longs.push_back(0);
            for (const auto &microbatches : ranks) {
                for (const auto &microbatch : microbatches) {
                    for (const size_t sample : microbatch) {
                        ++samples;
                        ++seen[sample];
                        longs.back() += lengths[sample] == 60000 ? 1 : 0;
                    }
                }
            }
            REQUIRE(samples == 4);
        }
        REQUIRE(seen == std::vector<int>(lengths.size(), 1));
        REQUIRE(longs[0] * longs[1] == 0);
        REQUIRE(plan.summary.moved > 0 && plan.summary.makespan < 0.6 * plan.summary.makespan_before);
        REQUIRE_THROWS(ODC_ERROR_ARGUMENT,
                       odc::plan_window(lengths, wrong, 2, 65536, odc::Policy::LbMini, odc::Cost(), lookahead),
                       "7 samples");
    }
}

}  // namespace

int main(int argc, char **argv) {
    return run_tests("library_test",
                     {TEST(the_right_library_is_taken), TEST(tables_and_topology_are_reported),
                      TEST(routes_and_statistics_are_reported), TEST(a_plan_keeps_its_promises),
                      TEST(a_window_lets_long_samples_meet)},
                     argc, argv);
}
