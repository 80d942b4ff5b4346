// SPDX-License-Identifier: Apache-2.0
// What the handles of one context share, and started gathers and additions.
#ifndef ODC_HPP_OPERATION_HPP
#define ODC_HPP_OPERATION_HPP
#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "element.hpp"
#include "status.hpp"

namespace odc {
inline namespace ODC_ABI {

namespace detail {

// A rank's membership in a job, until the last handle is gone.
struct Membership {
    std::function<bool()> interrupted;
    odc_context *handle = nullptr;
    std::atomic<size_t> pending{0};  // operations that nobody has waited for

    Membership() = default;
    Membership(const Membership &) = delete;
    Membership &operator=(const Membership &) = delete;
    ~Membership() { odc_destroy(handle); }
};

// Set while a destructor waits, which has no way to say that it was interrupted.
inline thread_local bool uninterrupted = false;

inline int ask_interrupted(void *membership) noexcept {
    return uninterrupted ? 0 : call_back([&] { return static_cast<Membership *>(membership)->interrupted() ? 1 : 0; });
}

}  // namespace detail

// A started gather or addition, whose buffer is the library's until wait(), or the sync, has returned. Its destructor waits,
// and cannot be interrupted: where the owners never publish, to the deadline. Should the wait fail, it aborts the job.
class Operation {
public:
    Operation() noexcept = default;
    Operation(Operation &&other) noexcept
        : membership_(std::move(other.membership_)), number_(std::exchange(other.number_, 0)) {}
    Operation &operator=(Operation &&other) noexcept {
        Operation taken(std::move(other));
        std::swap(membership_, taken.membership_);
        std::swap(number_, taken.number_);
        return *this;
    }
    ~Operation() {
        if (pending()) {
            detail::uninterrupted = true;
            if (is_kept(odc_wait(membership_->handle, number_))) {
                odc_abort(membership_->handle, "an operation was dropped, and could not be waited for");
                odc_wait(membership_->handle, number_);
            }
            detail::uninterrupted = false;
            --membership_->pending;
        }
    }

    // Completes it; after an interruption it is to be called again.
    template <class... S, class = detail::Trailing<S...>>
    void wait(S &...status) noexcept(detail::kQuiet<S...>) {
        if (!pending()) {
            detail::refuse(ODC_ERROR_PHASE, "Operation::wait: it is not pending: it has been waited for, or moved away",
                           status...);
            return;
        }
        const int32_t code = odc_wait(membership_->handle, number_);
        if (!is_kept(code)) {
            number_ = 0;
            --membership_->pending;
            membership_ = nullptr;
        }
        detail::check(code, status...);
    }

    // Whether it is still to be waited for.
    bool pending() const noexcept { return number_ != 0; }

private:
    template <class P, class G, Memory M>
    friend class Shard;

    // What the library keeps can be waited for again.
    static bool is_kept(int32_t code) noexcept { return code < ODC_ERROR_PHASE && !odc::is_job_error(code); }

    std::shared_ptr<detail::Membership> membership_;
    uint64_t number_ = 0;
};

}  // namespace ODC_ABI
}  // namespace odc
#endif
