// SPDX-License-Identifier: Apache-2.0
// Streams: a thread each, which carries out what is enqueued, one after the other, each after a random while.
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
    // Where to cut `count` in two with a pause between; 0: not at all.
    uint64_t cut(uint64_t count);

private:
    std::mt19937_64 random_;
};

// What a stream's thread carries out. A sticky result fails the context.
using Work = std::function<Result(Pace &)>;

using Clock = std::chrono::steady_clock;

// What was enqueued in a stream until then. Empty: nothing.
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

    // Runs `work` after what was enqueued before and after `others`.
    fake_cuda::Point enqueue(std::vector<fake_cuda::Point> others, fake_cuda::Work work);
    // Of all that was enqueued until now.
    fake_cuda::Point last();
    bool reached(uint64_t number) const { return done_.load(std::memory_order_acquire) >= number; }
    void wait(uint64_t number);
    // Whether it was reached by then.
    bool wait_until(uint64_t number, fake_cuda::Clock::time_point deadline);
    // No more will come: the thread ends when all is done.
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
// The stream that a handle means for this thread, whose context has not failed; else why not.
Result find_stream(Stream handle, std::shared_ptr<StreamHandle> &stream);
// Also where its context has failed.
Result find_any_stream(Stream handle, std::shared_ptr<StreamHandle> &stream);
bool is_legacy(StreamHandle &stream);

// Enqueues in the order that CUDA promises between streams; what a capture records is not carried out.
Result submit(StreamHandle &stream, Work work, std::vector<Point> others = {}, Point *point = nullptr);

}  // namespace fake_cuda
