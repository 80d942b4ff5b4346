// SPDX-License-Identifier: Apache-2.0
// stdlib-lengths.txt, compiled into the command (builtin_lengths.cc.in).
#pragma once

namespace odc_tool {

const char *builtin_lengths_text();

}  // namespace odc_tool
