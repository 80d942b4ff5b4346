// SPDX-License-Identifier: Apache-2.0
// An owned file descriptor. Children made by fork() close it, too, so that a child that outlives its rank holds no memory and
// no connection of the job; in the child the Fd is invalid, because the number may be reused. A descriptor that another thread
// opens or closes during the fork() may stay open in the child: preventing that takes a lock in the atfork handlers, which
// could deadlock with other libraries' handlers and with a fork() in a signal handler.
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
            delist(fd_);  // before close(): afterwards the number may be another file's
            close(fd_);
        }
    }
    int get() const { return forks_ == forks.load(std::memory_order_relaxed) ? fd_ : -1; }
    bool valid() const { return get() >= 0; }

    // The child's atfork handler: closes the enlisted descriptors and invalidates all Fds.
    static void close_in_child();

private:
    friend class ClosedInChildren;
    // Marks a descriptor for closing in children. Returns `forks`.
    static uint32_t enlist(int fd);
    static void delist(int fd);

    static inline constinit std::atomic<uint32_t> forks =
        0;  // between the process that loaded the library and this one

    int fd_ = -1;
    uint32_t forks_ = 0;
};

// Marks another owner's descriptor for closing in children. Must be destroyed before the owner closes the descriptor.
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
