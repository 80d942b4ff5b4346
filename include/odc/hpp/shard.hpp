// SPDX-License-Identifier: Apache-2.0
// Shards: 1-D tensors divided over ranks.
#ifndef ODC_HPP_SHARD_HPP
#define ODC_HPP_SHARD_HPP
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "element.hpp"
#include "operation.hpp"

namespace odc {
inline namespace ODC_ABI {

// How gradients are summed: in the order in which they come, or so that the bits of the sums depend on the gradients only, not
// on order, ranks, hosts or slices (ODC_SUM_EXACT; f32, bf16 and f16).
enum class Sum : int32_t { Default = 0, Exact = ODC_SUM_EXACT };

// All listed ranks register an equal description in the same minibatch.
struct Description {
    std::string name;                   // 1..255 bytes, unique among the context's registered shards
    uint64_t numel = 0;                 // elements of the whole shard
    std::vector<int32_t> ranks = {};    // the distinct ranks that own a slice; empty: all, in order
    std::vector<uint64_t> slices = {};  // elements of each of these ranks, adding up to numel; empty: equal
    Sum sum = Sum::Default;
    float largest = 0;  // exact sums: all gradients of the first minibatch are below; 0: the default
};

// This rank's part of a shard. Write parameters and access gradients between sync and publish only.
template <class P, class G, Memory M>
struct Slice {
    detail::View<detail::OrNothing<P>, M> parameters;                        // empty if there are none
    detail::View<detail::OrNothing<typename Element<G>::Sum>, M> gradients;  // sums; empty if there are none
    uint64_t offset = 0;                                                     // of the first element in the shard
    float largest = 0;  // what exact sums of this slice ask for in the next minibatch (odc_slice)
};

// A shard with parameters of type P and gradients of type G (see Element), of which this rank owns a slice. Destroying the
// handle does not unregister it: it is still published with all others, and only release() frees its memory. Calls on a shard
// in GPU memory take a stream.
template <class P, class G, Memory M = Memory::Host>
class Shard {
public:
    using Parameters = detail::View<detail::OrNothing<P>, M>;
    using Gradients = detail::View<const detail::OrNothing<G>, M>;

    Shard() noexcept = default;
    Shard(Shard &&) noexcept = default;
    Shard &operator=(Shard &&) noexcept = default;

    const std::string &name() const noexcept { return name_; }
    uint64_t numel() const noexcept { return numel_; }
    odc_shard *handle() const noexcept { return shared_ == nullptr ? nullptr : handle_; }

    template <class... S, class = detail::Trailing<S...>>
    Slice<P, G, M> slice(S &...status) const noexcept(detail::kQuiet<S...>) {
        auto slice = detail::sized<odc_slice>();
        if (!detail::check(odc_get_slice(handle(), &slice), status...)) {
            return {};
        }
        const size_t numel = slice.numel;
        return {view<P>(slice.parameters, numel), view<typename Element<G>::Sum>(slice.gradients, numel), slice.offset,
                slice.largest};
    }

    // "My slice holds this minibatch's parameters": lets peers read it and opens its accumulator at zero. Once per minibatch;
    // waits for nobody.
    template <class... S, class = detail::Trailing<S...>>
    void publish(S &...status) {
        publish(Stream(), status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    void publish(Stream stream, S &...status) {
        detail::check(odc_publish(handle(), stream.handle), status...);
    }

    // Fills `full` with the whole shard; waits for each owner's publish only.
    template <class... S, class = detail::Trailing<S...>>
    void gather(Parameters full, S &...status) const {
        gather(full, Stream(), status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    void gather(Parameters full, Stream stream, S &...status) const {
        static_assert(!std::is_void_v<P>, "this shard has no parameters");
        detail::check(odc_gather(handle(), full.data(), full.size(), stream.handle), status...);
    }

    // Adds `full` into all owners' accumulators, each element exactly once; waits as gather does before it adds anything.
    template <class... S, class = detail::Trailing<S...>>
    void scatter_add(Gradients full, S &...status) const {
        scatter_add(full, Stream(), status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    void scatter_add(Gradients full, Stream stream, S &...status) const {
        static_assert(!std::is_void_v<G>, "this shard has no gradients");
        detail::check(odc_scatter_add(handle(), full.data(), full.size(), stream.handle), status...);
    }

    // Start a gather or an addition without waiting for any publish. `full` must outlive the operation.
    template <class... S, class = detail::Trailing<S...>>
    [[nodiscard]] Operation gather_start(Parameters full, S &...status) const {
        return gather_start(full, Stream(), status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    [[nodiscard]] Operation gather_start(Parameters full, Stream stream, S &...status) const {
        static_assert(!std::is_void_v<P>, "this shard has no parameters");
        return start(odc_gather_start, full, stream, status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    [[nodiscard]] Operation scatter_add_start(Gradients full, S &...status) const {
        return scatter_add_start(full, Stream(), status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    [[nodiscard]] Operation scatter_add_start(Gradients full, Stream stream, S &...status) const {
        static_assert(!std::is_void_v<G>, "this shard has no gradients");
        return start(odc_scatter_add_start, full, stream, status...);
    }
    // A temporary buffer would be destroyed before the operation completes; a temporary view is fine.
    template <class Buffer, class... Rest, class = std::enable_if_t<detail::kIsTemporary<Buffer>>>
    void scatter_add_start(Buffer &&full, Rest &&...rest) const = delete;

    // "I add nothing more to the shard in this minibatch": lets what this host's ranks have added to slices of other hosts be sent
    // before the sync (odc_finish).
    template <class... S, class = detail::Trailing<S...>>
    void finish(S &...status) {
        finish(Stream(), status...);
    }
    template <class... S, class = detail::Trailing<S...>>
    void finish(Stream stream, S &...status) {
        static_assert(!std::is_void_v<G>, "this shard has no gradients");
        detail::check(odc_finish(handle(), stream.handle), status...);
    }

    // Frees the slices' memory, between sync and publish; local. The name may be used again in a later minibatch.
    template <class... S, class = detail::Trailing<S...>>
    void release(S &...status) noexcept(detail::kQuiet<S...>) {
        detail::check(odc_release_shard(handle()), status...);
    }

private:
    friend class Context;

    template <class T>
    static detail::View<detail::OrNothing<T>, M> view(void *elements, size_t numel) noexcept {
        return {static_cast<detail::OrNothing<T> *>(elements), elements == nullptr ? 0 : numel};
    }

    template <class Start, class Full, class... S>
    Operation start(Start begin, Full full, Stream stream, S &...status) const {
        Operation operation;
        const int32_t code = begin(handle(), full.data(), full.size(), stream.handle, &operation.number_);
        if (code == ODC_OK) {
            operation.user_ = detail::User(shared_);
        }
        detail::check(code, status...);
        return operation;
    }

    std::shared_ptr<detail::SharedContext> shared_;
    odc_shard *handle_ = nullptr;
    std::string name_;
    uint64_t numel_ = 0;
};

}  // namespace ODC_ABI
}  // namespace odc
#endif
