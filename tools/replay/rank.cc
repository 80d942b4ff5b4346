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

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

namespace odc_tool {
namespace {

// Pairs are repeated only while all arms take less than so many times --seconds.
constexpr double kMostSeconds = 1.5;

// Collective.
double sum_of_ranks(odc_context *barrier, double mine) {
    check(odc_all_reduce(barrier, &mine, 1, ODC_SUM));
    return mine;
}

// Since the construction, by rank 0's clock, for all ranks.
class Elapsed {
public:
    explicit Elapsed(odc_context *barrier) : barrier_(barrier) {}

    // Collective.
    double seconds() const {
        const std::chrono::duration<double> mine = std::chrono::steady_clock::now() - begin_;
        return sum_of_ranks(barrier_, odc_rank(barrier_) == 0 ? mine.count() : 0);
    }

private:
    odc_context *barrier_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The share of this host's processors that other programs used since the construction; rank 0's reading, for all ranks.
class PairLoad {
public:
    explicit PairLoad(odc_context *barrier) : barrier_(barrier) {}

    // Collective. Negative where it is unknown.
    double others() const {
        const double own_seconds = sum_of_ranks(barrier_, own_cpu_seconds() - begin_cpu_seconds_);
        return sum_of_ranks(barrier_, odc_rank(barrier_) == 0 ? load_.share_of_others(own_seconds).value_or(-1) : 0);
    }

private:
    odc_context *barrier_;
    MachineLoad load_;
    double begin_cpu_seconds_ = own_cpu_seconds();
};

// All arms' runs on one window of minibatches, whose durations are a pair of each two arms.
struct Attempt {
    std::vector<RunRecord> records;
    OwnMoments moments;
    double others;   // as of PairLoad
    double seconds;  // that it took
};

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
        double total = 0;
        for (const Arm &arm : workload.arms) {
            total += workload.duration(arm);
        }
        std::optional<Progress> progress;
        if (job_.rank == 0) {
            progress.emplace(total);
        }
        const Elapsed elapsed(job_.barrier);
        warm_up();
        const auto window = static_cast<size_t>(job_.settings.lookahead);
        for (size_t first = 0; first < workload.count(); first += window) {
            attempts_.push_back(attempt(first, progress));
        }
        repeat_disturbed(elapsed, progress);
    }

    void report() {
        std::vector<RunRecord> own_records;
        OwnMoments own_moments;
        for (const Attempt &one : attempts_) {
            own_records.insert(own_records.end(), one.records.begin(), one.records.end());
            own_moments.append(one.moments);
        }
        const RunRecords records = collect(job_.context, "records", own_records);
        const std::vector<RankTotals> totals = job_.collect_totals();
        const Moments moments{collect(job_.context, "events", own_moments.events),
                              collect(job_.context, "links", own_moments.links)};
        if (job_.rank != 0) {
            return;
        }
        const ReplaySettings &settings = job_.settings;
        const Report report{
            settings,
            job_.model,
            job_.workload,
            job_.layer_elements,
            totals,
            make_arm_reports(job_.workload, records),
            {speedup_over(kBaseline, settings, job_.workload, records),
             speedup_over(kBestCollective, settings, job_.workload, records),
             speedup_over(job_.workload.best_collective(), settings, job_.workload, records),
             speedup_over(job_.workload.without_claims(), settings, job_.workload, records), others(), repeated_}};
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

    // One of the windows, from minibatch `first`.
    Attempt attempt(size_t first, std::optional<Progress> &progress) {
        const Workload &workload = job_.workload;
        const std::vector<Run> runs = run_order(workload);
        const size_t arms = workload.arms.size();
        const size_t end = std::min(first + static_cast<size_t>(job_.settings.lookahead), workload.count());
        const PairLoad load(job_.barrier);
        const Elapsed elapsed(job_.barrier);
        Attempt made{};
        for (size_t run = first * arms; run < end * arms; ++run) {
            const Arm &arm = workload.arms[runs[run].arm];
            if (progress) {
                progress->show(done_, fmt::format("{} {}/{}  {}", repeated_ > 0 ? "repeats minibatch" : "minibatch",
                                                  runs[run].minibatch + 1, workload.count(), arm_name(arm)));
            }
            if (workload.warm_up > 0 && run % arms == 0) {
                job_.read_speeds();
            }
            made.records.push_back(job_.run(static_cast<int32_t>(run), runs[run].minibatch, arm, workload.ns_per_cost,
                                            detail_of(runs[run].minibatch)));
            done_ += workload.duration(arm, runs[run].minibatch);
        }
        made.moments = job_.take_moments();
        made.others = load.others();
        made.seconds = elapsed.seconds();
        return made;
    }

    // The expected cost of all arms in the window from minibatch `first`.
    double duration(size_t first) const {
        const Workload &workload = job_.workload;
        const size_t end = std::min(first + static_cast<size_t>(job_.settings.lookahead), workload.count());
        double sum = 0;
        for (const Arm &arm : workload.arms) {
            for (size_t minibatch = first; minibatch < end; ++minibatch) {
                sum += workload.duration(arm, minibatch);
            }
        }
        return sum;
    }

    // The most disturbed windows, at most half as many as there are. Not where speeds measured in one minibatch serve the next.
    void repeat_disturbed(const Elapsed &elapsed, std::optional<Progress> &progress) {
        const size_t most = job_.workload.warm_up > 0 ? 0 : (attempts_.size() + 1) / 2;
        while (repeated_ < most) {
            const auto worst = std::max_element(attempts_.begin(), attempts_.end(),
                                                [](const Attempt &a, const Attempt &b) { return a.others < b.others; });
            if (worst->others <= kBusyMachine ||
                elapsed.seconds() + worst->seconds > kMostSeconds * job_.settings.seconds) {
                break;
            }
            ++repeated_;
            const auto first =
                static_cast<size_t>(worst - attempts_.begin()) * static_cast<size_t>(job_.settings.lookahead);
            if (progress) {
                progress->extend(duration(first));
            }
            Attempt again = attempt(first, progress);
            if (again.others < worst->others) {
                *worst = std::move(again);
            }
        }
    }

    // The mean over the kept attempts.
    std::optional<double> others() const {
        double sum = 0;
        for (const Attempt &one : attempts_) {
            if (one.others < 0) {
                return std::nullopt;
            }
            sum += one.others;
        }
        return sum / double(attempts_.size());
    }

    Detail detail_of(size_t minibatch) const {
        const bool wanted = !(job_.settings.timeline.empty() && job_.settings.trace.empty());
        return wanted && minibatch < kPicturedMinibatches ? Detail::Events : Detail::Times;
    }

    ReplayJob &job_;
    std::vector<Attempt> attempts_;  // by window
    size_t repeated_ = 0;
    double done_ = 0;  // expected cost
};

}  // namespace

void replay_rank(const ReplaySettings &settings) {
    if (settings.hosts > 1) {
        setenv("FI_OFI_RXM_MSG_RX_SIZE", "256", 0);  // 32 ranks take 4 GB; with the default of 4096 receives 7
    }
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
