// SPDX-License-Identifier: Apache-2.0
// The launcher: one agent per host.
#include "run/hosts.h"

#include "cli/exit.h"
#include "run/agent.h"
#include "run/launch.h"
#include "run/supervisor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace odc_tool {

namespace {

bool is_plain(std::string_view text, std::string_view others) {
    return !text.empty() && text[0] != '-' && std::all_of(text.begin(), text.end(), [&](char c) {
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
               others.find(c) != std::string_view::npos;
    });
}

std::vector<std::string> split(const std::string &text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) {
        parts.push_back(part);
    }
    return parts;
}

// A name becomes part of a command line, where it must not be taken for an option or shell syntax.
std::vector<std::string> host_names(const HostsLaunch &wanted) {
    const std::vector<std::string> hosts = split(wanted.hosts, ',');
    for (const std::string &host : hosts) {
        if (!is_plain(host, "._:@%-")) {
            throw Exit{2, fmt::format("--hosts: \"{}\" is not the name of a host", host)};
        }
    }
    if (hosts.empty() || hosts.size() > static_cast<size_t>(wanted.ranks)) {
        throw Exit{2, fmt::format("--hosts names {} hosts for {} ranks; give each host one or more", hosts.size(),
                                  wanted.ranks)};
    }
    return hosts;
}

// The path of this command for a shell on the host, if it is installed there as here.
std::string own_path() {
    const std::string path = std::filesystem::read_symlink("/proc/self/exe");
    if (!is_plain(path, "/._+-")) {
        throw Exit{1,
                   fmt::format("'{}' holds characters that a remote shell would not leave alone; install odc elsewhere",
                               path)};
    }
    return path;
}

std::vector<std::string> start_command(const std::string &via, const std::string &host) {
    std::vector<std::string> words;
    bool named = false;
    for (std::string word : split(via, ' ')) {
        for (size_t at = word.find("{host}"); at != std::string::npos; at = word.find("{host}")) {
            word.replace(at, 6, host);
            named = true;
        }
        if (!word.empty()) {
            words.push_back(word);
        }
    }
    if (!named) {
        throw Exit{2, fmt::format("--via \"{}\" has no {{host}} in it, which stands for the name of a host", via)};
    }
    words.insert(words.end(), {own_path(), "run", "--agent"});
    return words;
}

// The settings for the agents' ranks: all but those that differ between them.
std::vector<std::pair<std::string, std::string>> own_settings() {
    std::vector<std::pair<std::string, std::string>> settings;
    for (char **variable = environ; *variable != nullptr; ++variable) {
        const std::string text = *variable;
        const std::string name = text.substr(0, text.find('='));
        constexpr std::array<std::string_view, 6> kOwn = {"ODC_RANK",       "ODC_SIZE",   "ODC_JOB",
                                                          "ODC_RENDEZVOUS", "ODC_SECRET", "ODC_HOST_ID"};
        if (name.starts_with("ODC_") && std::find(kOwn.begin(), kOwn.end(), name) == kOwn.end()) {
            settings.emplace_back(name, text.substr(std::min(name.size() + 1, text.size())));
        }
    }
    return settings;
}

class HostsJob {
public:
    explicit HostsJob(const HostsLaunch &wanted)
        : wanted_(wanted), hosts_(host_names(wanted)), secret_(random_name() + random_name()), job_(random_name()),
          work_(make_work()), supervisor_(work_) {
        supervisor_.output().listen([this](size_t host, const std::string &line) { return hear(host, line); });
    }

    int run() {
        supervisor_.start();
        supervisor_.supervise();
        return supervisor_.status();
    }

private:
    Work make_work() const {
        Work work;
        work.noun = "host";
        for (const std::string &host : hosts_) {
            work.processes.push_back({host, "", start_command(wanted_.via, host), {}, Input::Orders});
        }
        return work;
    }

    // With the first host's port the parts of all hosts are complete and can be sent.
    bool hear(size_t host, const std::string &line) {
        const std::optional<AgentMessage> message = read_agent_message(line);
        if (!message) {
            return false;
        }
        if (message->kind == AgentMessage::Kind::Failed) {
            supervisor_.fail(message->number, {"rank", std::to_string(message->second), message->how});
        } else if (host == 0) {
            const std::string name = hosts_[0].substr(hosts_[0].find('@') + 1);  // from user@host
            const std::string address = wanted_.address.empty() ? name : wanted_.address;
            const bool v6 = address.find(':') != std::string::npos;
            tell(fmt::format("{}:{}", v6 ? "[" + address + "]" : address, message->number),
                 torch_rendezvous(address, message->second));
        }
        return true;
    }

    void tell(const std::string &rendezvous, const std::vector<std::pair<std::string, std::string>> &torch) {
        const auto count = static_cast<int>(hosts_.size());
        for (int host = 0; host < count; ++host) {
            AgentPart part;
            part.first = static_cast<int>(static_cast<int64_t>(wanted_.ranks) * host / count);
            part.end = static_cast<int>(static_cast<int64_t>(wanted_.ranks) * (host + 1) / count);
            part.size = wanted_.ranks;
            part.job = job_;
            part.directory = std::filesystem::current_path();
            part.argv = wanted_.argv;
            part.environment = own_settings();
            part.environment.insert(part.environment.end(), torch.begin(), torch.end());
            part.environment.emplace_back("ODC_RENDEZVOUS", rendezvous);
            part.environment.emplace_back("ODC_SECRET", secret_);
            supervisor_.order(static_cast<size_t>(host), write_part(part) + "\n");
        }
    }

    const HostsLaunch &wanted_;
    std::vector<std::string> hosts_;
    std::string secret_;
    std::string job_;
    Work work_;
    Supervisor supervisor_;
};

}  // namespace

int launch_on_hosts(const HostsLaunch &wanted) {
    HostsJob job(wanted);
    return job.run();
}

}  // namespace odc_tool
