// SPDX-License-Identifier: Apache-2.0
// Tables of libfabric's operations, some of which are replaced.
#pragma once

#include <map>
#include <memory>
#include <mutex>

namespace fake_fabric {

template <class Operations>
struct Changed : Operations {
    Operations *original;
};

// A table before `change`.
template <class Operations>
Operations *original(Operations *operations) {
    return static_cast<Changed<Operations> *>(operations)->original;
}

// `how` modifies the copy that `operations` points to from now on; objects with the same table share it.
template <class Operations, class How>
void change(Operations *&operations, How how) {
    static std::mutex mutex;
    static auto &all = *new std::map<Operations *, std::unique_ptr<Changed<Operations>>>;
    const std::lock_guard lock(mutex);
    std::unique_ptr<Changed<Operations>> &copy = all[operations];
    if (!copy) {
        copy = std::make_unique<Changed<Operations>>();
        static_cast<Operations &>(*copy) = *operations;
        copy->original = operations;
        how(*copy);
    }
    operations = copy.get();
}

}  // namespace fake_fabric
