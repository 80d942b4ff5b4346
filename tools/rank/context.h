// SPDX-License-Identifier: Apache-2.0
// How `odc replay` and `odc bench` join a job and hear of errors.
#pragma once

#include <odc/odc.h>

#include <memory>

namespace odc_tool {

struct DestroyContext {
    void operator()(odc_context *context) const { odc_destroy(context); }
};
using Context = std::unique_ptr<odc_context, DestroyContext>;

// Throws Exit with the library's sentence; silent for an abort, whose sentence the aborting rank prints.
void check(odc_status status);

// Joins the job that the environment names. Throws Exit when it has not as many ranks as --ranks says; 0: any number.
// `device` is this rank's GPU; NULL: ODC_DEVICE's, or none.
Context join(const char *group, int ranks, const char *device = nullptr);
// A job of this rank alone.
Context join_alone(const char *group, const char *device);
// Joins the ranks of `meeting`, all on this host, again, each as a host of its own that the others reach through the
// loopback interface, unless ODC_INTERFACE says another. Collective; `meeting` is between sync and publish.
Context join_apart(odc_context *meeting);

}  // namespace odc_tool
