// SPDX-License-Identifier: Apache-2.0
// Tables of libfabric's operations of which some are replaced.
#pragma once

#include <map>
#include <memory>
#include <mutex>

namespace fake_fabric {

template <class Operations>
struct Changed : Operations {
    Operations *original;
};

// What a table was before `change`.
template <class Operations>
Operations *original(Operations *operations) {
    return static_cast<Changed<Operations> *>(operations)->original;
}

// `how`: writes into the copy that `operations` leads to from now on; the same for all that have one table.
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
