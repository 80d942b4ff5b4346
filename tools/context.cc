// SPDX-License-Identifier: Apache-2.0
// Joining a job as one rank.
#include "context.h"

#include "verbs.h"

#include <fmt/format.h>

namespace odc_tool {

void check(odc_status status) {
    if (status == ODC_ERROR_ABORTED) {
        throw Exit{1, ""};
    }
    if (status != ODC_OK) {
        throw Exit{1, odc_last_error()};
    }
}

Context join(const char *group, int ranks) {
    odc_config config{};
    config.struct_size = sizeof config;
    config.group = group;
    odc_context *joined = nullptr;
    check(odc_init(&config, &joined));
    Context context(joined);
    if (ranks != 0 && odc_size(joined) != ranks) {
        throw Exit{2, fmt::format("--ranks {} was asked for inside a job of {} ranks; leave it out there", ranks,
                                  odc_size(joined))};
    }
    return context;
}

}  // namespace odc_tool
