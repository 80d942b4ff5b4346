// SPDX-License-Identifier: Apache-2.0
// JSON as text. What reads and writes it takes seconds to compile, so one file has it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace odc_tool {

using Json = nlohmann::ordered_json;

enum class NotUtf8 { Refused, Replaced };

// Throws Json::exception for bytes that are not UTF-8, unless they are replaced.
std::string line_text(const Json &json, NotUtf8 bytes = NotUtf8::Refused);
// Likewise, in lines that are indented by two.
std::string lines_text(const Json &json);
// Throws Json::exception.
Json parse_json(const std::string &text);

}  // namespace odc_tool
