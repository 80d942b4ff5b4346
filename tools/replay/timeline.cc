// SPDX-License-Identifier: Apache-2.0
// Draws the timeline. A device's row has the colour of waiting, with compute painted over it; a thin strip below it shows when
// bytes move, which is mostly behind compute.
#include "replay/timeline.h"

#include "cli/files.h"
#include "cli/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace odc_tool {
namespace {

constexpr double kLeft = 78;
constexpr double kPlotWidth = 1120;
constexpr double kRight = 92;
constexpr double kTop = 114;
constexpr double kPanelHead = 40;
constexpr double kPanelGap = 26;
constexpr double kAxisHeight = 54;
constexpr double kRowsHeight = 8 * 22;  // of a panel; many ranks get thinner rows
constexpr double kMergeBelow = 0.3;     // pixels: invisible gaps
constexpr double kThinnest = 0.6;       // pixels: shorter spans are drawn this wide
constexpr size_t kMostRanks = 64;
constexpr double kNetworkLine = 19;  // of the heading
constexpr double kLetterWidth =
    0.65;  // of text, by its font's size; bytes are counted, so the signs × and → leave a margin
constexpr double kLineHeight = 1.4;  // the same

constexpr const char *kWaitingFill = "#f7c9a9";
constexpr const char *kMoving = "#1f8a5b";
constexpr const char *kIdleLink = "#eceff3";
constexpr const char *kBusyLink = "#c8963e";
// Alternating microbatches, planned and claimed.
constexpr std::array<const char *, 4> kCompute{"#2f5f9e", "#6f9fd8", "#7b3f98", "#b98ad0"};
constexpr size_t kClaimed = 2;

struct Panel {
    Arm arm;
    std::string title;
    std::string subtitle;
    std::vector<PicturedRun> runs = {};
    int64_t end_ns = 0;
    double top = 0;
};

struct Span {
    double begin;  // pixels
    double end;
    size_t shade;
};

class Drawing {
public:
    Drawing(const Report &report, const RunRecords &records, const Moments &moments)
        : report_(report), records_(records), moments_(moments), ranks_(std::min(moments.events.size(), kMostRanks)),
          links_(report.workload.hosts ? 2 * report.workload.hosts->count() : 0) {
        row_ = std::clamp(kRowsHeight / double(ranks_), 6.0, 22.0);
        make_panels();
        double top = kTop + network_line();
        for (Panel &panel : panels_) {
            for (const PicturedRun &run : pictured_runs(report, records)) {
                if (report.workload.arms[run.arm] == panel.arm) {
                    panel.runs.push_back(run);
                    panel.end_ns = run.begin_ns + run.duration_ns;
                }
            }
            longest_ns_ = std::max(longest_ns_, panel.end_ns);
            panel.top = top + kPanelHead;
            top = panel.top + rows_height() + kPanelGap;
        }
        bottom_ = top - kPanelGap + 6;
        for (auto panel = panels_.begin() + 1; is_resolved(report_) && !whole() && panel != panels_.end(); ++panel) {
            panel->subtitle += fmt::format(": {:.2f}× in these minibatches", speedup(*panel));
        }
    }

    std::string draw() {
        heading();
        legend();
        axis();
        for (const Panel &panel : panels_) {
            panel_head(panel);
            for (size_t rank = 0; rank < ranks_; ++rank) {
                row(panel, rank);
            }
            for (size_t link = 0; link < links_; ++link) {
                link_row(panel, link);
            }
            minibatch_ends(panel);
        }
        saving();
        return svg_.document(kLeft + kPlotWidth + kRight, bottom_ + kAxisHeight, 12);
    }

private:
    void make_panels() {
        const ReplaySettings &settings = report_.settings;
        const Workload &workload = report_.workload;
        panels_.push_back(
            {kBaseline, "Collective schedule, LB-Micro", "all ranks meet at every gather and every scatter-add"});
        if (links_ > 0) {
            panels_.push_back({kOdcLbMini, "ODC, LB-Mini", "each rank reads and adds for itself"});
            panels_.push_back({kOdcCache, "ODC, LB-Mini, node cache",
                               "a host reads parameters once a minibatch, each rank adds for itself"});
            panels_.push_back({workload.arms.back(), "ODC, LB-Mini, node cache and sums",
                               "a host reads parameters and sends sums once a minibatch"});
            return;
        }
        if (settings.claim > 0) {
            panels_.push_back({workload.without_claims(), title_of(settings, 0), "all ranks meet once a minibatch"});
        }
        panels_.push_back({workload.arms.back(), title_of(settings, settings.claim),
                           settings.claim > 0 ? "ranks that have done their planned part claim the rest"
                                              : "all ranks meet once a minibatch"});
    }

