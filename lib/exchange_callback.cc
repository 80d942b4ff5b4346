// SPDX-License-Identifier: Apache-2.0
// Meeting through the caller's all-gather.
#include "exchange.h"

#include <algorithm>

namespace odc {

std::vector<Card> exchange_callback(odc_all_gather_fn all_gather, void *arg, int size, const Card &mine) {
    std::vector<Card> cards(static_cast<size_t>(size));
    const int result = all_gather(arg, mine.data(), cards.data(), sizeof(Card));
    if (result != 0) {
        fail(ODC_ERROR_RENDEZVOUS, "odc_init's all_gather callback failed: it returned ", result);
    }
    // A card differs from every other, so a callback that gathers something else, or nothing, is seen here.
    if (std::find(cards.begin(), cards.end(), mine) == cards.end()) {
        fail(ODC_ERROR_RENDEZVOUS, "odc_init's all_gather callback returned 0, but `all` lacks this rank's ",
             sizeof(Card), " bytes; it must hold every rank's `mine` in rank order");
    }
    return cards;
}

}  // namespace odc
