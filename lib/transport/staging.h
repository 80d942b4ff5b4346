// SPDX-License-Identifier: Apache-2.0
// A bounded ring of buffers between the network and the memory that it may not, or should not, reach itself. Mapped
// when it is first used.
#pragma once

#include "transport/fabric_endpoint.h"

#include <cstddef>
#include <vector>

namespace odc {

class Staging {
public:
    // `slots` of `bytes` each; exposed, where the endpoint wants that, for `access`.
    Staging(FabricEndpoint &endpoint, size_t slots, size_t bytes, Access access)
        : endpoint_(endpoint), slots_(slots), bytes_(bytes), access_(access) {}
    ~Staging();
    Staging(const Staging &) = delete;
    Staging &operator=(const Staging &) = delete;

    size_t slot_bytes() const { return bytes_; }
    // NULL: all are taken.
    std::byte *take();
    void give_back(std::byte *slot) { free_.push_back(slot); }
    const Exposed &exposed() const { return exposed_; }
    // Of a slot, as peers name it.
    uint64_t address(const std::byte *slot) const { return exposed_.address + static_cast<uint64_t>(slot - memory_); }

private:
    void map();

    FabricEndpoint &endpoint_;
    size_t slots_;
    size_t bytes_;
    Access access_;
    std::byte *memory_ = nullptr;
    Exposed exposed_;
    std::vector<std::byte *> free_;
};

}  // namespace odc