    double network_line() const { return links_ > 0 ? kNetworkLine : 0; }
    double rows_height() const { return row_ * double(ranks_ + links_); }
    double x(double ns) const { return kLeft + kPlotWidth * ns / double(longest_ns_); }
    // Whether it shows the whole run, of which the heading has the speedup: another one here, of the sums of the durations and
    // not of the pairs' median, would look like a second gain.
    bool whole() const { return report_.workload.count() <= kPicturedMinibatches; }
    double speedup(const Panel &panel) const { return double(panels_[0].end_ns) / double(panel.end_ns); }
    static std::string title_of(const ReplaySettings &settings, double claim) {
        return std::string("ODC, LB-Mini") +
               (settings.lookahead > 1 ? fmt::format(", lookahead {}", settings.lookahead) : "") +
               (claim > 0 ? fmt::format(", measured speeds, {:.3g} % claimed", claim * 100) : "");
    }
    static double seconds(int64_t ns) { return double(ns) * 1e-9; }

    void box(double at_x, double at_y, double width, double height, const char *fill) {
        svg_.add("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n", at_x, at_y,
                 std::max(width, 0.0), height, fill);
    }

    void heading() {
        svg_.label(kLeft, 32, "font-size=\"19\" font-weight=\"bold\"",
                   fmt::format("Emulated {} on {} ranks{}: the same {} samples{}", report_.model.name,
                               report_.totals.size(), links_ > 0 ? fmt::format(" of {} hosts", links_ / 2) : "",
                               panels_[0].runs.size() * report_.workload.samples / report_.workload.count(),
                               links_ > 0 ? "" : " under two schedules"));
        std::string line = caption(report_);
        line[0] = 'E';
        svg_.label(kLeft, 53, fmt::format("fill=\"{}\"", Svg::kFaint), line + ".");
        if (links_ > 0) {
            line = network_text(report_.settings, report_.totals.size());
            line[0] = 'E';
            svg_.label(kLeft, 53 + kNetworkLine, fmt::format("fill=\"{}\"", Svg::kFaint), line + ".");
        }
        svg_.label(kLeft, 72 + network_line(), "", whole_run(report_));
    }

    void legend() {
        double at = kLeft;
        const double y = 86 + network_line();
        const auto entry = [&](const std::vector<const char *> &fills, double height, const std::string &label) {
            for (const char *fill : fills) {
                box(at, y + 12 - height, 20, height, fill);
                at += 20;
            }
            svg_.label(at + 7, y + 10.5, "", label);
            at += 37 + 6.6 * double(label.size());
        };
        entry({kCompute[0], kCompute[1]}, 12, "computing (shades: microbatches)");
        if (report_.settings.claim > 0) {
            entry({kCompute[kClaimed], kCompute[kClaimed + 1]}, 12, "claimed");
        }
        entry({kWaitingFill}, 12, "waiting");
        entry({kMoving}, 5, "moving bytes (gather, scatter-add)");
        if (links_ > 0) {
            entry({kBusyLink}, 12, "link in use");
        }
        svg_.add("<path d=\"M{0:.1f},{1:.1f}v14\" stroke=\"{2}\" stroke-width=\"1.5\"/>\n", at + 4, y - 1, Svg::kInk);
        svg_.label(at + 13, y + 10.5, "", "end of a minibatch");
    }

    // A round step that gives about ten ticks.
    double tick_step() const {
        const double wanted = seconds(longest_ns_) / 10;
        const double magnitude = std::pow(10.0, std::floor(std::log10(wanted)));
        for (double factor : {1.0, 2.0, 5.0}) {
            if (factor * magnitude >= wanted) {
                return factor * magnitude;
            }
        }
        return 10 * magnitude;
    }

