// SPDX-License-Identifier: Apache-2.0
// Errors and their messages. The library throws Error; c_api.cc converts it to an odc_status and keeps the message for
// odc_last_error.
#pragma once

#include <odc/odc.h>

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"

namespace odc {

class Error : public std::runtime_error {
public:
    Error(odc_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    odc_status status() const { return status_; }

private:
    odc_status status_;
};

// "eth0; eth1": a list for a message; a long list is cut to its first `most` items and "and 7 more".
std::string listed(const std::vector<std::string> &items, const char *between, size_t most = 4);
std::string joined(const std::vector<std::string> &items, const char *between);  // without a limit

// Copies a text and a terminating zero. A text that is too long is cut at a UTF-8 character and ends in "...". Does not
// allocate.
void put(std::span<char> field, std::string_view text);
std::string cut(std::string_view text, size_t bytes);  // the same, to at most `bytes`

[[noreturn]] void vfail(odc_status status, fmt::string_view form, fmt::format_args values);

template <class... Values>
[[noreturn]] void fail(odc_status status, fmt::format_string<const Values &...> form, const Values &...values) {
    vfail(status, view_of(form), fmt::make_format_args(values...));
}

// Throws ODC_ERROR_SYSTEM with errno's message, "mmap of 4096 bytes: Cannot allocate memory", and with advice if the limit on
// descriptors was reached.
[[noreturn]] void fail_errno(const std::string &what);

constexpr const char *kNoMemoryText = "the process has no memory left for the library's own use";

// The exception being handled, converted to an Error if it is another type.
Error current_error();

// `status` may be any number.
const char *status_string(int32_t status);

}  // namespace odc
