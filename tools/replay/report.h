// SPDX-License-Identifier: Apache-2.0
// The result of `odc replay`: each arm's throughput, and its ideal if communication took no time.
#pragma once

#include "cli/json.h"
#include "rank/statistics.h"
#include "replay/network_report.h"
#include "replay/record.h"
#include "replay/schedule.h"

#include <optional>
#include <string>
#include <vector>

namespace odc_tool {

// What the run shows of the last arm.
struct Gain {
    MedianInterval speedup;                   // over the collective schedule with LB-Micro; pairs of windows
    MedianInterval speedup_over_sorted_rows;  // over the best that collectives can do
    MedianInterval speedup_over_same_order;   // over sorted-rows with the last arm's lookahead
    MedianInterval speedup_over_static;       // over ODC with LB-Mini, which has no node cache
    std::optional<double> others;             // share of this host's processors that other programs used
    size_t repeated;                          // pairs, for that share; the less disturbed attempt counts
};

struct ArmReport {
    Arm arm;
    double samples_per_second;
    double ideal_samples_per_second;  // with the claims as they were
    double bound_samples_per_second;
    double speedup;                        // over collective + lb-micro
    double speedup_over_sorted_rows;       // over collective + sorted-rows
    double ideal_speedup;                  // over collective + lb-micro, with communication that takes no time
    double idle;                           // mean over ranks
    std::vector<double> rank_idle;         // by idle_share
    double claimed;                        // share of the compute time that was claimed
    std::vector<int64_t> rank_claimed;     // microbatches
    std::optional<NetworkReport> network;  // between emulated hosts

    double share_of_ideal() const { return samples_per_second / ideal_samples_per_second; }
    double share_of_bound() const { return samples_per_second / bound_samples_per_second; }
};

struct Report {
    const ReplaySettings &settings;
    const Model &model;
    const Workload &workload;
    uint64_t layer_elements;  // as run
    std::vector<RankTotals> totals;
    std::vector<ArmReport> arms;  // as the workload's
    Gain gain;
};

std::vector<ArmReport> make_arm_reports(const Workload &workload, const RunRecords &records);

// The speedup of the last arm over this one, from pairs of windows.
MedianInterval speedup_over(const Arm &arm, const ReplaySettings &settings, const Workload &workload,
                            const RunRecords &records);

// One line: the gain, or why the run does not show one.
std::string verdict(const Report &report);
// Whether the run shows one; and a sentence with the speedup over the baseline, or why there is none.
bool is_resolved(const Report &report);
std::string whole_run(const Report &report);

// The share of these runs, one after another, in which the rank's device does not compute.
double idle_share(const RunRecords &records, const std::vector<size_t> &runs, size_t rank);

// One sentence that says what was emulated and what was real, above every output.
std::string caption(const Report &report);
// The second one: ranks, samples, lengths.
std::string workload_text(const Report &report);
Json settings_json(const Report &report);
Json communication_json(const Report &report);

void print_table(const Report &report);
void print_json(const Report &report);

// For pictures: an arm's runs are consecutive, without the other arms between them.
constexpr size_t kPicturedMinibatches = 3;
struct PicturedRun {
    size_t number;  // in run_order
    size_t arm;
    int64_t begin_ns;  // since the arm's first run began
    int64_t duration_ns;
};
std::vector<PicturedRun> pictured_runs(const Report &report, const RunRecords &records);

}  // namespace odc_tool
