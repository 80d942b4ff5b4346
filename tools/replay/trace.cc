// SPDX-License-Identifier: Apache-2.0
// Writes the JSON trace event format.
#include "replay/trace.h"

#include "cli/files.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

namespace odc_tool {
namespace {

using Sink = std::back_insert_iterator<std::string>;

bool on_device(Kind kind) { return kind == Kind::Forward || kind == Kind::Backward || kind == Kind::Wait; }

size_t track(size_t rank, Kind kind) { return 2 * rank + (on_device(kind) ? 0 : 1); }

size_t link_track(size_t ranks, size_t host, LinkDirection direction) {
    return 2 * (ranks + host) + static_cast<size_t>(direction);
}

void name_track(Sink out, size_t arm, size_t track, const std::string &name) {
    fmt::format_to(out, R"({{"ph":"M","name":"thread_name","pid":{0},"tid":{1},"args":{{"name":"{2}"}}}},
{{"ph":"M","name":"thread_sort_index","pid":{0},"tid":{1},"args":{{"sort_index":{1}}}}},
)",
                   arm, track, name);
}

void name_tracks(Sink out, const std::vector<Arm> &arms, size_t ranks, size_t hosts) {
    for (size_t arm = 0; arm < arms.size(); ++arm) {
        fmt::format_to(out,
                       R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"{}"}}}},)"
                       "\n",
                       arm, arm_name(arms[arm]));
        for (size_t rank = 0; rank < ranks; ++rank) {
            for (Kind kind : {Kind::Forward, Kind::Gather}) {
                name_track(out, arm, track(rank, kind),
                           fmt::format("rank {} {}", rank, on_device(kind) ? "device" : "communication"));
            }
        }
        for (size_t host = 0; host < hosts; ++host) {
            for (const LinkDirection direction : {LinkDirection::In, LinkDirection::Out}) {
                name_track(out, arm, link_track(ranks, host, direction),
                           fmt::format("host {} {}", host, direction_name(direction)));
            }
        }
    }
}

void write_event(Sink out, const Event &event, size_t rank, const PicturedRun &run) {
    const bool layered = event.kind != Kind::Sync && event.kind != Kind::Update;
    const std::string name = layered ? fmt::format("{} {}", kKindNames[size_t(event.kind)], event.layer)
                                     : std::string(kKindNames[size_t(event.kind)]);
    fmt::format_to(out, R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)", name,
                   kKindNames[size_t(event.kind)], run.arm, track(rank, event.kind),
                   double(run.begin_ns + event.begin_ns) * 1e-3, double(event.end_ns - event.begin_ns) * 1e-3);
    fmt::format_to(out,
                   R"("args":{{"microbatch":{},"layer":{}{}}}}},)"
                   "\n",
                   event.microbatch, event.layer,
                   event.item != kPlanned ? fmt::format(R"(,"claimed":{})", event.item) : "");
}

void write_span(Sink out, const LinkSpan &span, size_t ranks, const PicturedRun &run) {
    fmt::format_to(out,
                   R"({{"ph":"X","name":"link","cat":"link","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{}}}},)"
                   "\n",
                   run.arm, link_track(ranks, static_cast<size_t>(span.host), span.direction),
                   double(run.begin_ns + span.begin_ns) * 1e-3, double(span.end_ns - span.begin_ns) * 1e-3);
}

}  // namespace

void write_trace(const std::string &path, const Report &report, const RunRecords &records, const Moments &moments) {
    const std::vector<std::vector<Event>> &events = moments.events;
    std::map<int32_t, PicturedRun> runs;
    for (const PicturedRun &run : pictured_runs(report, records)) {
        runs[static_cast<int32_t>(run.number)] = run;
    }
    std::string text = "{\"traceEvents\":[\n";
    const Sink out(text);
    const auto &hosts = report.workload.hosts;
    name_tracks(out, report.workload.arms, events.size(), hosts ? hosts->count() : 0);
    for (size_t rank = 0; rank < events.size(); ++rank) {
        for (const Event &event : events[rank]) {
            write_event(out, event, rank, runs.at(event.run));
        }
        for (const LinkSpan &span : moments.links[rank]) {
            write_span(out, span, events.size(), runs.at(span.run));
        }
    }
    text.erase(text.rfind(','));
    text += "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"emulation\":" + line_text(caption(report)) + "}}\n";
    write_file(path, text);
}

}  // namespace odc_tool
