// SPDX-License-Identifier: Apache-2.0
#include "transport/fetches.h"

#include <algorithm>

#include "element.h"

namespace odc {

using cuda::driver;

namespace {

constexpr size_t kKept = 2;  // slots for who waits: one is filled while the other is emptied

}  // namespace

Fetches::Fetches(const CudaDevice &device, uint64_t bytes) : device_(device), slots_(device, bytes, kKept + 1) {}

bool Fetches::ask(Fetch &fetch, size_t spare) {
    const size_t size = element_size(fetch.from.parameter_type);
    bool any = false;
    while (fetch.asked < fetch.from.numel) {
        const std::optional<size_t> slot = slots_.take(spare);
        if (!slot) {
            break;
        }
        const uint64_t count = std::min<uint64_t>(Slots::kBytes / size, fetch.from.numel - fetch.asked);
        fetch.pieces.push_back(
            {*slot, count * size,
             fetch.path->start_get(part_of(fetch.from, fetch.asked, count), slots_.start(*slot), fetch.filled)});
        fetch.asked += count;
        any = true;
    }
    return any;
}

void Fetches::ask_ahead(Fetch &fetch) { ask(fetch, kKept); }

bool Fetches::advance(Fetch &fetch, cuda::Stream stream) {
    bool any = ask(fetch, 0);
    while (!fetch.pieces.empty() && fetch.pieces.front().transfer->done()) {
        const Fetch::Piece &piece = fetch.pieces.front();
        device_.check(driver().cuMemcpyAsync(reinterpret_cast<cuda::Address>(fetch.to + fetch.enqueued),
                                             slots_.address(piece.slot), piece.bytes, stream),
                      "cuMemcpyAsync");
        slots_.give_back_behind(piece.slot, stream);
        fetch.enqueued += piece.bytes;
        fetch.pieces.pop_front();
        any = true;
    }
    return any;
}

void Fetches::drop(Fetch &fetch) {
    for (const Fetch::Piece &piece : fetch.pieces) {
        slots_.give_back(piece.slot);
    }
    fetch.pieces.clear();
}

}  // namespace odc
