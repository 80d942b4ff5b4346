// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/peer_info.h"

#include <algorithm>
#include <cstring>

namespace odc {

namespace {

struct Regret {
    uint64_t magic;
    int32_t status;
    char why[sizeof(Card) - sizeof(uint64_t) - sizeof(int32_t)];
};
static_assert(sizeof(Regret) == sizeof(Card));
constexpr uint64_t kRegretMagic = 0x6f6463207361642e;  // "odc sad."

template <class Content>
Card card_with(const Content &content) {
    static_assert(sizeof(Content) <= sizeof(Card));
    Card card{};
    std::memcpy(card.data(), &content, sizeof(content));
    return card;
}

template <class Content>
Content content_of(const Card &card) {
    Content content;
    std::memcpy(&content, card.data(), sizeof(content));
    return content;
}

[[noreturn]] void fail_version(int rank) {
    fail(ODC_ERROR_RENDEZVOUS, "odc_init: rank ", rank, " uses another version of libodc");
}

// Of a later round than the first.
void check_card(bool right_kind, int says_rank, int rank) {
    if (!right_kind) {
        fail_version(rank);
    }
    if (says_rank != rank) {
        fail(ODC_ERROR_RENDEZVOUS, "odc_init: a later card in place ", rank, " is rank ", says_rank,
             "'s; each exchange must give the cards in rank order");
    }
}

}  // namespace

Card card_of(const IdentityCard &content) { return card_with(content); }

Card card_of(const PortsCard &content) { return card_with(content); }
Card card_of(const SilenceCard &content) { return card_with(content); }
Card card_of(const EndpointCard &content) { return card_with(content); }
Card card_of(const ReadyCard &content) { return card_with(content); }

Card regret_of(const Error &error) {
    Regret regret{kRegretMagic, error.status(), {}};
    put(regret.why, error.what());
    return card_with(regret);
}

void check_regrets(const std::vector<Card> &cards) {
    std::string first;
    for (size_t rank = 0; rank < cards.size(); ++rank) {
        auto regret = content_of<Regret>(cards[rank]);
        if (regret.magic != kRegretMagic) {
            continue;
        }
        regret.why[sizeof(regret.why) - 1] = '\0';
        const std::string words = say("odc_init: rank ", rank, " cannot join: ", regret.why);
        if (regret.status != ODC_ERROR_RENDEZVOUS) {
            throw Error(ODC_ERROR_RENDEZVOUS, words);
        }
        if (first.empty()) {
            first = words;
        }
    }
    if (!first.empty()) {
        throw Error(ODC_ERROR_RENDEZVOUS, first);
    }
}

IdentityCard read_identity(const Card &card, int rank) {
    auto content = content_of<IdentityCard>(card);
    if (content.magic != kIdentityMagic) {
        fail_version(rank);
    }
    content.identity[sizeof(content.identity) - 1] = content.host[sizeof(content.host) - 1] =
        content.group[sizeof(content.group) - 1] = content.gpu[sizeof(content.gpu) - 1] = '\0';
    return content;
}

PortsCard read_ports(const Card &card, int rank) {
    auto content = content_of<PortsCard>(card);
    check_card(content.magic == kPortsMagic, content.rank, rank);
    content.why_no_fabric[sizeof(content.why_no_fabric) - 1] = '\0';
    if (content.count > kMaxPorts || !std::all_of(content.ports.begin(), content.ports.begin() + content.count,
                                                  [](const Port &port) { return well_formed(port); })) {
        fail(ODC_ERROR_RENDEZVOUS, "odc_init: rank ", rank, " describes NICs that cannot be");
    }
    return content;
}

void SilenceCard::set_silent(int other) {
    silent[static_cast<size_t>(other) / 8] |= static_cast<uint8_t>(1U << other % 8);
    ++count;
}

SilenceCard read_silence(const Card &card, int rank) {
    auto content = content_of<SilenceCard>(card);
    check_card(content.magic == kSilenceMagic, content.rank, rank);
    return content;
}

EndpointCard read_endpoint(const Card &card, int rank) {
    auto content = content_of<EndpointCard>(card);
    check_card(content.magic == kEndpointMagic, content.rank, rank);
    for (EndpointName &one : content.names) {
        one.bytes = std::min<uint32_t>(one.bytes, sizeof(one.name));
    }
    content.why_no_gpu_direct[sizeof(content.why_no_gpu_direct) - 1] = '\0';
    return content;
}

void check_ready(const Card &card, int rank) {
    const auto content = content_of<ReadyCard>(card);
    check_card(content.magic == kReadyMagic, content.rank, rank);
}

}  // namespace odc
