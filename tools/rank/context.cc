// SPDX-License-Identifier: Apache-2.0
// Joining a job as one rank.
#include "rank/context.h"

#include "cli/exit.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace odc_tool {

namespace {

// An odc_all_gather_fn by a context (`arg`): each rank's bytes are its slice of a shard, in a minibatch of its own.
int all_gather(void *arg, const void *mine, void *all, size_t bytes) {
    auto *context = static_cast<odc_context *>(arg);
    const std::string name =
        fmt::format("all-gather {}", odc_minibatch(context));  // not reused: a name released in this minibatch is taken
    odc_shard_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.name = name.c_str();
    desc.numel = static_cast<uint64_t>(odc_size(context)) * bytes;
    desc.parameter_type = ODC_BYTES;
    odc_shard *shard = nullptr;
    odc_slice slice = {};
    slice.struct_size = sizeof slice;
    odc_status status = odc_register_shard(context, &desc, &shard);
    if (status == ODC_OK && (status = odc_get_slice(shard, &slice)) == ODC_OK) {
        std::memcpy(slice.parameters, mine, bytes);
        status = odc_publish(shard, nullptr);
    }
    if (status == ODC_OK) {
        status = odc_gather(shard, all, desc.numel, nullptr);
    }
    if (status == ODC_OK && (status = odc_minibatch_sync(context)) == ODC_OK) {
        status = odc_release_shard(shard);
    }
    return status;
}

// A command says itself why it ends: without ODC_LOG, errors are not in the log as well.
void log_warnings(void *, int32_t level, const char *line) {
    if (level != ODC_LOG_ERROR) {
        std::fputs(line, stderr);
        std::fputc('\n', stderr);
    }
}

odc_config config_of(const char *group) {
    odc_config config{};
    config.struct_size = sizeof config;
    config.group = group;
    config.log = std::getenv("ODC_LOG") == nullptr ? log_warnings : nullptr;
    return config;
}

}  // namespace

std::string init_error(int32_t size) {
    odc_config config = {};
    config.struct_size = sizeof config;
    config.size = size;
    config.all_gather = [](void *, const void *, void *, size_t) { return 1; };
    odc_context *context = nullptr;
    const odc_status status = odc_init(&config, &context);
    odc_destroy(context);
    return status == ODC_ERROR_ARGUMENT ? odc_last_error() : "";
}

void check_environment(int32_t size) {
    if (const std::string error = init_error(size); !error.empty()) {
        throw Exit{1, error};
    }
}

void check(odc_status status) {
    if (status == ODC_ERROR_ABORTED) {
        throw Exit{1, ""};
    }
    if (status != ODC_OK) {
        throw Exit{1, odc_last_error()};
    }
}

namespace {

Context init(const odc_config &config) {
    odc_context *joined = nullptr;
    check(odc_init(&config, &joined));
    return Context(joined);
}

}  // namespace

Context join(const char *group) { return init(config_of(group)); }

Context join(const char *group, int ranks, const char *device) {
    odc_config config = config_of(group);
    config.device = device;
    odc_context *joined = nullptr;
    const odc_status status = odc_init(&config, &joined);
    const char *const rank = std::getenv("ODC_RANK");
    if ((status == ODC_ERROR_ARGUMENT || status == ODC_ERROR_UNSUPPORTED) && rank != nullptr && std::atoi(rank) > 0) {
        throw Exit{1, ""};
    }
    check(status);
    Context context(joined);
    if (ranks != 0 && odc_size(joined) != ranks) {
        throw Exit{2, fmt::format("--ranks {} was asked for inside a job of {} ranks; leave it out there", ranks,
                                  odc_size(joined))};
    }
    return context;
}

Context join_alone(const char *group, const char *device) {
    odc_config config = config_of(group);
    config.size = 1;
    config.device = device;
    return init(config);
}

Context join_apart(odc_context *context, const char *group, int hosts) {
    setenv("ODC_INTERFACE", "lo", 0);
    const std::string host = fmt::format("host {}", odc_rank(context) * hosts / odc_size(context));
    odc_config config = config_of(group);
    config.rank = odc_rank(context);
    config.size = odc_size(context);
    config.all_gather = all_gather;
    config.all_gather_arg = context;
    config.host = host.c_str();
    return init(config);
}

}  // namespace odc_tool
