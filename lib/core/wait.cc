// SPDX-License-Identifier: Apache-2.0
#include "core/wait.h"

#include "base/format.h"
#include "base/log.h"

namespace odc {

void Job::Wait::check(int holder, int64_t since_ns) {
    holder_ = holder;
    since_ns_ = since_ns;
    if (const std::optional<Error> trouble = look(-1)) {
        job_.fail_job(trouble->status(), trouble->what());
    }
}

std::optional<Error> Job::Wait::look(int on) {
    if (!deadline_) {
        deadline_.emplace(job_.deadline());
    }
    job_.look_at_states();
    const int64_t now = now_ns();
    if (now - looked_ns_ >= kLookNs) {
        looked_ns_ = now;
        job_.run_waiting_hook();
        job_.look_for_deaths();
    }
    const auto waited = [this] { return formatted("{:.1f} s", deadline_->waited_s()); };
    const auto me = [this] { return job_.who(job_.rank()); };
    const RankState state = on >= 0 ? job_.block(on).state.load(std::memory_order_acquire) : RankState::Running;
    if (state == RankState::Gone || (state == RankState::Left && !left_serves_)) {
        return Error(ODC_ERROR_PEER_LOST,
                     formatted("{} left in minibatch {}, but {} waits for it in {}: {}", job_.who(on),
                               job_.block(on).left_minibatch.load(), me(), call_, describe_()));
    }
    if (deadline_->over()) {
        return Error(ODC_ERROR_TIMEOUT, formatted("{} waited {} in {}: {}", me(), waited(), call_, describe_()));
    }
    deadline_->log_if_long([&] { return formatted("waited {} in {}: {}", waited(), call_, describe_()); });
    since_ns_ = since_ns_ != 0 ? since_ns_ : now;
    if (effects_ && now - since_ns_ < kFinishNs) {
        return std::nullopt;
    }
    try {
        deadline_->check_interrupted(call_);
    } catch (const Error &error) {
        const std::string text = formatted("{} after {}: {}", error.what(), waited(), describe_());
        if (!effects_) {
            throw Error(error.status(), text);
        }
        job_.fail_job(ODC_ERROR_ABORTED, formatted("{} stopped halfway, so the sums are incomplete: {}", me(), text));
    }
    return std::nullopt;
}

}  // namespace odc
