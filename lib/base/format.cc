// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY
#include "base/format.h"

#include <fmt/format.h>

namespace odc {

std::string vformatted(fmt::string_view form, fmt::format_args values) { return fmt::vformat(form, values); }

}  // namespace odc
