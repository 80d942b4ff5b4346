// SPDX-License-Identifier: Apache-2.0
// A rank of `odc replay` joins, runs all arms on all minibatches, checks every sum and sends its records to rank 0.
#include "replay/rank.h"

#include "cli/exit.h"
#include "cli/files.h"
#include "cli/machine_load.h"
#include "cli/progress.h"
#include "rank/context.h"
#include "replay/job.h"
#include "replay/prefetch.h"
#include "replay/report.h"
#include "replay/timeline.h"
#include "replay/trace.h"

#include <fmt/format.h>

#include <optional>

namespace odc_tool {
namespace {

class ArmsReplay {
public:
    explicit ArmsReplay(ReplayJob &job) : job_(job) {
        for (const std::string &picture : {job_.settings.timeline, job_.settings.trace}) {
            if (job_.rank == 0 && !picture.empty()) {
                check_writable(picture);  // before the run, not after it
            }
        }
    }

    void run_all() {
        const Workload &workload = job_.workload;
        const std::vector<Run> runs = run_order(workload);
        double total = 0;
        for (const Arm &arm : workload.arms) {
            total += workload.duration(arm);
        }
        std::optional<Progress> progress;
        if (job_.rank == 0) {
            progress.emplace(total);
        }
        warm_up();
        double done = 0;
        for (size_t run = 0; run < runs.size(); ++run) {
            const Arm &arm = workload.arms[runs[run].arm];
            if (progress) {
                progress->show(
                    done, fmt::format("minibatch {}/{}  {}", runs[run].minibatch + 1, workload.count(), arm_name(arm)));
            }
            if (workload.warm_up > 0 && run % workload.arms.size() == 0) {
                job_.read_speeds();
            }
            records_.push_back(job_.run(static_cast<int32_t>(run), runs[run].minibatch, arm, workload.ns_per_cost,
                                        detail_of(runs[run].minibatch)));
            done += workload.duration(arm, runs[run].minibatch);
        }
    }

    void report() {
        const RunRecords records = collect(job_.context, "records", records_);
        const std::vector<RankTotals> totals = job_.collect_totals();
        const Moments moments = job_.collect_moments();
        if (job_.rank != 0) {
            return;
        }
        const ReplaySettings &settings = job_.settings;
        double own_seconds = 0;
        for (const RankTotals &rank : totals) {
            own_seconds += rank.cpu_seconds;
        }
        const Report report{settings,
                            job_.model,
                            job_.workload,
                            job_.layer_elements,
                            totals,
                            make_arm_reports(job_.workload, records),
                            {speedup_over(kBaseline, settings, job_.workload, records),
                             speedup_over(kBestCollective, settings, job_.workload, records),
                             speedup_over(job_.workload.best_collective(), settings, job_.workload, records),
                             speedup_over(job_.workload.without_claims(), settings, job_.workload, records),
                             load_.share_of_others(own_seconds)}};
        // Before the pictures: the figures must not be lost if a file cannot be written.
        settings.json ? print_json(report) : print_table(report);
        if (!settings.timeline.empty()) {
            write_timeline(settings.timeline, report, records, moments);
        }
        if (!settings.trace.empty()) {
            write_trace(settings.trace, report, records, moments);
        }
    }

private:
    // Nothing of it is reported.
    void warm_up() {
        const Workload &workload = job_.workload;
        for (size_t minibatch = workload.count(); minibatch < workload.count() + workload.warm_up; ++minibatch) {
            job_.read_speeds();
            job_.run(-1, minibatch, workload.arms.back(), workload.ns_per_cost, Detail::Times);
        }
    }

    Detail detail_of(size_t minibatch) const {
        const bool wanted = !(job_.settings.timeline.empty() && job_.settings.trace.empty());
        return wanted && minibatch < kPicturedMinibatches ? Detail::Events : Detail::Times;
    }

    ReplayJob &job_;
    MachineLoad load_;
    std::vector<RunRecord> records_;
};

}  // namespace

void replay_rank(const ReplaySettings &settings) {
    Contexts contexts{join("replay", settings.ranks), join("replay barrier", settings.ranks), {}, {}};
    try {
        ReplayJob job(settings, contexts);
        if (settings.prefetch) {
            replay_prefetch(job);
        } else {
            ArmsReplay arms(job);
            arms.run_all();
            arms.report();
        }
    } catch (const Exit &exit) {
        contexts.abort(exit.message.c_str());
        throw;
    }
}

}  // namespace odc_tool
