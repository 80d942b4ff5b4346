// SPDX-License-Identifier: Apache-2.0
// The network between the hosts of `odc replay`, as a rank's device meets it: how long it waits for what has crossed. Bytes
// really move, by libodc; on one machine they come sooner than over a real network, so who moved them waits until the emulated
// links have passed them, too.
#pragma once

#include "replay/hosts.h"
#include "replay/links.h"
#include "replay/record.h"

#include <odc/odc.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace odc_tool {

// The network of ranks that are all on one host: nothing crosses. Times are those of now_ns; one that is over needs no waiting.
class Network {
public:
    Network() = default;
    virtual ~Network() = default;
    Network(const Network &) = delete;
    Network &operator=(const Network &) = delete;

    // reset() is called before all ranks meet at the beginning of a run, begin() after it; begin() returns when the run began.
    virtual void reset() {}
    int64_t begin(int32_t run, int64_t now_ns, Detail detail);
    // Returns when the bytes of this rank's gather of a layer, or addition to it, have crossed. The call began at `since_ns`.
    virtual int64_t gathered(size_t layer, int64_t since_ns);
    virtual int64_t added(size_t layer, int64_t since_ns);
    // Returns when all that any rank has moved in the run has crossed. Collective, after sync.
    virtual int64_t ended();

    // Whether the library sends gradients by itself, as the host's sums, once the host's ranks have finished with a layer.
    virtual bool sums() const { return false; }
    const Crossed &crossed() const { return crossed_; }  // of the run, by this rank
    std::vector<LinkSpan> take_spans() { return std::exchange(spans_, {}); }

protected:
    virtual int64_t origin(int64_t now_ns) { return now_ns; }
    void span(size_t host, LinkDirection direction, const Links::Interval &passing);

    Crossed crossed_;

private:
    std::vector<LinkSpan> spans_;
    Detail detail_ = Detail::Times;
    int32_t run_ = 0;
    int64_t origin_ns_ = 0;
};

// Ring collectives: their bytes follow from the formula. All ranks meet before each, and all links carry the same at the same
// time, so each rank has its own clock of them.
class RingNetwork : public Network {
public:
    RingNetwork(const EmulatedHosts &hosts, size_t rank, double ns_per_byte)
        : hosts_(hosts), rank_(rank), ns_per_byte_(ns_per_byte) {}

    void reset() override { free_ns_ = 0; }
    int64_t gathered(size_t layer, int64_t since_ns) override;
    int64_t added(size_t layer, int64_t since_ns) override;

private:
    int64_t pass(uint64_t bytes, int64_t since_ns);

    const EmulatedHosts &hosts_;
    size_t rank_;
    double ns_per_byte_;
    int64_t free_ns_ = 0;
};

// What libodc moves between its hosts, by its statistics; what a node cache reads passes the links by the formula, as statistics do
// not tell its layer.
class OdcNetwork : public Network {
public:
    // `reads` and `adds`, which may be one, have their ranks on the emulated hosts: parameters are read in the one, gradients added
    // in the other. `barrier` has no shards.
    OdcNetwork(const EmulatedHosts &hosts, Links &links, odc_context *reads, odc_context *adds, odc_context *barrier,
               Crossing crossing, double ns_per_byte);

    void reset() override;
    int64_t gathered(size_t layer, int64_t since_ns) override;
    int64_t added(size_t layer, int64_t since_ns) override;
    int64_t ended() override;
    bool sums() const override { return crossing_ == Crossing::CacheAndSums; }

private:
    int64_t origin(int64_t now_ns) override { return links_.begin(now_ns); }
    // What has crossed since the last call, but for what is read with a node cache.
    Crossed count();
    int64_t pass(const Crossed &crossed, int64_t since_ns);
    int64_t await_arrival(size_t layer) const;
    Crossed read_again();

    const EmulatedHosts &hosts_;
    Links &links_;
    odc_context *reads_;
    odc_context *adds_;
    odc_context *barrier_;
    Crossing crossing_;
    size_t rank_;
    size_t host_;
    double ns_per_byte_;
    Crossed counted_;      // since odc_init, also for other arms
    uint64_t handed_ = 0;  // to the links, as what the node cache has read in the run
    int64_t sent_ns_ = 0;  // when the last gradient that the library sent by itself has crossed
};

}  // namespace odc_tool
