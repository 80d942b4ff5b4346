// SPDX-License-Identifier: Apache-2.0
// The waits of a job's calls: each has a deadline, sees deaths and job errors, and asks `interrupted`. Whatever waits for other
// ranks, in odc_gather as in odc_minibatch_sync, does it here.
#pragma once

#include "core/job.h"

#include <sched.h>

#include <functional>
#include <optional>
#include <string>

namespace odc {

// One wait of one call; it lasts until the deadline whatever it waits for in turn.
class Job::Wait : public WaitHook {
public:
    Wait(Job &job, const char *call) : job_(job), call_(call) {}
    // Says at the deadline what is waited for, and names who is missing.
    void describe(std::function<std::string()> text) { describe_ = std::move(text); }
    // Waits until `ready()`, which may become true only when `on` rings its doorbell. A peer's death, departure (if it
    // is `on`'s) and the deadline are job errors, but a condition that holds comes first.
    template <class Ready>
    void until(int on, const Ready &ready);
    // The same for what rings no doorbell: a word that a device writes, or what this process does. `on()` may change.
    template <class On, class Ready>
    void until_seen(const On &on, const Ready &ready);
    // Waits until `done()`, for which `doorbell` is rung, or until `absent()` is -1: it is the first rank that has not come. It may
    // look at every rank, so it is asked only when a sleep has ended without `done()`. The death or departure of that rank and the
    // deadline are job errors, as above.
    template <class Done, class Absent>
    void until_all(Doorbell &doorbell, const Done &done, const Absent &absent);
    // As `until`, but a peer that has left (odc_shutdown) still serves this, until it is gone.
    template <class Ready>
    void until_served(int on, const Ready &ready) {
        left_serves_ = true;
        until(on, ready);
        left_serves_ = false;
    }
    template <class On, class Ready>
    void until_seen_served(const On &on, const Ready &ready) {
        left_serves_ = true;
        until_seen(on, ready);
        left_serves_ = false;
    }
    // For waits on other things than a doorbell: throws what ends the wait.
    void check(int holder, int64_t since_ns) override;
    int holder() const { return holder_; }
    // From now on an interruption would leave an operation half done. So `interrupted` is not asked while the
    // operation makes progress; after kFinishNs without any it is asked, and an interruption fails the job. To call this again
    // after progress restarts kFinishNs.
    void begin_effects() {
        effects_ = true;
        since_ns_ = 0;
    }
    void end_effects() { effects_ = false; }

private:
    // Deaths and a failed device are looked for at most this often, and at least every 20 ms.
    static constexpr int64_t kLookNs = 5'000'000;
    // A rank lets a stripe go in microseconds, and a progress thread adds what is announced to it in milliseconds; after this
    // long the owner is stopped, or its host overloaded.
    static constexpr int64_t kFinishNs = 5'000'000'000;

    template <class Ready>
    bool spin(const Ready &ready);
    // Looks for what ends the wait; true if the condition holds after all.
    template <class Ready>
    bool look_or(int on, const Ready &ready);
    // Throws what ends every wait: a job error, a death, an interruption. Returns what ends this one, on `on`.
    std::optional<Error> look(int on);

    Job &job_;
    const char *call_;
    std::function<std::string()> describe_;
    std::optional<Deadline> deadline_;  // begins at the first look: most waits end before, without reading a clock
    int64_t looked_ns_ = 0;
    int64_t since_ns_ = 0;  // when this part of the wait was first looked at; 0: not yet
    bool effects_ = false;
    bool left_serves_ = false;
    int holder_ = -1;  // of the lock that is waited for
};

template <class Ready>
bool Job::Wait::spin(const Ready &ready) {
    for (int spin = 0; spin < job_.spins_; ++spin) {
        if (ready()) {
            return true;
        }
        spin_pause();
        // The awaited rank may be queued behind us on this core.
        if (spin % 64 == 63) {
            sched_yield();
        }
    }
    return false;
}

template <class Ready>
bool Job::Wait::look_or(int on, const Ready &ready) {
    std::optional<Error> trouble;
    try {
        trouble = look(on);
    } catch (const Error &) {
        if (ready()) {
            return true;
        }
        throw;
    }
    if (trouble) {
        // It may have done what we wait for just before it left, or before the deadline.
        if (ready()) {
            return true;
        }
        job_.fail_job(trouble->status(), trouble->what());
    }
    return false;
}

template <class Ready>
void Job::Wait::until(int on, const Ready &ready) {
    if (spin(ready)) {
        return;
    }
    since_ns_ = 0;
    Doorbell &doorbell = job_.block(on).doorbell;
    for (;;) {
        const uint32_t rung = doorbell.rung.load();
        if (ready() || look_or(on, ready)) {
            return;
        }
        job_.sleep(doorbell, rung);
    }
}

template <class Done, class Absent>
void Job::Wait::until_all(Doorbell &doorbell, const Done &done, const Absent &absent) {
    if (spin(done)) {
        return;
    }
    for (uint32_t rung = doorbell.rung.load(); !done(); rung = doorbell.rung.load()) {
        job_.sleep(doorbell, rung);
        if (done()) {
            return;
        }
        const int on = absent();
        if (on < 0 || look_or(on, [&] { return absent() < 0; })) {
            return;
        }
    }
}

template <class On, class Ready>
void Job::Wait::until_seen(const On &on, const Ready &ready) {
    if (spin(ready)) {
        return;
    }
    since_ns_ = 0;
    for (int64_t looked_ns = 0; !ready(); job_.nap(on())) {
        if (const int64_t now = now_ns(); now - looked_ns > kLookNs) {
            looked_ns = now;
            if (look_or(on(), ready)) {
                return;
            }
        }
    }
}

}  // namespace odc
