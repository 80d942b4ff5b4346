// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace odc {

// Detects a forked child by a page that the kernel zeroes there; where it does not (gVisor), by the process id.
class ForkDetector {
public:
    ForkDetector() {
        void *page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) {
            fail_errno("mmap of a page");
        }
        page_ = static_cast<unsigned char *>(page);
        if (madvise(page, kBytes, MADV_WIPEONFORK) != 0) {
            pid_ = getpid();
        }
        *page_ = 1;
    }
    ~ForkDetector() { munmap(page_, kBytes); }
    ForkDetector(const ForkDetector &) = delete;
    ForkDetector &operator=(const ForkDetector &) = delete;
    bool in_child() const { return *page_ == 0 || (pid_ != 0 && pid_ != getpid()); }

private:
    static constexpr size_t kBytes = 4096;
    unsigned char *page_;
    pid_t pid_ = 0;  // 0: the page is enough
};

}  // namespace odc
