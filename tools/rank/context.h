// SPDX-License-Identifier: Apache-2.0
// How `odc replay` and `odc bench` join a job and report errors.
#pragma once

#include <odc/odc.h>

#include <memory>
#include <string>

namespace odc_tool {

struct DestroyContext {
    void operator()(odc_context *context) const { odc_destroy(context); }
};
using Context = std::unique_ptr<odc_context, DestroyContext>;

// odc_init's error for the environment's settings, which it finds without other ranks: as a job of `size` ranks; 0: the
// environment's.
std::string init_error(int32_t size);
// Throws Exit with it, as check(), before ranks are started that would all report it.
void check_environment(int32_t size);

// Throws Exit with the library's error; without one for an abort, which the aborting rank reports.
void check(odc_status status);

// Joins the job that the environment names.
Context join(const char *group);
// As a rank of a replay or a race: an error in a setting, which all ranks get, is printed by rank 0 only. Throws Exit if the job
// does not have --ranks ranks (0: any number). `device` is this rank's GPU; NULL: that of ODC_DEVICE, or none.
Context join(const char *group, int ranks, const char *device = nullptr);
// A job of this rank alone.
Context join_alone(const char *group, const char *device);
// Joins the ranks of `context`, all on this host, once more, in blocks on as many hosts, which reach each other through the
// loopback interface, unless ODC_INTERFACE names another. Collective; `context` is between sync and publish.
Context join_apart(odc_context *context, const char *group, int hosts);

}  // namespace odc_tool
