// SPDX-License-Identifier: Apache-2.0
// The one list of ODC_* settings. The environment is read on every query; a config field that is set overrides it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace odc {

enum class Setting {
    kRank,
    kSize,
    kJob,
    kRendezvous,
    kSecret,
    kTimeoutMs,
    kHostId,
    kTopologyXml,
    kUsableTransports,
    kInterface,
    kProvider,
    kRequire,
    kStagingBytes,
    kSilenceMs,
    kNodeCache,
    kDevice,
    kAddBlocks,
    kCopyBatches,
    kAddByOwner,
    kGpuDirect,
    kLog
};

struct SettingRow {
    Setting setting;
    const char *name;      // of the environment variable
    const char *fallback;  // the default, when it is unset or empty; may be ""
    const char *help;
    int64_t low = 0;   // of a number
    int64_t high = 0;  // 0: the setting is text
};

inline constexpr std::array<SettingRow, 21> kSettings = {{
    {Setting::kRank, "ODC_RANK", "", "This process's rank, 0..ODC_SIZE-1; set by odc run, with ODC_SIZE and ODC_JOB."},
    {Setting::kSize, "ODC_SIZE", "", "How many ranks the job has."},
    {Setting::kJob, "ODC_JOB", "", "The job's name: the same for all its ranks, different for every other job."},
    {Setting::kRendezvous, "ODC_RENDEZVOUS", "",
     "host:port or [v6]:port where rank 0 listens and the other ranks meet it; needs ODC_SECRET."},
    {Setting::kSecret, "ODC_SECRET", "", "The secret by which ranks that meet at ODC_RENDEZVOUS know each other."},
    {Setting::kTimeoutMs, "ODC_TIMEOUT_MS", "600000", "The deadline of every wait, in milliseconds.", 1,
     int64_t{1} << 40},
    {Setting::kHostId, "ODC_HOST_ID", "",
     "Which ranks share memory: those with the same text, which ranks that meet by name must have; unset: those with the "
     "same machine, network namespace and user."},
    {Setting::kTopologyXml, "ODC_TOPOLOGY_XML", "",
     "A recorded machine (hwloc's XML) to use instead of this one when choosing NICs."},
    {Setting::kUsableTransports, "ODC_TRANSPORTS", "",
     "The transports that may be used, such as cuda,shm; unset: all."},
    {Setting::kInterface, "ODC_INTERFACE", "",
     "The NICs that may be used between hosts, such as eth0,mlx5_0; unset: all."},
    {Setting::kProvider, "ODC_PROVIDER", "",
     "The libfabric providers that may be used, such as verbs,tcp; unset: all. tcp is with ofi_rxm and without."},
    {Setting::kRequire, "ODC_REQUIRE", "", "What every route must use, or odc_init fails: any of shm,nvlink,rdma."},
    {Setting::kStagingBytes, "ODC_STAGING_BYTES", "16777216",
     "Bytes of a context's bounce buffers for transfers between hosts; as much again for gradients that leave GPUs through "
     "host memory (1 MiB at least), and for parameters from other hosts to GPUs (3 MiB at least).",
     256 << 10, int64_t{1} << 40},
    {Setting::kSilenceMs, "ODC_SILENCE_MS", "10000",
     "How long another host may not answer before its ranks count as lost, in milliseconds; at most half the deadline.",
     1000, 3'600'000},
    {Setting::kNodeCache, "ODC_NODE_CACHE", "auto",
     "What each rank gives to its host's node cache, into which a slice of another host in host memory is read once a minibatch for "
     "all ranks of the host, and to sums of what they add to it, sent once: a number of bytes; off: nothing; auto: its part of a "
     "quarter of the host's free memory, then and at each registration. The least of a host's ranks counts."},
    {Setting::kDevice, "ODC_DEVICE", "", "The GPU of this rank's shards in GPU memory, such as cuda:0; unset: none."},
    {Setting::kAddBlocks, "ODC_ADD_BLOCKS", "0",
     "The most thread blocks of an addition on a GPU, each on a multiprocessor of its own while there are some; 0: half as many "
     "as there are multiprocessors, and 32 where sums are on another GPU.",
     0, 1 << 16},
    {Setting::kCopyBatches, "ODC_COPY_BATCHES", "1",
     "0: copies between GPUs are enqueued one by one, not as a batch, should a driver's batches be at fault.", 0, 1},
    {Setting::kAddByOwner, "ODC_ADD_BY_OWNER", "0",
     "1: bf16 and f16 gradients for another GPU of the host are copied there and added by that GPU, if its rank has set this, "
     "too: half the bytes cross, and each such rank gives ODC_STAGING_BYTES of its GPU's memory, 1 MiB for each other rank of the "
     "host at least; it has not run on several GPUs yet. 0: a kernel of this rank's GPU adds them.",
     0, 1},
    {Setting::kGpuDirect, "ODC_GPU_DIRECT", "0",
     "1: between hosts network adapters reach GPU memory themselves (GPUDirect RDMA), where a rank's can, with libfabric "
     "1.18 or later; it has not run on such adapters yet. 0: through host memory.",
     0, 1},
    {Setting::kLog, "ODC_LOG", "warn",
     "What is logged: error, warn, info, debug or trace, each with those before it; to standard error, or to the "
     "callback that the program gave."},
}};

constexpr const SettingRow &setting_row(Setting setting) { return kSettings[static_cast<std::size_t>(setting)]; }

// The environment's value, or the default if that is unset or empty.
std::string setting(Setting which);
// The same as a number; throws ODC_ERROR_ARGUMENT unless it is one in the row's low..high.
int64_t setting_number(Setting which);

// Any environment variable, such as a launcher's; "" if unset.
std::string environment(const char *name);
// `name`: of the variable, for the error.
int64_t parse_number(const std::string &name, const std::string &text, int64_t low, int64_t high);

namespace detail {
constexpr bool rows_follow_enum() {
    for (std::size_t i = 0; i < kSettings.size(); ++i) {
        if (kSettings[i].setting != static_cast<Setting>(i))
            return false;
    }
    return true;
}
}  // namespace detail
static_assert(detail::rows_follow_enum(), "kSettings has its rows in the order of Setting");

}  // namespace odc
