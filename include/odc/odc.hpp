// SPDX-License-Identifier: Apache-2.0
// libodc from C++17 and later: owning handles, typed views and errors over odc.h, which states the contract.
//
//     odc::Context context = odc::Context::join();  // rank and size from odc run, torchrun, mpirun or Slurm
//     auto shard = context.register_shard<float, float>({"layer.0", 1000});
//     std::vector<float> full(1000);
//     context.publish();           // my slices hold this minibatch's parameters
//     shard.gather(full);          // any number of times; waits for the owners' publishes only
//     shard.scatter_add(full);     // forward and backward
//     context.sync();              // the one wait for all
//     auto slice = shard.slice();  // to change slice.parameters by slice.gradients, until the next publish
//
// Errors: a call throws odc::Error. With an odc::Status as an additional last argument it does not throw but reports there, and
// returns an empty or default value; without exceptions (-fno-exceptions) this is the only way. An exception of a callback
// propagates from the call that ran it; with a Status its what() is appended to the message. pthread_exit in a callback ends
// the thread, so calls that may run one are not noexcept.
// Lifetime: a context's memory lives until its Context and its last Shard and Operation are destroyed, in any order. Views of a
// slice are valid until then, or until Shard::release. A buffer passed to a *_start call must outlive its Operation.
// Threads: contexts are independent. Within one, gathers, additions, waits and claims may run concurrently, also on one
// shard; every other call runs alone. A child made by fork() must not use a context, and has no slices.
#ifndef ODC_ODC_HPP
#define ODC_ODC_HPP
#if __cplusplus < 201703L
#error "odc.hpp needs C++17 or later (-std=c++17)"
#endif
#include <odc/odc.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hpp/element.hpp"
#include "hpp/exact_sum.hpp"
#include "hpp/library.hpp"
#include "hpp/operation.hpp"
#include "hpp/plan.hpp"
#include "hpp/shard.hpp"
#include "hpp/span.hpp"
#include "hpp/status.hpp"

