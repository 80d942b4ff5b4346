// SPDX-License-Identifier: Apache-2.0
// The memory is rank 0's, without a name: the others open it by that rank's process.
#include "replay/links.h"

#include "cli/exit.h"
#include "rank/context.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace odc_tool {
namespace {

int make_memory(size_t bytes) {
    const int fd = memfd_create("odc replay links", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
        throw Exit{1, fmt::format("no memory for the emulated links: {}", strerror(errno))};
    }
    return fd;
}

int open_memory(int pid, int fd) {
    const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
    const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (opened < 0) {
        throw Exit{1, fmt::format("the emulated links of rank 0, {}, cannot be opened: {}", path, strerror(errno))};
    }
    return opened;
}

// Before a time of arrival is known.
constexpr int64_t kNotPassed = 0;
constexpr int64_t kPassing = -1;

}  // namespace

Links::Links(odc_context *context, size_t hosts, size_t layers)
    : layers_(layers), bytes_(hosts * (2 * sizeof(Link) + sizeof(Gathers) + layers * sizeof(std::atomic<int64_t>))) {
    std::array<double, 2> place{};
    if (odc_rank(context) == 0) {
        place = {double(getpid()), double(make_memory(bytes_))};
    }
    check(odc_all_reduce(context, place.data(), place.size(), ODC_SUM));
    const int fd =
        odc_rank(context) == 0 ? static_cast<int>(place[1]) : open_memory(static_cast<int>(place[0]), int(place[1]));
    void *memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        throw Exit{1, fmt::format("the emulated links cannot be mapped: {}", strerror(errno))};
    }
    links_ = static_cast<Link *>(memory);
    gathers_ = reinterpret_cast<Gathers *>(links_ + 2 * hosts);
    arrived_ns_ = reinterpret_cast<std::atomic<int64_t> *>(gathers_ + hosts);
    check(odc_all_reduce(context, place.data(), place.size(), ODC_SUM));  // all have opened it
    close(fd);
}

Links::~Links() { munmap(links_, bytes_); }

Links::Interval Links::pass(size_t host, LinkDirection direction, int64_t since_ns, int64_t duration_ns) {
    std::atomic<int64_t> &free_ns = link(host, direction).free_ns;
    int64_t seen = free_ns.load(std::memory_order_relaxed);
    int64_t begin = 0;
    do {
        begin = std::max(seen, since_ns);
    } while (!free_ns.compare_exchange_weak(seen, begin + duration_ns, std::memory_order_relaxed));
    return {begin, begin + duration_ns};
}

int64_t Links::readable_since(size_t host, int64_t gather_ns) {
    int64_t first = 0;
    if (gathers_[host].first_ns.compare_exchange_strong(first, gather_ns, std::memory_order_relaxed)) {
        first = gather_ns;
    }
    return gathers_[host].in_last_run != 0 ? first : gather_ns;
}

bool Links::begin_arrival(size_t host, size_t layer) {
    int64_t seen = kNotPassed;
    return arrived_ns(host, layer).compare_exchange_strong(seen, kPassing, std::memory_order_relaxed);
}

void Links::arrive(size_t host, size_t layer, int64_t when_ns) {
    arrived_ns(host, layer).store(when_ns, std::memory_order_relaxed);
}

std::optional<int64_t> Links::arrival(size_t host, size_t layer) const {
    const int64_t when_ns = arrived_ns(host, layer).load(std::memory_order_relaxed);
    return when_ns > 0 ? std::optional(when_ns) : std::nullopt;
}

int64_t Links::begin(int64_t now_ns) {
    int64_t first = 0;
    return links_->origin_ns.compare_exchange_strong(first, now_ns) ? now_ns : first;
}

void Links::reset(size_t host) {
    for (const LinkDirection direction : {LinkDirection::In, LinkDirection::Out}) {
        link(host, direction).free_ns = 0;
        link(host, direction).origin_ns = 0;
    }
    gathers_[host].in_last_run = gathers_[host].first_ns.exchange(0) != 0 ? 1 : 0;
    for (size_t layer = 0; layer < layers_; ++layer) {
        arrived_ns(host, layer) = kNotPassed;
    }
}

}  // namespace odc_tool
