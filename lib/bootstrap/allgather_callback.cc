// SPDX-License-Identifier: Apache-2.0
// The rendezvous through the caller's all-gather.
#include "bootstrap/allgather.h"

#include <algorithm>

namespace odc {
namespace {

class CallbackAllgather : public Allgather {
public:
    CallbackAllgather(odc_all_gather_fn function, void *arg, int size) : function_(function), arg_(arg), size_(size) {}

    std::vector<PeerInfo> all_gather(const PeerInfo &mine) override {
        std::vector<PeerInfo> infos(static_cast<size_t>(size_));
        const int result = function_(arg_, mine.data(), infos.data(), sizeof(PeerInfo));
        if (result != 0) {
            fail(ODC_ERROR_RENDEZVOUS, "odc_init's all_gather callback failed: it returned {}", result);
        }
        // A peer info differs from every other, so a callback that gathers something else, or nothing, is seen here.
        if (std::find(infos.begin(), infos.end(), mine) == infos.end()) {
            fail(ODC_ERROR_RENDEZVOUS,
                 "odc_init's all_gather callback returned 0, but `all` lacks this rank's {} bytes; it must hold every "
                 "rank's `mine` in rank order",
                 sizeof(PeerInfo));
        }
        return infos;
    }

    // The others' calls end only with this one.
    void leave(const PeerInfo &join_error) override { all_gather(join_error); }

private:
    odc_all_gather_fn function_;
    void *arg_;
    int size_;
};

}  // namespace

std::unique_ptr<Allgather> make_allgather_callback(odc_all_gather_fn all_gather, void *arg, int size) {
    return std::make_unique<CallbackAllgather>(all_gather, arg, size);
}

}  // namespace odc
