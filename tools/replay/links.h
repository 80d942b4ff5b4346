// SPDX-License-Identifier: Apache-2.0
// The emulated links between hosts, one per host and direction, in memory that all ranks map. A link passes what it is handed in
// that order, each byte at the link's bandwidth; latency, loss and a protocol's own bytes are not emulated.
#pragma once

#include "replay/record.h"

#include <odc/odc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace odc_tool {

class Links {
public:
    // Collective; the ranks of `context` are on one machine, and it is between sync and publish.
    Links(odc_context *context, size_t hosts, size_t layers);
    ~Links();
    Links(const Links &) = delete;
    Links &operator=(const Links &) = delete;

    struct Interval {
        int64_t begin_ns;
        int64_t end_ns;
    };
    // Hands a link bytes that take so long, at `since_ns` or when it has passed all that it has.
    Interval pass(size_t host, LinkDirection direction, int64_t since_ns, int64_t duration_ns);

    // A layer's foreign slices, which a host reads once for all its ranks: the first rank that begins passes them, and then tells the
    // others when they have arrived. begin_arrival() returns whether this is the first; arrival() is empty before it has told.
    bool begin_arrival(size_t host, size_t layer);
    void arrive(size_t host, size_t layer, int64_t when_ns);
    std::optional<int64_t> arrival(size_t host, size_t layer) const;

    // Since when the host's link may pass a layer that is first gathered at `gather_ns`: a host that gathered in the last run reads
    // ahead, from its first gather in this run on, which follows its publish.
    int64_t readable_since(size_t host, int64_t gather_ns);

    // Nothing has passed or arrived: between runs, by one rank of the host.
    void reset(size_t host);
    // When the first rank began the run, after all resets.
    int64_t begin(int64_t now_ns);

private:
    struct alignas(64) Link {
        std::atomic<int64_t> free_ns;
        std::atomic<int64_t> origin_ns;  // of the run; the first link's counts
    };
    struct alignas(64) Gathers {
        std::atomic<int64_t> first_ns;     // in this run; 0: none yet
        std::atomic<int64_t> in_last_run;  // whether there was one
    };
    static_assert(std::atomic<int64_t>::is_always_lock_free);
    static_assert(sizeof(Link) == 64 && offsetof(Link, origin_ns) == 8);
    static_assert(sizeof(Gathers) == 64 && offsetof(Gathers, in_last_run) == 8);

    Link &link(size_t host, LinkDirection direction) const { return links_[2 * host + static_cast<size_t>(direction)]; }
    std::atomic<int64_t> &arrived_ns(size_t host, size_t layer) const { return arrived_ns_[host * layers_ + layer]; }

    size_t layers_;
    size_t bytes_;
    Link *links_ = nullptr;
    Gathers *gathers_ = nullptr;                  // by host
    std::atomic<int64_t> *arrived_ns_ = nullptr;  // or one of the marks
};

}  // namespace odc_tool
