// SPDX-License-Identifier: Apache-2.0
// Whether `odc topo` explains why each route is taken and the others are not: --why.
#pragma once

namespace odc_tool {

enum class Reasons { Untold, Told };

}  // namespace odc_tool
