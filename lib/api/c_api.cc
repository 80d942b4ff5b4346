// SPDX-License-Identifier: Apache-2.0
// The C boundary: checks arguments, copies structs in and out by their sizes, and converts every exception to a status and a
// message.
#include <odc/odc.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <set>

#include "api/call_guard.h"
#include "api/struct_copy.h"
#include "api/topology_json.h"
#include "base/fork_detector.h"
#include "base/fork_gate.h"
#include "base/layout_version.h"
#include "base/settings.h"
#include "bootstrap/peer.h"
#include "core/context.h"
#include "core/exact_sums.h"
#include "memory/exact_digits.h"
#include "memory/exact_kernels.h"
#include "memory/host_kernels.h"
#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/window.h"
#include "routing/providers.h"
#include "routing/transport_table.h"
#include "topology/host.h"
#include "topology/topology_source.h"
#include "transport/fabric/provider/provider_query.h"

namespace {

using odc::checked_size;
using odc::copy_in;
using odc::copy_out;
using odc::fail;
using odc::formatted;
using odc::guard;
using odc::strings_of_thread;

}  // namespace

struct odc_shard {
    odc_context *owner;
    odc::Shard *shard;
    std::string released;  // its name once it is released; the handle stays, so that its use is an error, not a crash
};

struct odc_context {
    odc::ForkDetector fork;
    std::shared_ptr<odc::Log> log;  // outlives the context
    odc::Context context;
    std::list<odc_shard> handles;
};

namespace {

odc_context &checked(const odc_context *context) {
    if (context == nullptr) {
        fail(ODC_ERROR_ARGUMENT, "the context is NULL");
    }
    if (context->fork.in_child()) {
        fail(ODC_ERROR_PHASE, "this context belongs to the parent process; a child made by fork() must not use it");
    }
    return const_cast<odc_context &>(*context);
}

odc::Shard &checked(const odc_shard *shard) {
    if (shard == nullptr) {
        fail(ODC_ERROR_ARGUMENT, "the shard is NULL");
    }
    checked(shard->owner);
    if (shard->shard == nullptr) {
        fail(ODC_ERROR_PHASE, "shard \"{}\" has been released; register it again to use it", shard->released);
    }
    return *shard->shard;
}

// Hands the call's log lines to the callback at the end of the call, so that the callback meets no half-done state.
odc_status deliver(odc::Log *log, odc_status status) {
    if (log != nullptr && log->has_lines()) {
        guard([log] { log->deliver(); });
    }
    return status;
}

// A call of a context, which may be NULL.
template <class Body>
odc_status guard(const odc_context *context, Body body) {
    const odc_status status = guard(std::move(body));
    if (context == nullptr || context->fork.in_child()) {
        return status;
    }
    if (status != ODC_OK && context->log->on(ODC_LOG_DEBUG)) {
        guard([&] { context->log->debug("a call fails, {}: {}", odc::status_string(status), odc::last_error()); });
    }
    return deliver(context->log.get(), status);
}

odc_context *owner_of(const odc_shard *shard) { return shard != nullptr ? shard->owner : nullptr; }

enum class Half { Parameters, Gradients };

void check_stream(const odc::Shard &shard, const void *stream) {
    if (stream != nullptr && !shard.on_device()) {
        fail(ODC_ERROR_UNSUPPORTED, "a stream is given for shard \"{}\", which is in host memory; pass NULL",
             shard.name());
    }
}

// The checks that gather and scatter_add share.
odc::Shard &checked(const odc_shard *handle, Half half, const void *full, uint64_t numel, const void *stream) {
    odc::Shard &shard = checked(handle);
    const odc::Description &d = shard.description();
    const bool lacks = (half == Half::Parameters ? d.parameter_type : d.gradient_type) == 0;
    if (lacks) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\" has no {}", d.name,
             half == Half::Parameters ? "parameters" : "gradients");
    }
    if (numel != d.numel) {
        fail(ODC_ERROR_ARGUMENT, "the buffer has {} elements, shard \"{}\" has {}", numel, d.name, d.numel);
    }
    if (full == nullptr && numel > 0) {
        fail(ODC_ERROR_ARGUMENT, "the buffer for shard \"{}\" is NULL", d.name);
    }
    check_stream(shard, stream);
    return shard;
}

