// SPDX-License-Identifier: Apache-2.0
// Where `odc plan` and `odc replay` get sequence lengths from: a file of numbers, or the sizes of a directory's text
// files. What is wrong with either leaves the command with Exit{2, one sentence naming the file and line}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace odc_tool {

// One positive number per line, so that sample i stands in line i + 1; "-" reads standard input. A length above
// `budget` (tokens per microbatch) is an error.
std::vector<uint64_t> read_lengths(const std::string &path, uint64_t budget);

// Bytes of each text file under `directory`, cut at `cap`, in the order of the files' paths. Left out: empty and binary
// files, symbolic links, and what lies in directories named test, tests or site-packages.
std::vector<uint64_t> corpus_lengths(const std::string &directory, uint64_t cap);

}  // namespace odc_tool
