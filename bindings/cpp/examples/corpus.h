// SPDX-License-Identifier: Apache-2.0
// The training text: paragraphs of text files in a fixed order, whose lengths have a long tail; without a folder, the sources
// of Python's standard library.
#ifndef EXAMPLES_CORPUS_H
#define EXAMPLES_CORPUS_H
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

class Corpus {
public:
    // Longer paragraphs are cut.
    Corpus(const std::string &folder, size_t max_bytes) : max_bytes_(max_bytes) {
        const std::filesystem::path root = folder.empty() ? python_library() : std::filesystem::path(folder);
        list(root, folder.empty() ? ".py" : "");
        if (files_.empty()) {
            throw std::runtime_error(root.string() + " has no text to train on");
        }
    }

    // The next paragraphs, from the first file again after the last.
    std::vector<std::string> take(size_t count) {
        for (size_t files_without = 0; found_.size() < count; next_file_ = (next_file_ + 1) % files_.size()) {
            const size_t before = found_.size();
            read(files_[next_file_]);
            files_without = found_.size() > before ? 0 : files_without + 1;
            if (files_without > files_.size()) {
                throw std::runtime_error("the files have no paragraph to train on");
            }
        }
        const auto end = found_.begin() + static_cast<std::ptrdiff_t>(count);
        std::vector<std::string> taken(found_.begin(), end);
        found_.erase(found_.begin(), end);
        return taken;
    }

private:
    static std::filesystem::path python_library() {
        const char *script = "python3 -c \"import sysconfig; print(sysconfig.get_path('stdlib'), end='')\"";
        const std::unique_ptr<FILE, int (*)(FILE *)> pipe(popen(script, "r"), pclose);
        std::array<char, 4096> path{};
        if (pipe == nullptr || std::fread(path.data(), 1, path.size() - 1, pipe.get()) == 0) {
            throw std::runtime_error(
                "python3 does not say where its library is; give a folder of text files by --data");
        }
        return path.data();
    }

    // Sorted, with folders in place; no links.
    void list(const std::filesystem::path &folder, const std::string &suffix) {
        static const std::vector<std::string> kSkipped{"test",          "tests",       "site-packages",
                                                       "dist-packages", "__pycache__", "idle_test"};
        std::vector<std::filesystem::directory_entry> entries;
        std::copy(std::filesystem::directory_iterator(folder), {}, std::back_inserter(entries));
        std::sort(entries.begin(), entries.end());
        for (const auto &entry : entries) {
            const std::string name = entry.path().filename().string();
            if (entry.is_symlink()) {
                continue;
            }
            if (entry.is_directory() && std::count(kSkipped.begin(), kSkipped.end(), name) == 0) {
                list(entry.path(), suffix);
            } else if (entry.is_regular_file() && name.size() >= suffix.size() &&
                       name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
                files_.push_back(entry.path());
            }
        }
    }

    void read(const std::filesystem::path &path) {
        std::ifstream file(path, std::ios::binary);
        if (!file) {
            throw std::runtime_error(path.string() + " cannot be read");
        }
        const std::string text((std::istreambuf_iterator<char>(file)), {});
        for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 2) {
            end = text.find("\n\n", begin);
            const std::string paragraph = text.substr(begin, end == std::string::npos ? end : end - begin);
            if (paragraph.find_first_not_of(" \t\r\n") != std::string::npos) {
                found_.push_back(paragraph.substr(0, max_bytes_));
            }
            if (end == std::string::npos) {
                break;
            }
        }
    }

    size_t max_bytes_;
    std::vector<std::filesystem::path> files_;
    size_t next_file_ = 0;
    std::vector<std::string> found_;
};

#endif
