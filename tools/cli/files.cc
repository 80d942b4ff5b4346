// SPDX-License-Identifier: Apache-2.0
#include "cli/files.h"

#include "cli/exit.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <ios>

namespace odc_tool {

namespace {

void write(const std::string &path, const std::string &text, std::ios::openmode mode) {
    errno = 0;
    std::ofstream file(path, mode);
    file << text;
    file.close();
    if (!file) {
        throw Exit{1, fmt::format("{} cannot be written: {}", path, std::strerror(errno))};
    }
}

}  // namespace

void write_file(const std::string &path, const std::string &text) { write(path, text, std::ios::out); }

void check_writable(const std::string &path) { write(path, "", std::ios::app); }

}  // namespace odc_tool