template <class Struct>
void register_all(odc_context *context, const Struct *descs, size_t count, odc_shard **out) {
    odc_context &owner = checked(context);
    if (descs == nullptr || out == nullptr || count == 0) {
        fail(ODC_ERROR_ARGUMENT, "odc_register_shard: {}",
             count == 0         ? "count is 0"
             : descs == nullptr ? "desc is NULL"
                                : "out is NULL");
    }
    std::fill_n(out, count, nullptr);
    std::vector<odc::Description> descriptions;
    const auto *bytes = reinterpret_cast<const unsigned char *>(descs);
    for (size_t i = 0; i < count; ++i) {
        const auto *one = reinterpret_cast<const Struct *>(bytes + i * descs->struct_size);
        if (one->struct_size != descs->struct_size) {
            fail(ODC_ERROR_ARGUMENT, "odc_register_shards: description {} has struct_size {}, the first has {}", i,
                 one->struct_size, descs->struct_size);
        }
        descriptions.emplace_back(copy_in(one, "odc_shard_desc"), owner.context.job().rank(),
                                  owner.context.job().size());
    }
    std::list<odc_shard> handles(count, odc_shard{&owner, nullptr, {}});
    const std::vector<odc::Shard *> made = owner.context.register_shards(std::move(descriptions));
    size_t next = 0;
    for (odc_shard &handle : handles) {
        handle.shard = made[next];
        out[next++] = &handle;
    }
    owner.handles.splice(owner.handles.end(), handles);
}

}  // namespace

