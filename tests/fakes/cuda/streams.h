// SPDX-License-Identifier: Apache-2.0
// Streams: a thread each, which runs the enqueued operations one after the other, each after a random delay.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "contexts.h"
#include "results.h"

namespace fake_cuda {

// The random delays of one thread.
class Pace {
public:
    explicit Pace(uint64_t number);
    void pause();
    // Where to cut `count` in two with a pause between; 0: do not cut.
    uint64_t cut(uint64_t count);

private:
    std::mt19937_64 random_;
};

// An operation, run by a stream's thread. A sticky result fails the context.
using Work = std::function<Result(Pace &)>;

using Clock = std::chrono::steady_clock;

// The work enqueued in a stream up to a point. Empty: none.
struct Point {
    std::shared_ptr<StreamHandle> stream;
    uint64_t number = 0;

    bool reached() const;
    void wait() const;
};

enum class Waits { ForLegacy, ForNobody };

}  // namespace fake_cuda

namespace odc::cuda {

struct StreamHandle : std::enable_shared_from_this<StreamHandle> {
    StreamHandle(ContextHandle &of, fake_cuda::Waits how) : context(of), waits(how) {}

    // Runs `work` after the stream's earlier work and after `others`.
    fake_cuda::Point enqueue(std::vector<fake_cuda::Point> others, fake_cuda::Work work);
    // The point after all that is enqueued so far.
    fake_cuda::Point last();
    bool reached(uint64_t number) const { return done_.load(std::memory_order_acquire) >= number; }
    void wait(uint64_t number);
    // Whether the point was reached before the deadline.
    bool wait_until(uint64_t number, fake_cuda::Clock::time_point deadline);
    // No more work will come: the thread ends when all is done.
    void finish();

    ContextHandle &context;
    const fake_cuda::Waits waits;
    std::atomic<CaptureStatus> capture{CaptureStatus::None};

private:
    struct Operation {
        std::vector<fake_cuda::Point> after;
        fake_cuda::Work work;
    };
    void start_thread();
    void run();
    bool next(Operation &operation);
    void carry_out(Operation &operation, fake_cuda::Pace &pace);
    void leave_context();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Operation> queue_;
    std::atomic<uint64_t> enqueued_{0};
    std::atomic<uint64_t> done_{0};
    bool has_thread_ = false;
    bool finished_ = false;
};

}  // namespace odc::cuda

namespace fake_cuda {

std::shared_ptr<StreamHandle> make_stream(ContextHandle &context, Waits waits);
// The stream of a handle in this thread, whose context has not failed; otherwise the reason.
Result find_stream(Stream handle, std::shared_ptr<StreamHandle> &stream);
// The same where its context may have failed.
Result find_any_stream(Stream handle, std::shared_ptr<StreamHandle> &stream);
bool is_legacy(StreamHandle &stream);

// Enqueues in the order that CUDA promises between streams; captured work is not run.
Result submit(StreamHandle &stream, Work work, std::vector<Point> others = {}, Point *point = nullptr);

}  // namespace fake_cuda