namespace odc {
inline namespace ODC_ABI {

// How a rank joins a job. Empty and zero fields come from the environment (`odc info --settings`).
struct Config {
    int32_t rank = 0;                      // used if size > 0
    int32_t size = 0;                      // ranks of the job; 0: from odc run, torchrun, mpirun or Slurm
    std::string job = {};                  // ranks of one host meet under this name
    std::string group = {};                // tells several contexts of one job apart ("actor", "critic")
    std::string rendezvous = {};           // "host:port" or "[v6]:port" of rank 0; needs a secret
    std::string secret = {};               // shared by all ranks
    std::chrono::milliseconds timeout{0};  // deadline of every wait
    std::string host = {};                 // equal for the ranks that share memory
    std::string device = {};               // this rank's GPU for shards in GPU memory, as "cuda:0"
    // Bootstrap by this instead (MPI, a store): fills `all` with every rank's `mine`, in rank order, and returns whether it
    // succeeded. Collective; called in Context::join only, on its thread: once, or several times with several hosts. Needs
    // `size`.
    std::function<bool(span<const std::byte> mine, span<std::byte> all)> all_gather = {};
    // Called at least every 100 ms by a waiting call, on its thread; true ends the wait with ODC_ERROR_INTERRUPTED.
    std::function<bool()> interrupted = {};
    // Is handed the lines of the log, which go to standard error otherwise, on threads that are in a call of the context: on
    // several at once where calls run concurrently. It must not call the library, nor end its thread; its exceptions are
    // dropped.
    std::function<void(LogLevel level, const char *line)> log = {};
    LogLevel log_level = {};  // up to which lines are made; none: ODC_LOG's, or Warn
};

enum class Reduction : int32_t { Sum = ODC_SUM, Max = ODC_MAX };

// Where the time went since the context joined; the part that this rank spent on another.
using Stats = odc_stats;
using PeerStats = odc_peer_stats;

// The route to a rank's memory of one kind.
struct Route {
    std::string transport;                // "cuda", "shm", "fabric"; "": there is no route
    std::string provider, nic, peer_nic;  // libfabric's, and the NICs at both ends; "" inside a host
    std::string why, why_not;             // why it was chosen; why the other transports were not
    std::string access;                   // how gathers read: "direct", "staged" or "none"
};

// One rank's membership in one job. Its destructor leaves the job without waiting; with pending operations, the last of them
// leaves it. If an exception is unwinding the stack, it first aborts the job (ODC_ERROR_ABORTED).
class Context {
public:
    Context() noexcept = default;
    Context(Context &&other) noexcept : user_(std::move(other.user_)) {}
    Context &operator=(Context &&other) noexcept {
        Context taken(std::move(other));
        std::swap(user_, taken.user_);
        return *this;
    }
    ~Context() {
        if (*this && std::uncaught_exceptions() > exceptions_) {
            const detail::Uninterrupted here;
            odc_abort(handle(), "one of its threads threw an exception");
        }
    }

    // Joins the job and waits for all its ranks. Fails if libodc has another binary interface (see check_library).
    template <class... S, class = detail::Trailing<S...>>
    static Context join(const Config &config = {}, S &...status);

    int32_t rank() const noexcept { return odc_rank(handle()); }  // -1 for an empty context
    int32_t size() const noexcept { return odc_size(handle()); }  // -1 for an empty context
    uint64_t minibatch() const noexcept {
        return odc_minibatch(handle());
    }  // the number of the running minibatch, from 0
    explicit operator bool() const noexcept { return handle() != nullptr; }
    odc_context *handle() const noexcept { return user_.handle(); }

    // Allocates this rank's slice (zeros) and registers it; waits for nobody.
    template <class P, class G, Memory M = Memory::Host, class... S, class = detail::Trailing<S...>>
    Shard<P, G, M> register_shard(const Description &description, S &...status);
    // Registers all of them or none, in one region of memory.
    template <class P, class G, Memory M = Memory::Host, class... S, class = detail::Trailing<S...>>
    std::vector<Shard<P, G, M>> register_shards(span<const Description> descriptions, S &...status);

    // Publishes the shards that are not published yet; it is an error if there is none. The stream is for shards in GPU memory.
    template <class... S, class = detail::Trailing<S...>>
    void publish(S &...status) {
        publish(Stream(), status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    void publish(Stream stream, S &...status) {
        detail::check(odc_publish_all(handle(), stream.handle), status...);
    }

    // The one wait for all: completes this rank's operations, arrives, and returns once all ranks of the job have. Then
    // gradients are final, elements that nobody added to are zero, and the slices are this rank's until it publishes.
    template <class... S, class = detail::Trailing<S...>>
    void sync(S &...status) {
        detail::check(odc_minibatch_sync(handle()), status...);
    }
    // sync and all_reduce in one.
    template <class... S, class = detail::Trailing<S...>>
    void sync_reduce(span<double> values, Reduction reduction, S &...status) {
        const auto op = static_cast<int32_t>(reduction);
        detail::check(odc_minibatch_sync_reduce(handle(), values.data(), values.size(), op), status...);
    }
    // Combines up to 64 values over all ranks; all get the same bits; between sync and publish.
    template <class... S, class = detail::Trailing<S...>>
    void all_reduce(span<double> values, Reduction reduction, S &...status) {
        const auto op = static_cast<int32_t>(reduction);
        detail::check(odc_all_reduce(handle(), values.data(), values.size(), op), status...);
    }

    // The next of the minibatch's `count` items (0, 1, ...; each is handed out to one rank of the job), or nothing if all are
    // taken. All ranks that claim name the same count. Waits for no rank's calls.
    template <class... S, class = detail::Trailing<S...>>
    std::optional<uint64_t> claim(uint64_t count, S &...status) {
        uint64_t index = 0;
        const odc_status code = odc_claim(handle(), count, &index);
        const bool claimed = detail::check(code == ODC_DONE ? ODC_OK : code, status...) && code != ODC_DONE;
        return claimed ? std::optional<uint64_t>(index) : std::nullopt;
    }
    // The items that this rank claimed in the minibatch, the running one or the one before, in order.
    template <class... S, class = detail::Trailing<S...>>
    std::vector<uint64_t> claims(uint64_t minibatch, S &...status) const noexcept(detail::kQuiet<S...>);
    // What this rank computes in the running minibatch, in plan's units; the last value before sync counts.
    template <class... S, class = detail::Trailing<S...>>
    void report_cost(double cost, S &...status) noexcept(detail::kQuiet<S...>) {
        detail::check(odc_report_cost(handle(), cost), status...);
    }
    // Each rank's speed relative to their mean: reported cost per time from publish to sync, less waits for publishes; the
    // newest minibatch has weight 0.3. 1: not measured yet. The same on all ranks.
    template <class... S, class = detail::Trailing<S...>>
    std::vector<double> speeds(S &...status) const noexcept(detail::kQuiet<S...>);

    template <class... S, class = detail::Trailing<S...>>
    Stats stats(S &...status) const noexcept(detail::kQuiet<S...>) {
        auto stats = detail::sized<odc_stats>();
        detail::check(odc_get_stats(handle(), &stats), status...);
        return stats;
    }
    template <class... S, class = detail::Trailing<S...>>
    PeerStats peer_stats(int32_t rank, S &...status) const noexcept(detail::kQuiet<S...>) {
        auto stats = detail::sized<odc_peer_stats>();
        detail::check(odc_get_peer_stats(handle(), rank, &stats), status...);
        return stats;
    }
    template <class... S, class = detail::Trailing<S...>>
    Route route(int32_t rank, S &...status) const noexcept(detail::kQuiet<S...>) {
        return route_to(rank, Memory::Host, status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    Route route_to_gpu(int32_t rank, S &...status) const noexcept(detail::kQuiet<S...>) {
        return route_to(rank, Memory::Gpu, status...);
    }

    // Ends every rank's waits with the text, as ODC_ERROR_ABORTED.
    template <class... S, class = detail::Trailing<S...>>
    void abort(const std::string &text, S &...status) noexcept(detail::kQuiet<S...>) {
        detail::check(odc_abort(handle(), text.c_str()), status...);
    }
    // Leaves the job, without waiting for calls of others. Slices stay; later calls fail because this rank has left.
    template <class... S, class = detail::Trailing<S...>>
    void shutdown(S &...status) noexcept(detail::kQuiet<S...>);

private:
    explicit Context(std::shared_ptr<detail::SharedContext> shared) noexcept : user_(std::move(shared)) {}

    template <class P, class G, Memory M>
    static odc_shard_desc to_c(const Description &description) noexcept;
    template <class... S>
    bool check_description(const Description &description, S &...status) const;
    template <class P, class G, Memory M>
    Shard<P, G, M> shard_of(const Description &description, odc_shard *handle) const;
    template <class... S>
    Route route_to(int32_t rank, Memory memory, S &...status) const noexcept(detail::kQuiet<S...>);

    detail::User user_;
    int exceptions_ = std::uncaught_exceptions();  // when it was constructed or moved to
};

namespace detail {

struct AllGather {
    const Config &config;

    static int all_gather(void *arg, const void *mine, void *all, size_t bytes) {
        const Config &config = static_cast<AllGather *>(arg)->config;
        return call_back([&] {
            const span<const std::byte> given(static_cast<const std::byte *>(mine), bytes);
            const span<std::byte> wanted(static_cast<std::byte *>(all), bytes * static_cast<size_t>(config.size));
            return config.all_gather(given, wanted) ? 0 : 1;
        });
    }
};

template <class... S>
bool to_c(const Config &config, odc_config &c, S &...status) {
    c.rank = config.rank;
    c.size = config.size;
    c.timeout_ms = config.timeout.count();
    c.log_level = static_cast<int32_t>(config.log_level);
    return (config.size > 0 || !config.all_gather ||
            refuse(ODC_ERROR_ARGUMENT, "all_gather needs Config::size: rank and size are not known yet", status...)) &&
           to_c(config.job, "job", c.job, status...) && to_c(config.group, "group", c.group, status...) &&
           to_c(config.rendezvous, "rendezvous", c.rendezvous, status...) &&
           to_c(config.secret, "secret", c.secret, status...) && to_c(config.host, "host", c.host, status...) &&
           to_c(config.device, "device", c.device, status...);
}

}  // namespace detail

template <class... S, class>
Context Context::join(const Config &config, S &...status) {
    return detail::guard(
        [&] {
            auto c = detail::sized<odc_config>();
            if (!check_library(status...) || !detail::to_c(config, c, status...)) {
                return Context();
            }
            auto shared = std::make_shared<detail::SharedContext>();
            shared->interrupted = config.interrupted;
            if (config.interrupted) {
                c.interrupted = detail::ask_interrupted;
                c.interrupted_arg = shared.get();
            }
            shared->log = config.log;
            if (config.log) {
                c.log = detail::hand_over_line;
                c.log_arg = shared.get();
            }
            detail::AllGather all_gather{config};
            if (config.all_gather) {
                c.all_gather = detail::AllGather::all_gather;
                c.all_gather_arg = &all_gather;
            }
            if (!detail::check(odc_init(&c, &shared->handle), status...)) {
                return Context();
            }
            return Context(std::move(shared));
        },
        status...);
}

template <class P, class G, Memory M>
odc_shard_desc Context::to_c(const Description &description) noexcept {
    static_assert(std::is_void_v<G> || !std::is_void_v<typename Element<G>::Sum>, "bytes cannot be added up");
    auto desc = detail::sized<odc_shard_desc>();
    desc.name = description.name.c_str();
    desc.numel = description.numel;
    desc.parameter_type = Element<P>::type;
    desc.gradient_type = Element<G>::type;
    desc.ranks = description.ranks.empty() ? nullptr : description.ranks.data();
    desc.rank_count = description.ranks.size();
    desc.slices = description.slices.empty() ? nullptr : description.slices.data();
    desc.memory = static_cast<int32_t>(M);
    desc.sum = static_cast<int32_t>(description.sum);
    desc.largest = description.largest;
    return desc;
}

// Checks what the C interface cannot: that the name has no NUL, and that each listed rank has a slice.
template <class... S>
bool Context::check_description(const Description &description, S &...status) const {
    const size_t listed =
        description.ranks.empty() ? static_cast<size_t>(size() < 0 ? 0 : size()) : description.ranks.size();
    const std::string name = std::string("shard \"") + description.name.c_str() + '"';
    const char *ignored = nullptr;
    return detail::to_c(description.name, ("the name of " + name).c_str(), ignored, status...) &&
           (description.slices.empty() || description.slices.size() == listed ||
            detail::refuse(ODC_ERROR_ARGUMENT,
                           name + " has " + std::to_string(description.slices.size()) + " slices for " +
                               std::to_string(listed) + " ranks; give one for each",
                           status...));
}

template <class P, class G, Memory M>
Shard<P, G, M> Context::shard_of(const Description &description, odc_shard *handle) const {
    Shard<P, G, M> shard;
    shard.shared_ = user_.shared();
    shard.handle_ = handle;
    shard.name_ = description.name;
    shard.numel_ = description.numel;
    return shard;
}

template <class P, class G, Memory M, class... S, class>
Shard<P, G, M> Context::register_shard(const Description &description, S &...status) {
    return detail::guard(
        [&] {
            const odc_shard_desc desc = to_c<P, G, M>(description);
            odc_shard *made = nullptr;
            if (!check_description(description, status...) ||
                !detail::check(odc_register_shard(handle(), &desc, &made), status...)) {
                return Shard<P, G, M>();
            }
            return shard_of<P, G, M>(description, made);
        },
        status...);
}

template <class P, class G, Memory M, class... S, class>
std::vector<Shard<P, G, M>> Context::register_shards(span<const Description> descriptions, S &...status) {
    return detail::guard(
        [&] {
            std::vector<odc_shard_desc> descs;
            std::vector<Shard<P, G, M>> shards;
            for (const Description &description : descriptions) {
                if (!check_description(description, status...)) {
                    return shards;
                }
                descs.push_back(to_c<P, G, M>(description));
            }
            std::vector<odc_shard *> made(descs.size());
            if (detail::check(odc_register_shards(handle(), descs.data(), descs.size(), made.data()), status...)) {
                for (size_t i = 0; i < made.size(); ++i) {
                    shards.push_back(shard_of<P, G, M>(descriptions[i], made[i]));
                }
            }
            return shards;
        },
        status...);
}

template <class... S>
Route Context::route_to(int32_t rank, Memory memory, S &...status) const noexcept(detail::kQuiet<S...>) {
    return detail::guard(
        [&] {
            auto row = detail::sized<odc_route>();
            detail::check(odc_get_route(handle(), rank, static_cast<int32_t>(memory), &row), status...);
            using detail::text;
            return Route{text(row.transport), text(row.provider), text(row.nic),   text(row.peer_nic),
                         text(row.why),       text(row.why_not),  text(row.access)};
        },
        status...);
}

template <class... S, class>
std::vector<uint64_t> Context::claims(uint64_t minibatch, S &...status) const noexcept(detail::kQuiet<S...>) {
    return detail::guard(
        [&] {
            std::vector<uint64_t> indices;
            size_t count = 0;
            if (detail::check(odc_get_claims(handle(), minibatch, nullptr, 0, &count), status...)) {
                indices.resize(count);
                detail::check(odc_get_claims(handle(), minibatch, indices.data(), count, &count), status...);
            }
            return indices;
        },
        status...);
}

template <class... S, class>
std::vector<double> Context::speeds(S &...status) const noexcept(detail::kQuiet<S...>) {
    return detail::guard(
        [&] {
            std::vector<double> speeds(size() < 0 ? 0 : static_cast<size_t>(size()));
            if (!detail::check(odc_get_speeds(handle(), speeds.data(), speeds.size()), status...)) {
                speeds.clear();
            }
            return speeds;
        },
        status...);
}

template <class... S, class>
void Context::shutdown(S &...status) noexcept(detail::kQuiet<S...>) {
    const size_t pending = *this ? user_.shared()->users - 1 : 0;
    if (pending > 0) {
        detail::guard(
            [&] {
                return detail::refuse(ODC_ERROR_PHASE,
                                      "Context::shutdown: operations that nobody has waited for: " +
                                          std::to_string(pending) + "; wait for them, or destroy them, first",
                                      status...);
            },
            status...);
        return;
    }
    detail::check(odc_shutdown(handle()), status...);
}

}  // namespace ODC_ABI
}  // namespace odc
#undef ODC_ABI
#undef ODC_ABI_EXPANDED
#undef ODC_ABI_NAME
#undef ODC_ABI_WAY
#endif
