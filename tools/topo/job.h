// SPDX-License-Identifier: Apache-2.0
// `odc topo` as a rank of a job: the route of each pair of its ranks.
#pragma once

#include "topo/reasons.h"

#include <vector>

namespace odc_tool {

enum class Form { Text, JsonText };

struct JobTopo {
    Reasons reasons = Reasons::Untold;
    std::vector<int> pair;  // whose route is shown; empty: all
    Form form = Form::Text;
};

// Joins the job; rank 0 prints.
void show_job(const JobTopo &wanted);

}  // namespace odc_tool
