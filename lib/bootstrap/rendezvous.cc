// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous.h"

#include <sodium.h>

#include "base/fork_gate.h"
#include "base/log.h"
#include "base/settings.h"
#include "topology/host.h"

namespace odc {

namespace {

constexpr int kMostRanks = 1 << 20;
constexpr size_t kLongestHost = 63;

void name_host(const odc_config &config, Rendezvous *found) {
    const std::string given = config.host != nullptr ? config.host : "";
    const std::string named = given.empty() ? setting(Setting::kHostId) : given;
    if (named.size() > kLongestHost) {
        fail(ODC_ERROR_ARGUMENT, "{} has {} bytes, at most {} fit; choose a shorter one",
             given.empty() ? formatted("{}=\"{}\" is wrong: it", setting_row(Setting::kHostId).name, named)
                           : "config.host",
             named.size(), kLongestHost);
    }
    // The prefix keeps a user's text from being equal to a machine's identity.
    found->identity = named.empty() ? host_identity() : "named " + named;
    found->host = named.empty() ? host_name() : named;
    if (!named.empty()) {
        found->named_by = given.empty() ? formatted("{}=\"{}\"", setting_row(Setting::kHostId).name, named)
                                        : formatted("config.host \"{}\"", named);
    }
}

// Job "a/b" is not job "a" with group "b": only a group follows a slash.
std::string name_of(const std::string &job, const std::string &group) {
    std::string name;
    for (const char c : job) {
        name += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
    }
    return group.empty() ? name : name + "/" + group;
}

[[noreturn]] void fail_no_way(const Rendezvous &rendezvous) {
    const std::string &size_from = rendezvous.launch.size_from;
    fail(ODC_ERROR_RENDEZVOUS,
         "odc_init: {} says that there are {} ranks, but not that all are on this host; give config.all_gather (MPI "
         "or a torch store), or ODC_RENDEZVOUS=host:port of rank 0 with ODC_SECRET, or (one host) config.job; PMIx: {}",
         size_from.empty() ? "config" : size_from, rendezvous.launch.size, why_not_pmix());
}

struct Sodium {
    int status = sodium_init();
};

}  // namespace

bool Rendezvous::by_name() const { return all_gather == nullptr && address.empty() && launch.one_host; }

std::string Rendezvous::way() const {
    if (launch.size == 1) {
        return "a job of this rank only";
    }
    const std::string job = launch.job.empty() ? "a job" : formatted("job \"{}\"", launch.job);
    return formatted("{} of {} ranks {}", job, launch.size,
                     all_gather != nullptr       ? "by the program's all_gather"
                     : !address.empty()          ? "at " + address
                     : by_name()                 ? "by name on this host"
                     : why_not_pmix() == nullptr ? "by PMIx"
                                                 : "without a rendezvous");
}

Rendezvous find_rendezvous(const odc_config &config, Log &log) {
    Rendezvous found{{}, {}, {}, {}, config.all_gather, config.all_gather_arg, {}, {}, {}};
    found.group = config.group != nullptr ? config.group : "";
    log.set_process(host_name(), found.group);
    name_host(config, &found);
    log.set_process(found.host, found.group);
    if (config.size < 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_init: size is {}, must be 1 or more", config.size);
    }
    if (config.size > kMostRanks) {
        fail(ODC_ERROR_ARGUMENT, "odc_init: size is {}, at most {} ranks are possible", config.size, kMostRanks);
    }
    if (config.size == 0 && config.rank != 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_init: rank {} is given without a size; set config.size, too", config.rank);
    }
    if (config.size > 0) {
        if (config.rank < 0 || config.rank >= config.size) {
            fail(ODC_ERROR_ARGUMENT, "odc_init: rank {} is not in 0..{}", config.rank, config.size - 1);
        }
        // A launcher's job id still helps ranks that were numbered by the caller to meet.
        if (config.job == nullptr && config.size > 1 && config.all_gather == nullptr) {
            found.launch = find_launch_info();
        }
        found.launch.size_from.clear();
        found.launch.rank = config.rank;
        found.launch.size = config.size;
    } else {
        found.launch = find_launch_info();
        if (found.launch.size_from.empty()) {
            fail(ODC_ERROR_RENDEZVOUS,
                 "odc_init: no launcher is found and the config gives no rank and size; start the program with odc run "
                 "-n N, torchrun, mpirun or srun, or set config.rank, config.size and config.job");
        }
    }
    if (config.job != nullptr) {
        found.launch.job = config.job;
        found.launch.one_host = true;
    }
    log.set_rank(found.launch.rank, found.launch.size);
    found.launch.job = name_of(found.launch.job, found.group);
    found.address = config.rendezvous != nullptr ? config.rendezvous : setting(Setting::kRendezvous);
    found.secret = config.secret != nullptr ? config.secret : setting(Setting::kSecret);
    return found;
}

std::unique_ptr<Allgather> open_allgather(const Rendezvous &rendezvous, const Deadline &deadline) {
    const LaunchInfo &launch = rendezvous.launch;
    if (launch.size == 1 || rendezvous.by_name()) {
        return nullptr;
    }
    if (made_once<Sodium>(Locks::Libsodium).status < 0) {
        fail(ODC_ERROR_SYSTEM, "libsodium found no source of random numbers");
    }
    if (rendezvous.all_gather != nullptr) {
        return make_allgather_callback(rendezvous.all_gather, rendezvous.all_gather_arg, launch.size);
    }
    if (!rendezvous.address.empty()) {
        if (rendezvous.secret.empty()) {
            fail(ODC_ERROR_RENDEZVOUS,
                 "odc_init: a rendezvous at {} needs a secret that all ranks share; set ODC_SECRET or config.secret",
                 rendezvous.address);
        }
        return make_allgather_tcp(rendezvous.address, rendezvous.secret, rendezvous.host, launch.rank, launch.size,
                                  deadline);
    }
    if (why_not_pmix() != nullptr) {
        fail_no_way(rendezvous);
    }
    return make_allgather_pmix(launch.rank, launch.size, deadline);
}

}  // namespace odc
