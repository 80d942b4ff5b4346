// SPDX-License-Identifier: Apache-2.0
// The sequence lengths of `odc plan` and `odc replay`: from a file of numbers, the sizes of a directory's text files, or built in.
// Errors throw Exit{2, one sentence with the file and line}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace odc_tool {

// One positive number per line, so that sample i is in line i + 1; "-" reads standard input. A length above `budget` (tokens
// per microbatch) is an error.
std::vector<uint64_t> read_lengths(const std::string &path, uint64_t budget);

// The sizes of 796 Python files of CPython's standard library, where the user gives none.
std::vector<uint64_t> builtin_lengths(uint64_t budget);

// The bytes of each text file under `directory`, capped at `cap`, in the order of the files' paths, without empty and binary
// files, symbolic links, and directories named test, tests or site-packages.
std::vector<uint64_t> corpus_lengths(const std::string &directory, uint64_t cap);

}  // namespace odc_tool