extern "C" {

odc_status odc_init(const odc_config *config, odc_context **out) {
    std::shared_ptr<odc::Log> log;
    const odc_status status = guard([&] {
        if (out == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_init: out is NULL");
        }
        *out = nullptr;
        const odc_config ours = config != nullptr ? copy_in(config, "odc_config") : odc_config{};
        if (ours.reserved != 0) {
            fail(ODC_ERROR_ARGUMENT, "odc_init: reserved is {}, must be 0", ours.reserved);
        }
        log = std::make_shared<odc::Log>(odc::log_level_of(ours.log_level), ours.log, ours.log_arg);
        *out = new odc_context{{}, log, odc::Context(ours, *log), {}};
        if (log->on(ODC_LOG_INFO)) {
            log->info("runs {}", odc_build());
        }
    });
    if (status != ODC_OK && log != nullptr && log->on(ODC_LOG_INFO)) {
        guard([&] { log->info("cannot join, {}: {}", odc::status_string(status), odc::last_error()); });
    }
    return deliver(log.get(), status);
}

int32_t odc_rank(const odc_context *context) { return context == nullptr ? -1 : context->context.job().rank(); }
int32_t odc_size(const odc_context *context) { return context == nullptr ? -1 : context->context.job().size(); }
uint64_t odc_minibatch(const odc_context *context) { return context == nullptr ? 0 : context->context.minibatch(); }

odc_status odc_shutdown(odc_context *context) {
    return guard(context, [&] { checked(context).context.shutdown(); });
}

odc_status odc_abort(odc_context *context, const char *text) {
    return guard(context, [&] { checked(context).context.abort(text); });
}

void odc_destroy(odc_context *context) {
    // In a forked child freeing would harm the parent's job.
    if (context == nullptr || context->fork.in_child()) {
        return;
    }
    const std::shared_ptr<odc::Log> log = context->log;
    deliver(log.get(), guard([&] { delete context; }));
}

odc_status odc_register_shard(odc_context *context, const odc_shard_desc *desc, odc_shard **out) {
    return guard(context, [&] { register_all(context, desc, 1, out); });
}

odc_status odc_register_shards(odc_context *context, const odc_shard_desc *descs, size_t count, odc_shard **out) {
    return guard(context, [&] { register_all(context, descs, count, out); });
}

odc_status odc_get_slice(const odc_shard *handle, odc_slice *out) {
    return guard([&] {
        const odc::Shard &shard = checked(handle);
        const odc::RemoteSlice mine = shard.slice(shard.own_index());
        const odc_slice slice{sizeof(odc_slice),
                              mine.parameters,
                              mine.accumulator,
                              shard.slices().begin(shard.own_index()),
                              mine.numel,
                              mine.parameter_type,
                              odc::accumulator_type(mine.gradient_type),
                              shard.description().memory,
                              0,
                              shard.description().summation,
                              odc::largest_of(shard)};
        copy_out(slice, out, "odc_slice");
    });
}

odc_status odc_release_shard(odc_shard *handle) {
    return guard(owner_of(handle), [&] {
        odc::Shard &shard = checked(handle);
        handle->released = shard.name();
        handle->owner->context.release(shard);
        handle->shard = nullptr;
    });
}

odc_status odc_publish(odc_shard *shard, void *stream) {
    return guard(owner_of(shard), [&] {
        odc::Shard &inside = checked(shard);
        check_stream(inside, stream);
        shard->owner->context.publish(inside, stream);
    });
}

odc_status odc_publish_all(odc_context *context, void *stream) {
    return guard(context, [&] { checked(context).context.publish_all(stream); });
}

odc_status odc_gather(odc_shard *shard, void *full, uint64_t numel, void *stream) {
    return guard(owner_of(shard), [&] {
        odc::Shard &inside = checked(shard, Half::Parameters, full, numel, stream);
        shard->owner->context.gather(inside, full, stream);
    });
}

odc_status odc_scatter_add(odc_shard *shard, const void *full, uint64_t numel, void *stream) {
    return guard(owner_of(shard), [&] {
        odc::Shard &inside = checked(shard, Half::Gradients, full, numel, stream);
        shard->owner->context.scatter_add(inside, full, stream);
    });
}

odc_status odc_gather_start(odc_shard *shard, void *full, uint64_t numel, void *stream, uint64_t *operation) {
    return guard(owner_of(shard), [&] {
        odc::Shard &inside = checked(shard, Half::Parameters, full, numel, stream);
        if (operation == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_gather_start: operation is NULL");
        }
        *operation = shard->owner->context.gather_start(inside, full, stream);
    });
}

odc_status odc_scatter_add_start(odc_shard *shard, const void *full, uint64_t numel, void *stream,
                                 uint64_t *operation) {
    return guard(owner_of(shard), [&] {
        odc::Shard &inside = checked(shard, Half::Gradients, full, numel, stream);
        if (operation == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_scatter_add_start: operation is NULL");
        }
        *operation = shard->owner->context.scatter_add_start(inside, full, stream);
    });
}

odc_status odc_wait(odc_context *context, uint64_t operation) {
    return guard(context, [&] { checked(context).context.wait(operation); });
}

odc_status odc_finish(odc_shard *handle, void *stream) {
    return guard(owner_of(handle), [&] {
        odc::Shard &shard = checked(handle);
        if (shard.description().gradient_type == 0) {
            fail(ODC_ERROR_ARGUMENT, "odc_finish: shard \"{}\" has no gradients", shard.name());
        }
        check_stream(shard, stream);
        handle->owner->context.finish(shard);
    });
}

odc_status odc_claim(odc_context *context, uint64_t count, uint64_t *index) {
    bool done = false;
    const odc_status status = guard(context, [&] {
        odc_context &checked_context = checked(context);
        if (index == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_claim: index is NULL");
        }
        const std::optional<uint64_t> claimed = checked_context.context.claim(count);
        *index = claimed.value_or(count);
        done = !claimed;
    });
    return status == ODC_OK && done ? ODC_DONE : status;
}

odc_status odc_get_claims(const odc_context *context, uint64_t minibatch, uint64_t *indices, size_t capacity,
                          size_t *count) {
    return guard(context, [&] {
        const std::vector<uint64_t> &claimed = checked(context).context.claimed(minibatch);
        if (count == nullptr || (indices == nullptr && capacity > 0)) {
            fail(ODC_ERROR_ARGUMENT, "odc_get_claims: {} is NULL", count == nullptr ? "count" : "indices");
        }
        std::copy_n(claimed.begin(), std::min(claimed.size(), capacity), indices);
        *count = claimed.size();
    });
}

odc_status odc_report_cost(odc_context *context, double cost) {
    return guard(context, [&] { checked(context).context.report_cost(cost); });
}

odc_status odc_get_speeds(const odc_context *context, double *speeds, size_t count) {
    return guard(context, [&] {
        odc_context &checked_context = checked(context);
        const auto size = static_cast<size_t>(checked_context.context.job().size());
        if (speeds == nullptr || count != size) {
            fail(ODC_ERROR_ARGUMENT, "odc_get_speeds: {}",
                 speeds == nullptr ? "speeds is NULL" : formatted("count is {}, the job has {} ranks", count, size));
        }
        const std::vector<double> all = checked_context.context.speeds();
        std::copy(all.begin(), all.end(), speeds);
    });
}

odc_status odc_minibatch_sync(odc_context *context) {
    return guard(context, [&] { checked(context).context.sync(nullptr, 0, ODC_SUM); });
}

odc_status odc_minibatch_sync_reduce(odc_context *context, double *values, size_t count, int32_t op) {
    return guard(context, [&] { checked(context).context.sync(values, count, op); });
}

odc_status odc_all_reduce(odc_context *context, double *values, size_t count, int32_t op) {
    return guard(context, [&] { checked(context).context.all_reduce(values, count, op); });
}

odc_status odc_get_stats(const odc_context *context, odc_stats *out) {
    return guard([&] { copy_out(checked(context).context.stats(), out, "odc_stats"); });
}

odc_status odc_get_peer_stats(const odc_context *context, int32_t rank, odc_peer_stats *out) {
    return guard([&] {
        const odc::Context &inside = checked(context).context;
        if (rank < 0 || rank >= inside.job().size()) {
            fail(ODC_ERROR_ARGUMENT, "odc_get_peer_stats: rank {} is not in 0..{}", rank, inside.job().size() - 1);
        }
        copy_out(inside.peer_stats(rank), out, "odc_peer_stats");
    });
}

odc_status odc_plan(const odc_plan_request *request, int32_t *rank_of, int32_t *microbatch_of,
                    odc_plan_summary *summary) {
    return guard([&] {
        if (request == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_plan: request is NULL");
        }
        if (summary != nullptr) {
            checked_size(summary, "odc_plan_summary");
        }
        const odc_plan_summary made = odc::plan(copy_in(request, "odc_plan_request"), rank_of, microbatch_of);
        if (summary != nullptr) {
            copy_out(made, summary, "odc_plan_summary");
        }
    });
}

odc_status odc_plan_window(const odc_window_request *request, int32_t *minibatch_of, int32_t *rank_of,
                           int32_t *microbatch_of, odc_window_summary *summary) {
    return guard([&] {
        if (request == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_plan_window: request is NULL");
        }
        if (summary != nullptr) {
            checked_size(summary, "odc_window_summary");
        }
        const odc_window_request window = copy_in(request, "odc_window_request");
        if (window.samples == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_plan_window: request->samples is NULL");
        }
        const odc_window_summary made =
            odc::plan_window(window, copy_in(window.samples, "odc_plan_request"), minibatch_of, rank_of, microbatch_of);
        if (summary != nullptr) {
            copy_out(made, summary, "odc_window_summary");
        }
    });
}

odc_status odc_plan_cost(const char *model, double *a, double *b) {
    return guard([&] {
        if (model == nullptr || a == nullptr || b == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_plan_cost: `model`, `a` and `b` must not be NULL");
        }
        const odc::CostModel found = odc::cost_model(model);
        *a = found.a;
        *b = found.b;
    });
}

odc_status odc_exact_add(double *digits, const double *values, size_t count) {
    return guard([&] {
        if (digits == nullptr || (values == nullptr && count > 0)) {
            fail(ODC_ERROR_ARGUMENT, "odc_exact_add: `digits` and `values` must not be NULL");
        }
        odc::ExactDigits sum("odc_exact_add", digits);
        sum.add({values, count});
        sum.write(digits);
    });
}

odc_status odc_exact_value(const double *digits, double *value) {
    return guard([&] {
        if (digits == nullptr || value == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_exact_value: `digits` and `value` must not be NULL");
        }
        *value = odc::ExactDigits("odc_exact_value", digits).value();
    });
}

uint32_t odc_version(void) { return ODC_VERSION_MAJOR << 16 | ODC_VERSION_MINOR << 8 | ODC_VERSION_PATCH; }

const char *odc_build(void) {
    try {
        // Returned texts are never freed; there are few, as each loop is chosen once.
        static std::mutex mutex;
        const odc::ProcessLock lock(mutex);
        static auto &texts = *new std::set<std::string>;
        return texts
            .insert(formatted("libodc {}, {}, layout {}, {} vectors, {}{}", odc::version(), ODC_BUILD_TYPE,
                              odc::layout_version(), odc::vector_target(), odc::topology().description,
                              odc::loop_figures() + odc::exact_loop_figures()))
            .first->c_str();
    } catch (const std::exception &) {
        return "libodc (no memory is left to describe it)";
    }
}

const char *odc_status_string(int32_t status) { return odc::status_string(status); }
const char *odc_last_error(void) { return odc::last_error(); }

odc_status odc_get_transport(size_t index, odc_transport *out) {
    return guard([&] {
        const size_t count = std::size(odc::kTransports);
        if (index >= count) {
            fail(ODC_ERROR_ARGUMENT, "odc_get_transport: there are {} transports", count);
        }
        std::string &why_not = strings_of_thread().why_not;
        why_not = odc::kTransports[index].why_not_here();
        const odc_transport row{sizeof(row), odc::kTransports[index].name, why_not.empty() ? nullptr : why_not.c_str()};
        copy_out(row, out, "odc_transport");
    });
}

odc_status odc_get_setting(size_t index, odc_setting *out) {
    return guard([&] {
        if (index >= odc::kSettings.size()) {
            fail(ODC_ERROR_ARGUMENT, "odc_get_setting: there are {} settings", odc::kSettings.size());
        }
        const odc::SettingRow &row = odc::kSettings[index];
        copy_out(odc_setting{sizeof(odc_setting), row.name, row.fallback, row.help}, out, "odc_setting");
    });
}

odc_status odc_get_topology(const char *file, const char **json, const char **xml) {
    return guard([&] {
        if (json == nullptr) {
            fail(ODC_ERROR_ARGUMENT, "odc_get_topology: json is NULL");
        }
        auto &[error, why_not, topology, topology_xml] = strings_of_thread();
        const odc::Machine machine = file != nullptr ? odc::recorded_machine(file) : odc::this_machine(odc::Look::Full);
        const bool recorded = file != nullptr || !odc::setting(odc::Setting::kTopologyXml).empty();
        topology = odc::machine_json(machine, odc::read_route_options(),
                                     recorded ? odc::provider_infos_by_kind(machine) : odc::query_libfabric(),
                                     recorded ? "" : odc::why_not_fabric());
        if (xml != nullptr) {
            topology_xml = odc::live_topology_xml();
            *xml = topology_xml.c_str();
        }
        *json = topology.c_str();
    });
}

odc_status odc_get_route(const odc_context *context, int32_t rank, int32_t memory, odc_route *out) {
    return guard([&] {
        const odc::Job &job = checked(context).context.job();
        if (rank < 0 || rank >= job.size()) {
            fail(ODC_ERROR_ARGUMENT, "odc_get_route: rank {} is not in 0..{}", rank, job.size() - 1);
        }
        if (memory != ODC_HOST_MEMORY && memory != ODC_GPU_MEMORY) {
            fail(ODC_ERROR_ARGUMENT, "odc_get_route: memory {} is neither ODC_HOST_MEMORY nor ODC_GPU_MEMORY", memory);
        }
        const odc::Route &route = memory == ODC_GPU_MEMORY ? job.peer(rank).gpu_route : job.peer(rank).route;
        const odc::RouteChoice &choice = route.choice;
        const auto or_null = [](const std::string &text) { return text.empty() ? nullptr : text.c_str(); };
        copy_out(odc_route{sizeof(odc_route), choice.transport.empty() ? nullptr : choice.transport.data(),
                           or_null(route.provider), or_null(route.nic), or_null(route.peer_nic), choice.why.c_str(),
                           route.why_not.c_str(), access_of(choice)},
                 out, "odc_route");
    });
}

}  // extern "C"
