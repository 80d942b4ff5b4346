// SPDX-License-Identifier: Apache-2.0
// A child made by fork() has what other threads had locked, and not the threads that unlock it. So fork() waits until no other
// thread is in a section, and threads wait for fork() before they enter one: for 5 s each, lest they wait for each other. A
// child of a fork() that waited in vain does without what was locked then.
#pragma once

#include <atomic>
#include <mutex>

namespace odc {

// The libraries whose locks a section may take.
enum class Locks { Libodc, Hwloc, Libsodium, Libfabric, Nvml, Cuda, Pmix, Count };

// Throws ODC_ERROR_UNSUPPORTED if fork() waited in vain for a section of these locks when it made this process.
void check_fork(Locks locks);

// Sections may be nested, and fork() does not wait for those of its own thread. After check_fork().
class ForkSection {
public:
    explicit ForkSection(Locks locks);
    ~ForkSection();
    ForkSection(const ForkSection &) = delete;
    ForkSection &operator=(const ForkSection &) = delete;

private:
    const Locks locks_;
};

// Whether another thread is in a section of these locks.
bool others_in_section(Locks locks);

// Locks a mutex of the whole process, within a section. Mutexes of a context need none: a forked child does not use the context.
class ProcessLock {
public:
    explicit ProcessLock(std::mutex &mutex);

private:
    const ForkSection section_;
    const std::lock_guard<std::mutex> lock_;
};

// The process's one `Value`, made in a section at the first call: a function's static object alone would have a child wait for
// ever for the thread that makes it.
template <class Value>
const Value &made_once(
    Locks locks, Value (*make)() = [] { return Value(); }) {
    static constinit std::atomic<const Value *> made = nullptr;
    if (const Value *known = made.load(std::memory_order_acquire)) {
        return *known;
    }
    check_fork(locks);
    const ForkSection here(locks);
    static const Value &one = *new Value(make());
    made.store(&one, std::memory_order_release);
    return one;
}

}  // namespace odc
