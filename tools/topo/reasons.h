// SPDX-License-Identifier: Apache-2.0
// Whether `odc topo` tells why each path is taken and the others are not: --why.
#pragma once

namespace odc_tool {

enum class Reasons { Untold, Told };

}  // namespace odc_tool
