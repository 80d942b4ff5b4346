// SPDX-License-Identifier: Apache-2.0
// The live objects of one kind. An invalid or stale handle is not found, whatever it points to.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace fake_cuda {

template <class Object>
class Handles {
public:
    Object *add(std::shared_ptr<Object> object) {
        Object *handle = object.get();
        const std::unique_lock lock(mutex_);
        live_[handle] = std::move(object);
        return handle;
    }
    // NULL: not found.
    std::shared_ptr<Object> find(Object *handle) const {
        const std::shared_lock lock(mutex_);
        const auto found = live_.find(handle);
        return found == live_.end() ? nullptr : found->second;
    }
    std::shared_ptr<Object> take(Object *handle) {
        const std::unique_lock lock(mutex_);
        const auto found = live_.find(handle);
        if (found == live_.end()) {
            return nullptr;
        }
        auto object = std::move(found->second);
        live_.erase(found);
        return object;
    }
    size_t count() const {
        const std::shared_lock lock(mutex_);
        return live_.size();
    }

private:
    mutable std::shared_mutex mutex_;  // shared, since ordering readers would hide races from a race detector
    std::unordered_map<Object *, std::shared_ptr<Object>> live_;
};

// Never destroyed: threads of the library may outlive main().
template <class Object>
Handles<Object> &handles() {
    static auto *one = new Handles<Object>;
    return *one;
}

}  // namespace fake_cuda
