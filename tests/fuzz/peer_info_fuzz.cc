// SPDX-License-Identifier: Apache-2.0
// Feeds random bytes to the decoders of peer infos, for libFuzzer: each is accepted, or refused with an error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/layout_version.h"
#include "bootstrap/peer_info.h"

namespace {

template <class Read>
void check_read(Read read) {
    try {
        read();
    } catch (const odc::Error &error) {
        if (error.status() != ODC_ERROR_RENDEZVOUS) {
            std::abort();
        }
    }
}

void check_text(const char *text, size_t bytes) {
    if (strnlen(text, bytes) == bytes) {
        std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    odc::PeerInfo info{};
    std::memcpy(info.data(), data, std::min(bytes, info.size()));
    // Random bytes would not match the eight bytes of the layout version.
    static const uint64_t kMagic[] = {odc::layout_magic(odc::Layout::Identity), odc::layout_magic(odc::Layout::Nics),
                                      odc::layout_magic(odc::Layout::Unreachable),
                                      odc::layout_magic(odc::Layout::Endpoints)};
    const uint64_t magic = kMagic[bytes > 8 ? data[8] % 4 : 0];
    if (bytes > 9 && data[9] % 2 == 0) {
        std::memcpy(info.data(), &magic, sizeof(magic));
    }
    check_read([&] { odc::check_join_errors({info, info}); });
    check_read([&] {
        const odc::IdentityInfo one = odc::read_identity(info, 1);
        check_text(one.identity, sizeof(one.identity));
        check_text(one.host, sizeof(one.host));
        check_text(one.group, sizeof(one.group));
    });
    check_read([&] {
        const odc::NicInfo one = odc::read_nics(info, 1);
        check_text(one.why_no_fabric, sizeof(one.why_no_fabric));
        for (uint32_t i = 0; i < one.count; ++i) {
            check_text(one.nics.at(i).name, sizeof(one.nics[i].name));
            check_text(odc::provider_of(one.nics[i]).name, sizeof(one.nics[i].name));
        }
    });
    check_read([&] {
        const odc::UnreachableInfo one = odc::read_unreachable(info, 1);
        static_cast<void>(one.is_unreachable(odc::UnreachableInfo::kRanks - 1));
    });
    check_read([&] {
        for (const odc::EndpointName &one : odc::read_endpoint(info, 1).names) {
            if (one.bytes > one.name.size()) {
                std::abort();
            }
        }
    });
    return 0;
}
