// SPDX-License-Identifier: Apache-2.0
// Meeting through the caller's all-gather.
#include "bootstrap/allgather.h"

#include <algorithm>

namespace odc {
namespace {

class CallbackExchange : public Exchange {
public:
    CallbackExchange(odc_all_gather_fn function, void *arg, int size) : function_(function), arg_(arg), size_(size) {}

    std::vector<Card> all_gather(const Card &mine) override {
        std::vector<Card> cards(static_cast<size_t>(size_));
        const int result = function_(arg_, mine.data(), cards.data(), sizeof(Card));
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

    // The others' calls end only with this one.
    void leave(const Card &regret) override { all_gather(regret); }

private:
    odc_all_gather_fn function_;
    void *arg_;
    int size_;
};

}  // namespace

std::unique_ptr<Exchange> exchange_callback(odc_all_gather_fn all_gather, void *arg, int size) {
    return std::make_unique<CallbackExchange>(all_gather, arg, size);
}

}  // namespace odc
