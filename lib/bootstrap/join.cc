// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/join.h"

#include <sodium.h>
#include "base/layout_version.h"

#include <algorithm>
#include <cstring>

#include "base/program.h"
#include "base/settings.h"
#include "bootstrap/local/rendezvous.h"
#include "bootstrap/membership.h"
#include "bootstrap/node_cache_share.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/route_log.h"
#include "bootstrap/wireup.h"
#include "memory/control_block.h"
#include "topology/topology_source.h"
#include "transport/cuda/cuda.h"
#include "transport/fabric/fabric.h"

namespace odc {

namespace {

constexpr int64_t kMostMs = setting_row(Setting::kTimeoutMs).high;

std::string waited(const Deadline &deadline) {
    return formatted("{} ms", static_cast<int64_t>(deadline.waited_s() * 1e3));
}

JobConfig job_config_of(const odc_config &config, const LaunchInfo &launch, Log &log) {
    if (config.timeout_ms < 0 || config.timeout_ms > kMostMs) {
        fail(ODC_ERROR_ARGUMENT, "odc_init: timeout_ms is {}, must be in 1..{}, or 0 for the default",
             config.timeout_ms, kMostMs);
    }
    const int64_t timeout_ms = config.timeout_ms > 0 ? config.timeout_ms : setting_number(Setting::kTimeoutMs);
    return {launch.rank, launch.size, timeout_ms, config.interrupted, config.interrupted_arg, &log};
}

// Also checks settings that this job does not need: a mistake shows at once, not when the job first has a second host.
void check_settings() {
    for (const SettingRow &row : kSettings) {
        if (row.high > 0 && row.setting != Setting::kTimeoutMs) {  // odc_config overrides it
            setting_number(row.setting);
        }
    }
    const RouteOptions options = read_route_options();
    if (!options.interfaces.empty() || !setting(Setting::kTopologyXml).empty()) {
        check_interfaces(this_machine(Look::Quick), options);
    }
}

IdentityInfo identity_of(const Rendezvous &rendezvous, const Cuda *cuda) {
    IdentityInfo info{};
    info.magic = layout_magic(Layout::Identity);
    info.rank = rendezvous.launch.rank;
    info.size = rendezvous.launch.size;
    info.pid = getpid();
    info.transports = read_route_options().transports;
    std::strncpy(info.identity, rendezvous.identity.c_str(), sizeof(info.identity) - 1);
    std::strncpy(info.host, rendezvous.host.c_str(), sizeof(info.host) - 1);
    std::strncpy(info.group, rendezvous.group.c_str(), sizeof(info.group) - 1);
    if (cuda != nullptr) {
        std::strncpy(info.gpu, cuda->device().name().c_str(), sizeof(info.gpu) - 1);
    }
    return info;
}

// Opens the GPU that config.device or ODC_DEVICE names; NULL: neither names one.
std::unique_ptr<Cuda> open_gpu(const odc_config &config) {
    const std::string device = config.device != nullptr ? config.device : setting(Setting::kDevice);
    try {
        return device.empty() ? nullptr : std::make_unique<Cuda>(device);
    } catch (const Error &error) {
        fail(error.status(), "odc_init: {}", error.what());
    }
}

std::unique_ptr<Arena> make_arena(const Rendezvous &rendezvous, const Cuda *cuda, const NodeCacheLimit &limit) {
    std::unique_ptr<Arena> arena = Arena::create();
    static_assert(sizeof(ControlBlock) <= kFirstRecordBytes);
    auto *block = new (arena->record(arena->allocate_record(sizeof(ControlBlock)))) ControlBlock{};
    block->rank = rendezvous.launch.rank;
    block->size = rendezvous.launch.size;
    block->pid = getpid();
    std::strncpy(block->host, rendezvous.host.c_str(), sizeof(block->host) - 1);
    std::strncpy(block->identity, rendezvous.identity.c_str(), sizeof(block->identity) - 1);
    block->gpu = cuda != nullptr ? cuda->identity() : GpuIdentity{};
    block->node_cache = limit;
    block->last_call_at_ns = now_ns();
    return arena;
}

// Hands in the exception that is being handled. Not part of join's frame, nor is introduce: peer infos are large, and threads that
// call odc_init may have small stacks.
[[gnu::noinline]] void hand_in_join_error(Allgather &allgather) {
    try {
        allgather.all_gather(join_error_of(current_error()));
    } catch (const Error &) {
        // The caller reads the first error.
    }
}

// If `body` fails, the other ranks, which would wait for this one, learn why it does not come.
template <class Body>
void or_hand_in_join_error(Allgather *allgather, Body body) {
    try {
        body();
    } catch (const std::exception &) {
        if (allgather != nullptr) {
            hand_in_join_error(*allgather);
        }
        throw;
    }
}

// Round 1: hands in this rank's peer info and checks every rank's.
[[gnu::noinline]] std::vector<IdentityInfo> introduce(Allgather &allgather, IdentityInfo mine) {
    randombytes_buf(mine.nonce, sizeof(mine.nonce));
    const std::vector<PeerInfo> infos = allgather.all_gather(peer_info_of(mine));
    check_join_errors(infos);
    std::vector<IdentityInfo> all;
    for (int rank = 0; rank < mine.size; ++rank) {
        const IdentityInfo one = read_identity(infos[static_cast<size_t>(rank)], rank);
        if (one.rank != rank || one.size != mine.size) {
            fail(ODC_ERROR_RENDEZVOUS,
                 "odc_init: at index {} of {} a process says that it is rank {} of {}; give each process its "
                 "own rank, and all one size",
                 rank, mine.size, one.rank, one.size);
        }
        if (std::strcmp(one.group, mine.group) != 0) {
            fail(ODC_ERROR_RENDEZVOUS,
                 "odc_init: rank {} joins group \"{}\", this rank \"{}\"; join groups in the same order everywhere",
                 rank, one.group, mine.group);
        }
        all.push_back(one);
    }
    return all;
}

// Ranks of one identity are one host.
Membership divide(const JobConfig &job_config, const std::vector<IdentityInfo> &infos) {
    Membership membership(job_config);
    std::vector<std::string> identities;
    for (const IdentityInfo &info : infos) {
        const auto at = std::find(identities.begin(), identities.end(), info.identity);
        const auto index = static_cast<size_t>(at - identities.begin());
        if (at == identities.end()) {
            identities.emplace_back(info.identity);
            membership.hosts.emplace_back();
        }
        membership.hosts[index].push_back(static_cast<int>(membership.peers.size()));
        membership.peers.push_back({info.host, info.identity, index, info.pid, nullptr, 0, {}, {}, {}, {}});
    }
    return membership;
}

std::string hex(const unsigned char *bytes, size_t count) {
    std::string text(2 * count + 1, '\0');
    sodium_bin2hex(text.data(), text.size(), bytes, count);
    text.pop_back();
    return text;
}

// `arena`: this rank's own; NULL: opens the memory that another rank handed over.
void fill_peer(Membership &membership, int rank, LocalPeer met, std::unique_ptr<Arena> arena) {
    if (!arena) {
        arena = Arena::open(std::move(met.memory));
    }
    const auto *block = reinterpret_cast<const ControlBlock *>(arena->record(0));
    if (block->rank != rank || block->size != membership.config.size) {
        fail(ODC_ERROR_RENDEZVOUS,
             "odc_init: rank {} (pid {}) says that it is rank {} of {}, this rank that it is rank {} of {}; give each "
             "process its own rank, and all the same size",
             rank, met.pid, block->rank, block->size, rank, membership.config.size);
    }
    Peer &peer = membership.peers[static_cast<size_t>(rank)];
    // Ranks that meet by name exchange no peer infos and take each other for local peers.
    if (peer.identity != block->identity) {
        const std::string differ = peer.host == block->host
                                       ? "is on a host of the same name, but kernel, network namespace, "
                                         "user and ODC_HOST_ID are not all the same"
                                       : formatted("counts as host {}, this rank as host {}", block->host, peer.host);
        fail(ODC_ERROR_RENDEZVOUS,
             "odc_init: rank {} {}; ranks that meet by name are of one host: give all of them one ODC_HOST_ID "
             "(config.host), or let them meet by ODC_RENDEZVOUS and ODC_SECRET, as odc run --hosts does",
             rank, differ);
    }
    peer.host = block->host;
    peer.pid = met.pid;
    peer.arena = std::move(arena);
    peer.pidfd = std::move(met.pidfd);
    peer.program = std::move(met.program);
    if (membership.cuda && met.ipc.valid() && rank != membership.config.rank) {
        membership.cuda->connect_ipc(rank, std::move(met.ipc));
    }
}

// Meets the ranks of this host.
void join_host(Membership &membership, const LocalGroup &group, std::unique_ptr<Arena> arena,
               const Deadline &deadline) {
    std::vector<LocalPeer> peers(1);
    if (group.ranks.size() > 1) {
        membership.program = std::make_unique<Program>();
        peers = join_local_group(
            group, {arena->fd(), membership.program->fd(), membership.cuda ? membership.cuda->ipc_fd() : -1}, deadline);
    } else {
        peers[0].pid = getpid();
    }
    for (size_t local_rank = 0; local_rank < peers.size(); ++local_rank) {
        const int rank = group.ranks[local_rank];
        fill_peer(membership, rank, std::move(peers[local_rank]), rank == group.rank ? std::move(arena) : nullptr);
    }
}

}  // namespace

Membership join(const odc_config &config, Log &log) {
    const Rendezvous rendezvous = find_rendezvous(config, log);
    const LaunchInfo &launch = rendezvous.launch;
    const JobConfig job_config = job_config_of(config, launch, log);
    const Deadline deadline(job_config.timeout_ms, job_config.interrupted, job_config.interrupted_arg, &log);
    log.info("joins {}", rendezvous.way());
    const std::unique_ptr<Allgather> allgather = open_allgather(rendezvous, deadline);
    std::unique_ptr<Cuda> cuda;
    std::unique_ptr<Arena> arena;
    IdentityInfo mine{};
    or_hand_in_join_error(allgather.get(), [&] {
        check_settings();
        cuda = open_gpu(config);
        arena = make_arena(rendezvous, cuda.get(), node_cache_limit(allgather.get()));
        mine = identity_of(rendezvous, cuda.get());
    });

    const std::vector<IdentityInfo> infos =
        allgather ? introduce(*allgather, mine) : std::vector<IdentityInfo>(static_cast<size_t>(launch.size), mine);
    Membership membership = divide(job_config, infos);
    membership.cuda = std::move(cuda);
    if (allgather) {
        log.info("knows after {} that the job has {}", waited(deadline), counted(membership.hosts.size(), "host"));
    }
    LocalGroup group{launch.job, membership.hosts[membership.own().host_index], launch.rank, launch.size, {}, {}};
    if (allgather) {
        const IdentityInfo &leader = infos[static_cast<size_t>(group.ranks[0])];
        group.name = hex(leader.nonce, sizeof(leader.nonce));
        group.liveness_fds = allgather->liveness_fds();
        group.named_by = rendezvous.named_by;
    }

    auto *block = reinterpret_cast<ControlBlock *>(arena->record(0));
    const std::shared_ptr<const void> keep = arena->hold();
    try {
        try {
            join_host(membership, group, std::move(arena), deadline);
        } catch (const std::exception &) {
            if (membership.hosts.size() > 1) {
                fail_everywhere(*allgather, current_error(), deadline);
            }
            throw;
        }
        log.info("has met {} of this host after {}", counted(group.ranks.size() - 1, "other rank"), waited(deadline));
        choose_routes(membership, infos, allgather.get(), deadline);
    } catch (const std::exception &error) {
        // Peers that already have this rank's memory read there why it does not come.
        record_departure(*block, launch.rank, error.what());
        throw;
    } catch (...) {  // pthread_exit in a callback
        record_departure(*block, launch.rank, "its thread ended");
        throw;
    }
    log_routes(membership);
    log.info("has joined after {}", waited(deadline));
    return membership;
}

}  // namespace odc
