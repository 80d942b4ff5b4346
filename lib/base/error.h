// SPDX-License-Identifier: Apache-2.0
// Errors and their words. Inside the library a failure is an Error; c_api.cc turns it into an odc_status and keeps the
// sentence for odc_last_error.
#pragma once

#include <odc/odc.h>

#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace odc {

class Error : public std::runtime_error {
public:
    Error(odc_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    odc_status status() const { return status_; }

private:
    odc_status status_;
};

// Joins its arguments into one sentence.
template <class... Parts>
std::string say(const Parts &...parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

// "eth0; eth1": a list for a sentence; of a long one the first few, and how many more there are.
std::string listed(const std::vector<std::string> &words, const char *between);
std::string joined(const std::vector<std::string> &words, const char *between);  // all of them

// Copies a text and a zero byte; where it is too long, whole characters of UTF-8 and "..." for the rest. Allocates nothing.
void put(std::span<char> field, std::string_view text);
std::string cut(std::string_view text, size_t bytes);  // the same, `bytes` at most

template <class... Parts>
[[noreturn]] void fail(odc_status status, const Parts &...parts) {
    throw Error(status, say(parts...));
}

// ODC_ERROR_SYSTEM with errno's words: "mmap of 4096 bytes: Cannot allocate memory", and what to do about a limit on
// descriptors.
[[noreturn]] void fail_errno(const std::string &what);

constexpr const char *kNoMemoryWords = "the process has no memory left for the library's own use";

// The exception that is being handled: in other words if it is no Error.
Error current_error();

// `status` may be any number.
const char *status_string(int32_t status);

}  // namespace odc
