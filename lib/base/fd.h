// SPDX-License-Identifier: Apache-2.0
// A file descriptor that closes itself, also in children made by fork(): a child that outlives its rank must keep neither
// memory nor connections of the job. There an Fd is invalid, because its number may soon be that of another file. What another
// thread is just opening or closing when fork() is called may stay open in the child: a lock that fork() takes could deadlock
// with the locks that other libraries take there, and with a fork() in a signal handler.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace odc {

class Fd {
public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd), forks_(enlist(fd)) {}
    Fd(Fd &&other) noexcept : fd_(std::exchange(other.fd_, -1)), forks_(other.forks_) {}
    Fd &operator=(Fd &&other) noexcept {
        std::swap(fd_, other.fd_);
        std::swap(forks_, other.forks_);
        return *this;
    }
    ~Fd() {
        if (valid()) {
            delist(fd_);  // first: once it is closed, the number may be another file's
            close(fd_);
        }
    }
    int get() const { return forks_ == forks.load(std::memory_order_relaxed) ? fd_ : -1; }
    bool valid() const { return get() >= 0; }

    // In a child made by fork(), before fork() returns: closes what the parent's Fds hold and makes them invalid.
    static void leave_to_parent();

private:
    friend class ClosedInChildren;
    // Notes that children shall close it. Returns `forks`.
    static uint32_t enlist(int fd);
    static void delist(int fd);

    static inline constinit std::atomic<uint32_t> forks = 0;  // from the process that loaded the library to this one

    int fd_ = -1;
    uint32_t forks_ = 0;
};

// Somebody else's descriptor that children shall close, until this ends, which is before its owner closes it.
class ClosedInChildren {
public:
    ClosedInChildren() = default;
    explicit ClosedInChildren(int fd) : fd_(fd), forks_(Fd::enlist(fd)) {}
    ClosedInChildren(ClosedInChildren &&other) noexcept : fd_(std::exchange(other.fd_, -1)), forks_(other.forks_) {}
    ClosedInChildren &operator=(ClosedInChildren &&other) noexcept {
        std::swap(fd_, other.fd_);
        std::swap(forks_, other.forks_);
        return *this;
    }
    ~ClosedInChildren() {
        if (fd_ >= 0 && forks_ == Fd::forks.load(std::memory_order_relaxed)) {
            Fd::delist(fd_);
        }
    }

private:
    int fd_ = -1;
    uint32_t forks_ = 0;
};

}  // namespace odc
