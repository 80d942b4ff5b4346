// SPDX-License-Identifier: Apache-2.0
// Feeds random bytes to the decoder of control messages, for libFuzzer: an accepted message encodes to the bytes it was read
// from.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "transport/fabric/control_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    std::string_view stream(reinterpret_cast<const char *>(data), bytes);
    const std::string_view all = stream;
    try {
        while (const std::optional<odc::ControlMessage> message = odc::decode(&stream, 5)) {
            const std::string again = odc::encode(*message);
            if (all.substr(all.size() - stream.size() - again.size(), again.size()) != again) {
                std::abort();
            }
        }
    } catch (const odc::Error &error) {
        if (error.status() != ODC_ERROR_INTERNAL) {
            std::abort();
        }
    }
    return 0;
}
