// SPDX-License-Identifier: Apache-2.0
// Sequence lengths from a file of numbers, from a directory of text files, or built in.
#include "cli/lengths.h"

#include "cli/builtin_lengths.h"
#include "cli/exit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string_view>
#include <utility>

namespace odc_tool {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSpace = " \t\r";                 // \r: lines may end as on Windows
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // which editors on Windows put before UTF-8
constexpr size_t kShownBytes = 40;                           // of a line that is not a number
constexpr size_t kProbedBytes = 8000;                        // of a file; as in git, a NUL among them makes it binary

template <class... Values>
[[noreturn]] void refuse(fmt::format_string<const Values &...> form, const Values &...values) {
    throw Exit{2, fmt::format(form, values...)};
}

// The line's beginning, with unprintable bytes replaced.
std::string shown(std::string_view line) {
    std::string out;
    for (const char c : line.substr(0, kShownBytes)) {
        out += c >= ' ' && c <= '~' ? c : '?';
    }
    return line.size() > kShownBytes ? out + "..." : out;
}

uint64_t parse_length(std::string_view line, const std::string &where, uint64_t budget) {
    const size_t begin = std::min(line.find_first_not_of(kSpace), line.size());
    line = line.substr(begin, line.find_last_not_of(kSpace) + 1 - begin);
    if (line.empty()) {
        refuse("{}: the line is blank; every line must hold one length", where);
    }
    uint64_t length = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), length);
    if (end != line.data() + line.size() || error == std::errc::invalid_argument) {
        refuse("{}: \"{}\" is not a positive whole number", where, shown(line));
    }
    if (error == std::errc::result_out_of_range) {
        refuse("{}: {} is more than 64 bits hold", where, shown(line));
    }
    if (length == 0) {
        refuse("{}: a length of 0; every sample needs at least one token", where);
    }
    if (length > budget) {
        refuse(
            "{}: the sample's {} tokens are above the budget of {} per microbatch; raise --max-tokens or cut the sample",
            where, length, budget);
    }
    return length;
}

std::vector<uint64_t> read_stream(std::istream &in, const std::string &name, uint64_t budget) {
    std::vector<uint64_t> lengths;
    std::string line;
    while (std::getline(in, line)) {
        if (lengths.empty() && line.starts_with(kByteOrderMark)) {
            line.erase(0, kByteOrderMark.size());
        }
        const std::string where = fmt::format("{}:{}", name, lengths.size() + 1);
        lengths.push_back(parse_length(line, where, budget));
    }
    if (in.bad()) {
        refuse("{}: cannot be read: {}", name, std::strerror(errno));
    }
    if (lengths.empty()) {
        refuse("{}: no lengths in it; give one number per line", name);
    }
    return lengths;
}

bool skipped(const fs::path &directory) {
    const std::string name = directory.filename().string();
    return name == "test" || name == "tests" || name == "site-packages";
}

bool is_text(const fs::path &file) {
    std::ifstream in(file, std::ios::binary);
    std::array<char, kProbedBytes> bytes;
    in.read(bytes.data(), bytes.size());
    const auto count = static_cast<size_t>(in.gcount());
    return count > 0 && !std::memchr(bytes.data(), 0, count);
}

}  // namespace

std::vector<uint64_t> read_lengths(const std::string &path, uint64_t budget) {
    if (path == "-") {
        return read_stream(std::cin, "standard input", budget);
    }
    if (fs::is_directory(path)) {
        refuse("{}: is a directory, not a file of lengths", path);
    }
    std::ifstream in(path);
    if (!in) {
        refuse("{}: cannot be opened: {}", path, std::strerror(errno));
    }
    return read_stream(in, path, budget);
}

std::vector<uint64_t> builtin_lengths(uint64_t budget) {
    std::istringstream in(builtin_lengths_text());
    return read_stream(in, "the built-in lengths", budget);
}

std::vector<uint64_t> corpus_lengths(const std::string &directory, uint64_t cap) {
    std::vector<std::pair<std::string, uint64_t>> files;
    try {
        for (fs::recursive_directory_iterator at(directory, fs::directory_options::skip_permission_denied), end;
             at != end; ++at) {
            const fs::file_status status = at->symlink_status();
            if (fs::is_directory(status) && skipped(at->path())) {
                at.disable_recursion_pending();
            } else if (fs::is_regular_file(status)) {
                // Files in /proc have content but no size.
                if (const uint64_t bytes = at->file_size(); bytes > 0 && is_text(at->path())) {
                    files.emplace_back(at->path().string(), bytes);
                }
            }
        }
    } catch (const fs::filesystem_error &error) {
        refuse("{}: cannot be read: {}", directory, error.code().message());
    }
    if (files.empty()) {
        refuse("{}: no text files in it or below it that have a size", directory);
    }
    std::sort(files.begin(), files.end());
    std::vector<uint64_t> lengths;
    for (const auto &[path, bytes] : files) {
        lengths.push_back(std::min(bytes, cap));
    }
    return lengths;
}

}  // namespace odc_tool
