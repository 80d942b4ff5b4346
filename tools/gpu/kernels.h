// SPDX-License-Identifier: Apache-2.0
// The tool's own GPU kernels, as PTX, which the CUDA driver compiles.
#pragma once

namespace odc_tool {

// PTX of odc_plain_add_f32, odc_plain_add_f64, odc_plain_add_bf16 and odc_plain_add_f16 of gpu/kernels/plain_add.cu.
const char *plain_add_ptx();

}  // namespace odc_tool
