// SPDX-License-Identifier: Apache-2.0
#include "transport/staging.h"

#include <sys/mman.h>

#include "status.h"

namespace odc {

void Staging::map() {
    void *memory = mmap(nullptr, slots_ * bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fail_errno(say("mmap of ", slots_ * bytes_, " bytes for staging"));
    }
    memory_ = static_cast<std::byte *>(memory);
    madvise(memory, slots_ * bytes_, MADV_DONTFORK);  // or a fork could part the pages from those that are pinned
    madvise(memory, slots_ * bytes_, MADV_HUGEPAGE);  // it is soon full, and used again and again
    if (access_ == Access::Remote || endpoint_.needs_local()) {
        exposed_ = endpoint_.expose(memory_, slots_ * bytes_, access_);
    }
    for (size_t i = slots_; i > 0; --i) {
        free_.push_back(memory_ + (i - 1) * bytes_);
    }
}

Staging::~Staging() {
    exposed_ = {};
    if (memory_ != nullptr) {
        munmap(memory_, slots_ * bytes_);
    }
}

std::byte *Staging::take() {
    if (memory_ == nullptr) {
        map();
    }
    if (free_.empty()) {
        return nullptr;
    }
    std::byte *slot = free_.back();
    free_.pop_back();
    return slot;
}

}  // namespace odc