    void axis() {
        const double step = tick_step();
        const double top = panels_[0].top - 4;
        for (int i = 0; i * step <= seconds(longest_ns_) * 1.0001; ++i) {
            const double at = x(i * step * 1e9);
            svg_.add("<path d=\"M{:.1f},{:.1f}V{:.1f}\" stroke=\"#dde3ea\"/>\n", at, top, bottom_ + 5);
            svg_.label(at, bottom_ + 19, "text-anchor=\"middle\" font-size=\"11\"", fmt::format("{:.6g}", i * step));
        }
        svg_.add("<path d=\"M{:.1f},{:.1f}H{:.1f}\" stroke=\"{}\"/>\n", kLeft, bottom_, kLeft + kPlotWidth, Svg::kInk);
        svg_.label(kLeft + kPlotWidth / 2, bottom_ + 38, "text-anchor=\"middle\"", "time, seconds");
    }

    void panel_head(const Panel &panel) {
        svg_.add(
            "<text x=\"{:.1f}\" y=\"{:.1f}\"><tspan font-size=\"14\" font-weight=\"bold\">{}</tspan><tspan dx=\"12\" "
            "fill=\"{}\">{}</tspan></text>\n",
            kLeft, panel.top - 12, panel.title, Svg::kFaint, panel.subtitle);
        svg_.label(kLeft + kPlotWidth + 12, panel.top - 12, fmt::format("font-size=\"11\" fill=\"{}\"", Svg::kFaint),
                   "idle");
    }

    void row(const Panel &panel, size_t rank) {
        const double y = panel.top + row_ * double(rank);
        const double lane = row_ * 0.62;
        const double strip = row_ * 0.22;
        std::array<std::vector<Span>, 2> spans;  // compute, moving
        for (const Event &event : moments_.events[rank]) {
            const auto run = std::find_if(panel.runs.begin(), panel.runs.end(), [&](const PicturedRun &candidate) {
                return static_cast<int32_t>(candidate.number) == event.run;
            });
            const bool compute = event.kind == Kind::Forward || event.kind == Kind::Backward;
            const bool moving = event.kind == Kind::Gather || event.kind == Kind::ScatterAdd;
            if (run == panel.runs.end() || !(compute || moving)) {
                continue;
            }
            const double begin = x(double(run->begin_ns + event.begin_ns));
            const double end = x(double(run->begin_ns + event.end_ns));
            const size_t shade = size_t(event.microbatch) % 2 + (event.item != kPlanned ? kClaimed : 0);
            add_span(spans[compute ? 0 : 1], {begin, end, compute ? shade : 0});
        }
        box(kLeft, y, x(double(panel.end_ns)) - kLeft, lane, kWaitingFill);
        for (size_t shade = 0; shade < kCompute.size(); ++shade) {
            paint(spans[0], shade, y, lane, kCompute[shade]);
        }
        paint(spans[1], 0, y + lane + 0.5, strip, kMoving);
        const std::string small = fmt::format("font-size=\"{:.1f}\"", std::min(11.0, row_));
        svg_.label(kLeft - 8, y + lane * 0.85, small + " text-anchor=\"end\"", fmt::format("rank {}", rank));
        std::vector<size_t> runs;
        for (const PicturedRun &run : panel.runs) {
            runs.push_back(run.number);
        }
        svg_.label(kLeft + kPlotWidth + 12, y + lane * 0.85, small,
                   fmt::format("{:.0f} %", 100 * idle_share(records_, runs, rank)));
    }

    // A host's links; the number to the right is their idle share, too.
    void link_row(const Panel &panel, size_t link) {
        const auto direction = static_cast<LinkDirection>(link % 2);
        const double y = panel.top + row_ * double(ranks_ + link);
        const double lane = row_ * 0.62;
        std::vector<Span> spans;
        int64_t busy_ns = 0;
        for (const PicturedRun &run : panel.runs) {
            for (const LinkSpan &span : passed(run, link / 2, direction)) {
                busy_ns += span.end_ns - span.begin_ns;
                add_span(spans, {x(double(run.begin_ns + span.begin_ns)), x(double(run.begin_ns + span.end_ns)), 0});
            }
        }
        box(kLeft, y, x(double(panel.end_ns)) - kLeft, lane, kIdleLink);
        paint(spans, 0, y, lane, kBusyLink);
        const std::string small = fmt::format("font-size=\"{:.1f}\"", std::min(11.0, row_));
        svg_.label(kLeft - 8, y + lane * 0.85, small + " text-anchor=\"end\"",
                   fmt::format("host {} {}", link / 2, direction_name(direction)));
        svg_.label(kLeft + kPlotWidth + 12, y + lane * 0.85, small,
                   fmt::format("{:.0f} %", 100 * (1 - double(busy_ns) / double(panel.end_ns))));
    }

