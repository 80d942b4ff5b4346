// SPDX-License-Identifier: Apache-2.0
// Words of host memory that a GPU's streams write: the pages that they lie in are registered with the driver.
#pragma once

#include "cuda_device.h"

#include <cstdint>
#include <map>

namespace odc {

// Calls must not overlap.
class Pins {
public:
    explicit Pins(const CudaDevice &device) : device_(device) {}
    ~Pins();
    Pins(const Pins &) = delete;
    Pins &operator=(const Pins &) = delete;

    // The word's address for streams. Its page stays registered until `unpin` has been called as often.
    cuda::Address pin(const void *word);
    void unpin(const void *word);

private:
    struct Page {
        cuda::Address address;
        uint64_t users;
    };
    const CudaDevice &device_;
    std::map<uintptr_t, Page> pages_;
};

}  // namespace odc
