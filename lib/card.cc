// SPDX-License-Identifier: Apache-2.0
#include "card.h"

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

}  // namespace

Card card_of(const IdentityCard &content) { return card_with(content); }

Card card_of(const EndpointCard &content) { return card_with(content); }

Card regret_of(const Error &error) {
    Regret regret{kRegretMagic, error.status(), {}};
    std::strncpy(regret.why, error.what(), sizeof(regret.why) - 1);
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
        content.group[sizeof(content.group) - 1] = '\0';
    return content;
}

EndpointCard read_endpoint(const Card &card, int rank) {
    const auto content = content_of<EndpointCard>(card);
    if (content.magic != kEndpointMagic) {
        fail_version(rank);
    }
    if (content.rank != rank) {
        fail(ODC_ERROR_RENDEZVOUS, "odc_init: the second card in place ", rank, " is rank ", content.rank,
             "'s; each exchange must give the cards in rank order");
    }
    return content;
}

}  // namespace odc