    // What all ranks had a link pass in a run, in order.
    std::vector<LinkSpan> passed(const PicturedRun &run, size_t host, LinkDirection direction) const {
        std::vector<LinkSpan> spans;
        for (const std::vector<LinkSpan> &of_rank : moments_.links) {
            std::copy_if(of_rank.begin(), of_rank.end(), std::back_inserter(spans), [&](const LinkSpan &span) {
                return span.run == static_cast<int32_t>(run.number) && span.host == static_cast<int32_t>(host) &&
                       span.direction == direction;
            });
        }
        std::sort(spans.begin(), spans.end(),
                  [](const LinkSpan &a, const LinkSpan &b) { return a.begin_ns < b.begin_ns; });
        return spans;
    }

    static void add_span(std::vector<Span> &spans, const Span &span) {
        if (!spans.empty() && spans.back().shade == span.shade && span.begin - spans.back().end < kMergeBelow) {
            spans.back().end = std::max(spans.back().end, span.end);
        } else {
            spans.push_back(span);
        }
    }

    void paint(const std::vector<Span> &spans, size_t shade, double y, double height, const char *fill) {
        svg_.add("<path fill=\"{}\" d=\"", fill);
        for (const Span &span : spans) {
            if (span.shade == shade) {
                const double width = std::max(span.end - span.begin, kThinnest);
                svg_.add("M{:.2f},{:.2f}h{:.2f}v{:.2f}h{:.2f}z", span.begin, y, width, height, -width);
            }
        }
        svg_.add("\"/>\n");
    }

    void minibatch_ends(const Panel &panel) {
        for (const PicturedRun &run : panel.runs) {
            svg_.add("<path d=\"M{0:.2f},{1:.2f}V{2:.2f}\" stroke=\"{3}\" stroke-width=\"1.5\"/>\n",
                     x(double(run.begin_ns + run.duration_ns)), panel.top - 4, panel.top + rows_height() - 1,
                     Svg::kInk);
        }
    }

    struct Line {
        std::string text;
        double size;
        std::string style;
    };

    // To the right of the panel that ends earlier, where that is wide enough: how much earlier.
    void saving() {
        const Panel &base = panels_[0];
        const Panel &best = panels_.back();
        if (!is_resolved(report_)) {
            return;
        }
        std::vector<Line> lines;
        if (!whole()) {
            lines = {{fmt::format("{:.2f}×", speedup(best)), 20, "font-weight=\"bold\""},
                     {"in these", 12, ""},
                     {fmt::format("{} minibatches", base.runs.size()), 12, ""}};
        }
        lines.push_back({fmt::format("{:.2f} s → {:.2f} s", seconds(base.end_ns), seconds(best.end_ns)), 11,
                         fmt::format("fill=\"{}\"", Svg::kFaint)});
        double widest = 0;
        double height = 0;
        for (const Line &line : lines) {
            widest = std::max(widest, kLetterWidth * line.size * double(line.text.size()));
            height += kLineHeight * line.size;
        }
        const double left = x(double(best.end_ns));
        const double width = kLeft + kPlotWidth - left;
        if (width < widest) {
            return;
        }
        double y = best.top + (rows_height() - height) / 2;
        for (const Line &line : lines) {
            y += kLineHeight * line.size;
            svg_.label(left + width / 2, y,
                       fmt::format("text-anchor=\"middle\" font-size=\"{:.0f}\" {}", line.size, line.style), line.text);
        }
    }

    const Report &report_;
    const RunRecords &records_;
    const Moments &moments_;
    size_t ranks_;
    size_t links_;
    double row_ = 0;
    std::vector<Panel> panels_;
    int64_t longest_ns_ = 1;
    double bottom_ = 0;
    Svg svg_;
};

}  // namespace

void write_timeline(const std::string &path, const Report &report, const RunRecords &records, const Moments &moments) {
    write_file(path, Drawing(report, records, moments).draw());
}

}  // namespace odc_tool
