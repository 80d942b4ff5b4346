// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/peer_info.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include "base/layout_version.h"

namespace odc {

namespace {

struct JoinError {
    uint64_t magic;
    int32_t status;
    char why[sizeof(PeerInfo) - sizeof(uint64_t) - sizeof(int32_t)];
};
static_assert(sizeof(JoinError) == sizeof(PeerInfo));
static_assert(offsetof(JoinError, status) == 8 && offsetof(JoinError, why) == 12);
constexpr uint64_t kJoinErrorMagic = 0x6f6463207361642e;  // "odc sad."
static_assert(kJoinErrorMagic == 0x6f6463207361642e);     // pinned as in shared_layouts.cc

template <class Content>
PeerInfo peer_info_with(const Content &content) {
    static_assert(sizeof(Content) <= sizeof(PeerInfo));
    PeerInfo info{};
    std::memcpy(info.data(), &content, sizeof(content));
    return info;
}

template <class Content>
Content content_of(const PeerInfo &info) {
    Content content;
    std::memcpy(&content, info.data(), sizeof(content));
    return content;
}

// Checks the first words of a peer info of a later round.
template <class Content>
void check_round(const Content &content, Layout layout, int rank) {
    if (content.magic != layout_magic(layout)) {
        fail(ODC_ERROR_RENDEZVOUS,
             "odc_init: rank {} sent what belongs to another round of joining; give all ranks the same libodc", rank);
    }
    if (content.rank != rank) {
        fail(ODC_ERROR_RENDEZVOUS,
             "odc_init: entry {} of an all-gather is rank {}'s; config.all_gather must give the entries in rank order",
             rank, content.rank);
    }
}

}  // namespace

PeerInfo peer_info_of(const IdentityInfo &content) { return peer_info_with(content); }

PeerInfo peer_info_of(const NicInfo &content) { return peer_info_with(content); }
PeerInfo peer_info_of(const UnreachableInfo &content) { return peer_info_with(content); }
PeerInfo peer_info_of(const EndpointInfo &content) { return peer_info_with(content); }
PeerInfo peer_info_of(const ReadyInfo &content) { return peer_info_with(content); }

PeerInfo join_error_of(const Error &error) {
    JoinError join_error{kJoinErrorMagic, error.status(), {}};
    put(join_error.why, error.what());
    return peer_info_with(join_error);
}

void check_join_errors(const std::vector<PeerInfo> &infos) {
    std::string first;
    for (size_t rank = 0; rank < infos.size(); ++rank) {
        auto join_error = content_of<JoinError>(infos[rank]);
        if (join_error.magic != kJoinErrorMagic) {
            continue;
        }
        join_error.why[sizeof(join_error.why) - 1] = '\0';
        const std::string text = formatted("odc_init: rank {} cannot join: {}", rank, join_error.why);
        if (join_error.status != ODC_ERROR_RENDEZVOUS) {
            throw Error(ODC_ERROR_RENDEZVOUS, text);
        }
        if (first.empty()) {
            first = text;
        }
    }
    if (!first.empty()) {
        throw Error(ODC_ERROR_RENDEZVOUS, first);
    }
}

IdentityInfo read_identity(const PeerInfo &info, int rank) {
    auto content = content_of<IdentityInfo>(info);
    if (content.magic != layout_magic(Layout::Identity)) {
        fail(ODC_ERROR_RENDEZVOUS, "odc_init: rank {} {}", rank, other_version_text(content.magic));
    }
    content.identity[sizeof(content.identity) - 1] = content.host[sizeof(content.host) - 1] =
        content.group[sizeof(content.group) - 1] = content.gpu[sizeof(content.gpu) - 1] = '\0';
    return content;
}

NicInfo read_nics(const PeerInfo &info, int rank) {
    auto content = content_of<NicInfo>(info);
    check_round(content, Layout::Nics, rank);
    content.why_no_fabric[sizeof(content.why_no_fabric) - 1] = '\0';
    if (content.count > kMaxNics || !std::all_of(content.nics.begin(), content.nics.begin() + content.count,
                                                 [](const NicAddress &nic) { return well_formed(nic); })) {
        fail(ODC_ERROR_RENDEZVOUS,
             "odc_init: rank {} sent an invalid description of its NICs; give all ranks the same libodc", rank);
    }
    return content;
}

void UnreachableInfo::set_unreachable(int other) {
    ranks[static_cast<size_t>(other) / 8] |= static_cast<uint8_t>(1U << other % 8);
    ++count;
}

UnreachableInfo read_unreachable(const PeerInfo &info, int rank) {
    auto content = content_of<UnreachableInfo>(info);
    check_round(content, Layout::Unreachable, rank);
    return content;
}

EndpointInfo read_endpoint(const PeerInfo &info, int rank) {
    auto content = content_of<EndpointInfo>(info);
    check_round(content, Layout::Endpoints, rank);
    for (EndpointName &one : content.names) {
        one.bytes = std::min<uint32_t>(one.bytes, sizeof(one.name));
    }
    content.why_no_gpu_direct[sizeof(content.why_no_gpu_direct) - 1] = '\0';
    return content;
}

void check_ready(const PeerInfo &info, int rank) {
    const auto content = content_of<ReadyInfo>(info);
    check_round(content, Layout::Ready, rank);
}

}  // namespace odc
