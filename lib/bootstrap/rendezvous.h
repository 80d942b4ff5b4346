// SPDX-License-Identifier: Apache-2.0
// Finds out which rank this is and where it meets the others, from the configuration and the environment.
#pragma once

#include "bootstrap/allgather.h"
#include "bootstrap/launcher_env.h"

#include <memory>
#include <string>

namespace odc {

class Log;

struct Rendezvous {
    LaunchInfo launch;
    std::string group;
    std::string address;  // "host:port" of rank 0, empty: none
    std::string secret;
    odc_all_gather_fn all_gather;
    void *all_gather_arg;
    std::string identity;  // of this host: equal for ranks that share memory
    std::string host;      // as errors show it
    std::string named_by;  // what gave the identity: "ODC_HOST_ID=\"a\"", "config.host \"a\""; empty: the machine

    // All ranks are on this host and meet under `launch.job`, without an all-gather.
    bool by_name() const;
    // "job \"a\" of 8 ranks at host:port", for the log.
    std::string way() const;
};

// Throws ODC_ERROR_ARGUMENT for what cannot be, ODC_ERROR_RENDEZVOUS when nothing says who this rank is. Tells the log at once
// what it has found out, so that the line of such an error has it.
Rendezvous find_rendezvous(const odc_config &config, Log &log);

// NULL where there is nobody to exchange peer infos with, or no need to. `deadline` must outlive it.
std::unique_ptr<Allgather> open_allgather(const Rendezvous &rendezvous, const Deadline &deadline);

}  // namespace odc
