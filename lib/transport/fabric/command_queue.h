// SPDX-License-Identifier: Apache-2.0
// Commands that a context's threads leave to its progress thread, and how they wait for it.
#pragma once

#include "base/fd.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace odc {

class CommandQueue {
public:
    using Command = std::function<void()>;

    CommandQueue();
    CommandQueue(const CommandQueue &) = delete;
    CommandQueue &operator=(const CommandQueue &) = delete;

    // ---- For the context's threads ----

    // False once the thread has ended: then the command does not run.
    bool submit(Command command);
    // Runs `body` on the thread and waits for it; rethrows its exception. False if the thread has ended and released
    // everything.
    bool call(const std::function<void()> &body);
    // Returns once `done()`, which update() makes true, or once the thread has ended, or after `ns`.
    void wait_for(int64_t ns, const std::function<bool()> &done);

    // ---- For the thread ----

    // Takes what has been submitted; true if there is anything to run.
    bool take();
    // Runs what was taken. If a command throws, the next call goes on with the one after it.
    void run();
    // Changes what wait_for() looks at.
    void update(const std::function<void()> &change);
    // After begin_sleep() submit() makes this readable. begin_sleep() is false if there are commands: then do not sleep.
    int wait_fd() const { return wake_.get(); }
    bool begin_sleep();
    // `revents`: of wait_fd(), as poll() reported them.
    void end_sleep(short revents);
    // The thread takes no more commands, and runs the last ones.
    void end();
    // It has released everything that commands refer to.
    void release();

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Command> commands_;
    std::deque<Command> taken_;  // by the thread, from commands_
    bool ended_ = false;
    bool released_ = false;
    std::atomic<bool> sleeping_{false};
    Fd wake_;  // eventfd
};

}  // namespace odc
