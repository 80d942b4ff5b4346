// SPDX-License-Identifier: Apache-2.0
// Started gathers and additions, and the C context that a Context's handles share.
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

enum class LogLevel : int32_t {
    Error = ODC_LOG_ERROR,
    Warn = ODC_LOG_WARN,
    Info = ODC_LOG_INFO,
    Debug = ODC_LOG_DEBUG,
    Trace = ODC_LOG_TRACE
};

namespace detail {

// Disables `interrupted` on this thread: a destructor that waits could not report an interruption.
class Uninterrupted {
public:
    Uninterrupted() noexcept : before_(std::exchange(here(), true)) {}
    Uninterrupted(const Uninterrupted &) = delete;
    Uninterrupted &operator=(const Uninterrupted &) = delete;
    ~Uninterrupted() { here() = before_; }

    static bool &here() noexcept {
        thread_local bool uninterrupted = false;
        return uninterrupted;
    }

private:
    bool before_;
};

// The C context, shared by its handles; the last one destroys it.
struct SharedContext {
    std::function<bool()> interrupted;
    std::function<void(LogLevel level, const char *line)> log;
    odc_context *handle = nullptr;
    std::atomic<size_t> users{0};

    SharedContext() = default;
    SharedContext(const SharedContext &) = delete;
    SharedContext &operator=(const SharedContext &) = delete;
    ~SharedContext() {
        const Uninterrupted here;
        odc_destroy(handle);
    }
};

// Keeps the rank in the job: one for the Context and one for each pending operation. The last one leaves the job.
class User {
public:
    User() noexcept = default;
    explicit User(std::shared_ptr<SharedContext> shared) noexcept : shared_(std::move(shared)) { ++shared_->users; }
    User(User &&) noexcept = default;
    User &operator=(User &&other) noexcept {
        User taken(std::move(other));
        std::swap(shared_, taken.shared_);
        return *this;
    }
    ~User() {
        if (shared_ != nullptr && --shared_->users == 0) {
            const Uninterrupted here;
            odc_shutdown(shared_->handle);
        }
    }

    const std::shared_ptr<SharedContext> &shared() const noexcept { return shared_; }
    odc_context *handle() const noexcept { return shared_ == nullptr ? nullptr : shared_->handle; }

private:
    std::shared_ptr<SharedContext> shared_;
};

inline int ask_interrupted(void *shared) {
    return Uninterrupted::here()
               ? 0
               : call_back([&] { return static_cast<SharedContext *>(shared)->interrupted() ? 1 : 0; });
}

inline void hand_over_line(void *shared, int32_t level, const char *line) {
    call_back_and_forget([&] { static_cast<SharedContext *>(shared)->log(static_cast<LogLevel>(level), line); });
}

}  // namespace detail

// A started gather or addition. Its buffer belongs to the library until wait() or the sync returns. The destructor waits
// without interruption, up to the deadline if owners never publish, and aborts the job if the wait fails.
class Operation {
public:
    Operation() noexcept = default;
    Operation(Operation &&other) noexcept : user_(std::move(other.user_)), number_(std::exchange(other.number_, 0)) {}
    Operation &operator=(Operation &&other) noexcept {
        Operation taken(std::move(other));
        std::swap(user_, taken.user_);
        std::swap(number_, taken.number_);
        return *this;
    }
    ~Operation() {
        if (pending()) {
            const detail::Uninterrupted here;
            if (is_kept(odc_wait(user_.handle(), number_))) {
                odc_abort(user_.handle(), "an operation was dropped, and could not be waited for");
                odc_wait(user_.handle(), number_);
            }
        }
    }

    // Completes the operation; call it again after an interruption.
    template <class... S, class = detail::Trailing<S...>>
    void wait(S &...status) {
        if (!pending()) {
            detail::refuse(ODC_ERROR_PHASE, "Operation::wait: it is not pending: it has been waited for, or moved away",
                           status...);
            return;
        }
        const int32_t code = odc_wait(user_.handle(), number_);
        detail::User ended;
        if (!is_kept(code)) {
            number_ = 0;
            ended = std::move(user_);
        }
        detail::check(code, status...);
    }

    // Whether the operation is still pending.
    bool pending() const noexcept { return number_ != 0; }

private:
    template <class P, class G, Memory M>
    friend class Shard;

    // An operation that the library still has can be waited for again.
    static bool is_kept(int32_t code) noexcept { return code < ODC_ERROR_PHASE && !odc::is_job_error(code); }

    detail::User user_;
    uint64_t number_ = 0;
};

}  // namespace ODC_ABI
}  // namespace odc
#endif
