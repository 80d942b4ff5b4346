// SPDX-License-Identifier: Apache-2.0
// Compile-time properties, and each call once, with a Status and, where there are exceptions, without: compiled in each
// standard by each compiler, without a warning. As a program it prints, one per line, the results of the calls that need no
// context.
#include <odc/odc.hpp>
// First, to check that odc.hpp includes what it needs.
#include <array>
#include <cstdio>
#if __cplusplus >= 202002L && !defined(__clang__)
#include <ranges>
#endif
#include <type_traits>

namespace {

template <class Handle>
constexpr bool is_handle = std::is_nothrow_move_constructible_v<Handle> &&std::is_nothrow_move_assignable_v<Handle>
                               &&std::is_nothrow_default_constructible_v<Handle> &&
                           !std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>;
using Layer = odc::Shard<float, odc::Bf16>;
static_assert(is_handle<odc::Context> && is_handle<odc::Operation> && std::is_nothrow_destructible_v<odc::Operation>);
static_assert(std::is_nothrow_move_constructible_v<Layer> && std::is_nothrow_move_assignable_v<Layer>);
static_assert(!std::is_copy_constructible_v<Layer> && !std::is_copy_assignable_v<Layer>);

static_assert(sizeof(odc::Bf16) == 2 && sizeof(odc::F16) == 2);
static_assert(std::is_trivial_v<odc::Bf16> && std::is_trivial_v<odc::F16>);
static_assert(std::is_convertible_v<odc::Bf16, float> && !std::is_convertible_v<float, odc::Bf16>);
static_assert(
    std::is_same_v<odc::Slice<float, odc::F16, odc::Memory::Host>, decltype(odc::Shard<float, odc::F16>().slice())>);
static_assert(std::is_same_v<decltype(odc::Slice<odc::F16, odc::F16, odc::Memory::Host>::gradients), odc::span<float>>);
static_assert(std::is_same_v<decltype(odc::Slice<float, double, odc::Memory::Gpu>::gradients), odc::GpuSpan<double>>);
#if defined(__cpp_lib_span)
static_assert(std::is_same_v<odc::span<float>, std::span<float>>);
#endif

// The sources of a view.
template <class From, class To>
constexpr bool to_span = std::is_convertible_v<From, odc::span<To>>;
static_assert(to_span<std::vector<float> &, float> && to_span<std::vector<float> &, const float>);
static_assert(to_span<const std::vector<float> &, const float> && !to_span<const std::vector<float> &, float>);
static_assert(to_span<std::array<float, 3> &, float> && to_span<float (&)[3], float>);
static_assert(to_span<odc::span<float>, const float> && !to_span<odc::span<const float>, float>);
static_assert(!to_span<std::vector<double> &, float> && !to_span<std::vector<float>, float>);
static_assert(std::is_convertible_v<odc::GpuSpan<float>, odc::GpuSpan<const float>>);

// A call takes a buffer of its shard's type and memory, and at most one Status; a started one takes no temporary.
template <class... Arguments>
auto gathers(int) -> decltype(std::declval<Layer &>().gather(std::declval<Arguments>()...), std::true_type());
template <class... Arguments>
std::false_type gathers(...);
template <class... Arguments>
auto starts(int) -> decltype(std::declval<Layer &>().scatter_add_start(std::declval<Arguments>()...), std::true_type());
template <class... Arguments>
std::false_type starts(...);
using Floats = std::vector<float>;
using Halves = std::vector<odc::Bf16>;
static_assert(decltype(gathers<Floats &>(0))() && decltype(gathers<Floats &, odc::Status &>(0))());
static_assert(!decltype(gathers<Floats>(0))() && !decltype(gathers<Halves &>(0))());
static_assert(!decltype(gathers<odc::GpuSpan<float>>(0))());
static_assert(!decltype(gathers<Floats &, odc::Status &, odc::Status &>(0))() &&
              !decltype(gathers<Floats &, int &>(0))());
static_assert(!decltype(gathers<Floats &, const odc::Status &>(0))() && !decltype(gathers<Floats &, void *>(0))());
template <class Buffer>
constexpr bool starts_with = decltype(starts<Buffer>(0))() && decltype(starts<Buffer, odc::Stream>(0))() &&
                             decltype(starts<Buffer, odc::Status &>(0))() &&
                             decltype(starts<Buffer, odc::Stream, odc::Status &>(0))();
template <class Buffer>
constexpr bool never_starts_with =
    !decltype(starts<Buffer>(0))() && !decltype(starts<Buffer, odc::Stream>(0))() &&
    !decltype(starts<Buffer, odc::Status &>(0))() && !decltype(starts<Buffer, odc::Stream, odc::Status &>(0))();
static_assert(starts_with<Halves &> && starts_with<const Halves &> && starts_with<std::array<odc::Bf16, 3> &>);
static_assert(starts_with<odc::span<odc::Bf16>> && starts_with<const odc::span<const odc::Bf16>>);
static_assert(never_starts_with<Halves> && never_starts_with<const Halves>);
static_assert(never_starts_with<std::array<odc::Bf16, 3>> && never_starts_with<const std::array<odc::Bf16, 3>>);
static_assert(never_starts_with<Floats &>);
#if defined(__cpp_lib_ranges) && !defined(__clang__)  // clang 14 cannot read <ranges> of GCC 12
static_assert(starts_with<std::ranges::subrange<Halves::iterator>> &&
              never_starts_with<std::ranges::single_view<odc::Bf16>>);
#endif

// A call with a Status throws nothing, but a thread may end in calls that ask callbacks (WAITS).
template <class... S>
constexpr bool same_throws(bool noexcepts) {
    return noexcepts == (sizeof...(S) > 0);
}

template <class... S>
void call_all(const odc::Config &config, const odc::Description &description, const std::string &text, S &...status) {
#define CALL(...)                                                                  \
    static_assert(same_throws<S...>(noexcept(__VA_ARGS__)), "only with a Status"); \
    static_cast<void>(__VA_ARGS__)
#define WAITS(...)                                                                 \
    static_assert(!noexcept(__VA_ARGS__), "pthread_exit in a callback passes it"); \
    static_cast<void>(__VA_ARGS__)
    std::vector<float> full, parameters;
    std::vector<odc::Bf16> gradients;
    std::array<double, 1> values{};
    const odc::span<float> view(full);
    const odc::span<const odc::Bf16> added(gradients);
    const odc::span<double> reduced(values);
    const odc::span<const uint64_t> lengths;
    const odc::span<const odc::Description> descriptions;
    const odc::GpuSpan<float> there;
    const odc::GpuSpan<const float> there_too = there;
    const odc::Stream stream;
    const odc::Cost cost;
    odc::Context context;
    Layer shard;
    odc::Shard<float, float, odc::Memory::Gpu> on_gpu;
    odc::Operation operation;
    WAITS(odc::Context::join(config, status...));
    WAITS((context.register_shard<float, odc::Bf16>(description, status...)));
    WAITS((context.register_shard<void, double, odc::Memory::Gpu>(description, status...)));
    WAITS((context.register_shard<std::byte, odc::F16>(description, status...)));
    WAITS((context.register_shards<odc::F16, void>(descriptions, status...)));
    WAITS(context.publish(status...));
    WAITS(context.publish(stream, status...));
    WAITS(context.sync(status...));
    WAITS(context.sync_reduce(reduced, odc::Reduction::Sum, status...));
    WAITS(context.all_reduce(reduced, odc::Reduction::Max, status...));
    WAITS(context.claim(1, status...));
    CALL(context.claims(0, status...));
    CALL(context.report_cost(1, status...));
    CALL(context.speeds(status...));
    odc::ExactSum sum;
    CALL(sum.add(1, status...));
    CALL(sum.add(values, status...));
    CALL(sum.value(status...));
    CALL(context.stats(status...));
    CALL(context.peer_stats(0, status...));
    CALL(context.route(0, status...));
    CALL(context.route_to_gpu(0, status...));
    CALL(context.abort(text, status...));
    CALL(context.shutdown(status...));
    CALL(shard.slice(status...));
    WAITS(shard.publish(status...));
    WAITS(on_gpu.publish(stream, status...));
    WAITS(shard.gather(view, status...));
    WAITS(on_gpu.gather(there, stream, status...));
    WAITS(shard.scatter_add(added, status...));
    WAITS(on_gpu.scatter_add(there_too, stream, status...));
    WAITS(shard.gather_start(view, status...));
    WAITS(on_gpu.gather_start(there, stream, status...));
    WAITS(shard.scatter_add_start(added, status...));
    WAITS(on_gpu.scatter_add_start(there_too, stream, status...));
    WAITS(shard.finish(status...));
    WAITS(on_gpu.finish(stream, status...));
    CALL(shard.release(status...));
    WAITS(operation.wait(status...));
    CALL(odc::check_library(status...));
    CALL(odc::build(status...));
    CALL(odc::transports(status...));
    CALL(odc::settings(status...));
    CALL(odc::topology(status...));
    CALL(odc::topology(text, status...));
    CALL(odc::Cost::of_model(text, status...));
    CALL(odc::plan(lengths, 1, 1, odc::Policy::LbMicro, cost, status...));
    CALL(odc::plan_by_speed(lengths, odc::span<const double>(), 1, cost, 0.5, status...));
    CALL(odc::plan_window(lengths, lengths, 1, 1, odc::Policy::LbMini, cost, odc::Lookahead(), status...));
}

template <class Call>
void say(Call call) {
    odc::Status status;
    call(status);
    std::printf("%s\n", status.ok() ? "ok" : status.message());
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char **) {
    if (argc > 1) {  // never: for the compiler only
        odc::Status status;
        call_all({}, {}, "", status);
#if defined(__cpp_exceptions)
        call_all({}, {}, "");
#endif
    }
    const std::vector<uint64_t> lengths{1};
    say([](odc::Status &status) { odc::check_library(status); });
    say([](odc::Status &status) { odc::Context::join({}, status); });
    say([](odc::Status &status) { odc::build(status); });
    say([](odc::Status &status) { odc::transports(status); });
    say([](odc::Status &status) { odc::settings(status); });
    say([](odc::Status &status) { odc::topology(status); });
    say([](odc::Status &status) { odc::Cost::of_model("7b", status); });
    say([&](odc::Status &status) { odc::plan(lengths, 1, 1, odc::Policy::LbMini, odc::Cost(), status); });
}
