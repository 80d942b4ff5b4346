// SPDX-License-Identifier: Apache-2.0
// What crossed between emulated hosts in an arm's runs, and how much of the time for it compute hid. Seconds are those of the
// emulated devices.
#pragma once

#include "cli/json.h"
#include "rank/statistics.h"
#include "replay/record.h"
#include "replay/schedule.h"

#include <string>

namespace odc_tool {

struct NetworkReport {
    MedianInterval seconds;  // of a minibatch
    // Mean over minibatches and hosts; as run.
    double bytes;            // into a host, as the library counted them; of a ring by its formula
    double formula;          // the same if everything crosses as often as it must
    double network_seconds;  // of a minibatch, mean: what the busiest link needs
    double hidden;           // the share of it that adds nothing to the time without communication
    double share_of_longer;  // of that time and network_seconds, whichever takes longer
};

// Reports on the workload's arm `arm`.
NetworkReport network_report(const Workload &workload, const RunRecords &records, size_t arm);

// Above every output: what of the network is emulated, and how.
std::string network_text(const ReplaySettings &settings, size_t ranks);
// The header, and a row; `scale` bytes of the model are one as run.
std::string network_header();
std::string network_row(const NetworkReport &report, double scale);
std::string network_legend();
Json network_json(const NetworkReport &report);

}  // namespace odc_tool
