// SPDX-License-Identifier: Apache-2.0
// The examples' options.
#ifndef EXAMPLES_OPTIONS_H
#define EXAMPLES_OPTIONS_H
#include <stdexcept>
#include <string>

struct Options {
    std::string data;  // a folder of text files
    size_t minibatches = 20;
    size_t paragraphs = 32;  // of a minibatch, of all ranks

    Options(int argc, char **argv) {
        for (int i = 1; i < argc; i += 2) {
            const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
            if (name == "--data") {
                data = value;
                if (data.empty()) {
                    throw std::runtime_error("--data wants a folder of text files");
                }
            } else if (name == "--minibatches") {
                minibatches = number(name, value);
            } else if (name == "--paragraphs") {
                paragraphs = number(name, value);
            } else {
                throw std::runtime_error(name +
                                         " is no option; there are --data FOLDER, --minibatches N and --paragraphs N");
            }
        }
    }

private:
    static size_t number(const std::string &name, const std::string &value) {
        if (value.empty() || value.size() > 9 || value.find_first_not_of("0123456789") != std::string::npos) {
            throw std::runtime_error(name + " wants a number, not \"" + value + "\"");
        }
        return std::stoul(value);
    }
};

#endif
