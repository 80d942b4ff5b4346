// SPDX-License-Identifier: Apache-2.0
#include "cli/json.h"

#include <nlohmann/json.hpp>

namespace odc_tool {

std::string line_text(const Json &json, NotUtf8 bytes) {
    return json.dump(-1, ' ', false,
                     bytes == NotUtf8::Replaced ? Json::error_handler_t::replace : Json::error_handler_t::strict);
}

std::string lines_text(const Json &json) { return json.dump(2); }

Json parse_json(const std::string &text) { return Json::parse(text); }

}  // namespace odc_tool
