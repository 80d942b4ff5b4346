// SPDX-License-Identifier: Apache-2.0
#include "core/shard.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/element_type.h"
#include "base/error.h"
#include "transport/cuda/kernels/exact.h"
#include "transport/cuda/pinned_memory.h"
#include "transport/shm/stripe_lock.h"

namespace odc {

namespace {

constexpr uint64_t kLine = 64;
// A slice takes at most 17 bytes an element, with its stripes, and less than a MiB for alignment: below 2^63 bytes, so no
// sum of its parts overflows.
constexpr uint64_t kMostElements = uint64_t{1} << 58;

uint64_t to_line(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

template <class Numbers>
std::string list(const Numbers *numbers, uint64_t count) {
    std::string out;
    for (uint64_t i = 0; i < count; ++i) {
        if (i == 32) {
            out += formatted(" ... ({})", count);
            break;
        }
        out += formatted("{}{}", i == 0 ? "" : " ", numbers[i]);
    }
    return out;
}

void check_ranks(const Description &d, int rank, int size) {
    std::vector<char> seen(static_cast<size_t>(size));
    for (const int32_t one : d.ranks) {
        if (one < 0 || one >= size) {
            fail(ODC_ERROR_ARGUMENT, "shard \"{}\" lists rank {}, but the job has ranks 0..{}", d.name, one, size - 1);
        }
        if (seen[static_cast<size_t>(one)]++ != 0) {
            fail(ODC_ERROR_ARGUMENT, "shard \"{}\" lists rank {} twice", d.name, one);
        }
    }
    if (!d.ranks.empty() && seen[static_cast<size_t>(rank)] == 0) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\" is registered by rank {}, which is not in its ranks {}", d.name, rank,
             list(d.ranks.data(), d.ranks.size()));
    }
}

void check_slices(const Description &d) {
    uint64_t sum = 0;
    for (const uint64_t one : d.slices) {
        if (__builtin_add_overflow(sum, one, &sum)) {
            sum = ~uint64_t{0};
        }
    }
    if (!d.slices.empty() && sum != d.numel) {
        fail(ODC_ERROR_ARGUMENT, "the slices of shard \"{}\" add up to {} elements, its numel is {}", d.name, sum,
             d.numel);
    }
}

void check_summation(const Description &d) {
    if (d.summation != 0 && d.summation != ODC_SUM_EXACT) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\": sum {} is neither 0 nor ODC_SUM_EXACT", d.name, d.summation);
    }
    if (d.summation == ODC_SUM_EXACT && d.gradient_type == 0) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\": sum is ODC_SUM_EXACT, but it has no gradients to sum", d.name);
    }
    if (d.summation == ODC_SUM_EXACT && d.gradient_type == ODC_F64) {
        fail(
            ODC_ERROR_UNSUPPORTED,
            "shard \"{}\": f64 gradients cannot be summed exactly (ODC_SUM_EXACT), as their range is wider than that of "
            "64-bit integers; hand in f32, bf16 or f16",
            d.name);
    }
}

// The exponent in the first minibatch. `largest`: as in odc_shard_desc; its sign says whether an empty slice handed it on.
int32_t exponent_of(const Description &d, float largest) {
    constexpr int kOfHalf = 16;  // no f16 is larger
    constexpr int kDefault = 10;
    if (d.summation != ODC_SUM_EXACT && largest != 0) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\": largest is {}, but sum is not ODC_SUM_EXACT", d.name, largest);
    }
    if (d.summation != ODC_SUM_EXACT) {
        return 0;
    }
    if (largest == 0) {
        return d.gradient_type == ODC_F16 ? kOfHalf : kDefault;
    }
    int exponent = 0;
    const bool is_power = std::frexp(std::fabs(largest), &exponent) == 0.5F;
    exponent -= is_power ? 1 : 0;
    if (!std::isfinite(largest) || !is_exponent(exponent)) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\": largest is {}, which is not within 2^{} and 2^{}", d.name, largest,
             kLeastExponent, kMostExponent);
    }
    return exponent;
}

// Giving equal slices is the same as giving none.
void forget_equal_slices(Description &d) {
    const Slices equal(d.numel, std::max<uint64_t>(d.slices.size(), 1));
    for (uint64_t index = 0; index < d.slices.size(); ++index) {
        if (d.slices[index] != equal.numel(index)) {
            return;
        }
    }
    d.slices.clear();
}

}  // namespace

Description::Description(const odc_shard_desc &desc, int rank, int size)
    : numel(desc.numel), parameter_type(desc.parameter_type), gradient_type(desc.gradient_type),
      memory(desc.memory != 0 ? desc.memory : ODC_HOST_MEMORY), summation(desc.sum), first_exponent(0) {
    if (desc.name == nullptr || desc.name[0] == '\0') {
        fail(ODC_ERROR_ARGUMENT, "a shard needs a name, the same on all its ranks; desc.name is {}",
             desc.name == nullptr ? "NULL" : "empty");
    }
    name.assign(desc.name, strnlen(desc.name, kMostNameBytes + 1));
    if (name.size() > kMostNameBytes) {
        fail(ODC_ERROR_ARGUMENT, "the name of shard \"{}...\" is longer than {} bytes", name.substr(0, 40),
             kMostNameBytes);
    }
    if (parameter_type != 0 && element_size(parameter_type) == 0) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\": parameter_type {} is no odc_type", name, parameter_type);
    }
    if (gradient_type != 0 && (element_size(gradient_type) == 0 || gradient_type == ODC_BYTES)) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\": gradient_type {}{}", name, gradient_type,
             gradient_type == ODC_BYTES ? " (bytes) cannot be added" : " is no odc_type");
    }
    if (memory != ODC_HOST_MEMORY && memory != ODC_GPU_MEMORY) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\": memory {} is neither ODC_HOST_MEMORY nor ODC_GPU_MEMORY", name, memory);
    }
    if (desc.reserved != 0) {
        fail(ODC_ERROR_UNSUPPORTED, "shard \"{}\": reserved is {}, must be 0", name, desc.reserved);
    }
    if (parameter_type == 0 && gradient_type == 0) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\" has neither parameters nor gradients", name);
    }
    check_summation(*this);
    first_exponent = exponent_of(*this, desc.largest);
    if (desc.ranks == nullptr && desc.rank_count != 0 && desc.rank_count != static_cast<uint64_t>(size)) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\": ranks is NULL (all {} ranks), but rank_count is {}", name, size,
             desc.rank_count);
    }
    if (desc.ranks != nullptr && (desc.rank_count == 0 || desc.rank_count > static_cast<uint64_t>(size))) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\": rank_count is {}, must be in 1..{}", name, desc.rank_count, size);
    }
    if (desc.ranks != nullptr) {
        ranks.assign(desc.ranks, desc.ranks + desc.rank_count);
        // Listing all in order is the same as listing none.
        std::vector<int32_t> all(static_cast<size_t>(size));
        std::iota(all.begin(), all.end(), 0);
        if (ranks == all) {
            ranks.clear();
        }
    }
    if (desc.slices != nullptr) {
        slices.assign(desc.slices, desc.slices + (ranks.empty() ? static_cast<uint64_t>(size) : ranks.size()));
    }
    check_ranks(*this, rank, size);
    check_slices(*this);
    forget_equal_slices(*this);
    if (numel > kMostElements) {
        fail(ODC_ERROR_ARGUMENT, "shard \"{}\" of {} elements is larger than any memory", name, numel);
    }
}

Shard::Shard(Description description, Engine &engine, int rank, int size)
    : exact{ExponentVote::of(description.first_exponent)}, description_(std::move(description)), engine_(engine),
      slices_(description_.slices.empty()
                  ? Slices(description_.numel,
                           description_.ranks.empty() ? static_cast<uint64_t>(size) : description_.ranks.size())
                  : Slices(description_.slices)),
      links_(std::make_unique<Link[]>(slices_.count())) {
    while (owner(own_index_) != rank) {
        ++own_index_;
    }
}

namespace {

uint64_t to_page(uint64_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

// Bytes of a slice's parts.
struct Parts {
    Parts(const Description &d, uint64_t numel)
        : parameters(numel * element_size(d.parameter_type)), sums(numel * sum_size(d.gradient_type, d.summation)),
          stripes(stripe_count(sums) * sizeof(Stripe)) {}
    uint64_t in_host() const { return to_line(stripes) + to_line(parameters) + to_line(sums); }
    uint64_t parameters;
    uint64_t sums;
    uint64_t stripes;
};

}  // namespace

uint64_t Shard::slice_bytes() const {
    const Parts parts(description_, own_numel());
    return parts.parameters + parts.sums;
}

uint64_t Shard::record_bytes() const { return shard_record_bytes(description_); }

uint64_t Shard::host_bytes() const {
    const uint64_t bytes = Parts(description_, own_numel()).in_host();
    if (!on_device()) {
        return bytes + held_bytes();
    }
    return shadowed_ && bytes > 0 ? to_page(bytes) + page_bytes() : 0;  // it begins somewhere in a page
}

uint64_t Shard::device_bytes() const {
    const Parts parts(description_, own_numel());
    return on_device() ? to_line(parts.parameters) + to_line(device_sum_bytes()) : 0;
}

uint64_t Shard::device_sum_bytes() const {
    const Parts parts(description_, own_numel());
    return parts.sums + (is_exact() && own_numel() > 0 ? exact_totals_bytes(own_numel()) : 0);
}

void Shard::set_record(ShardRecord &record, uint64_t offset, uint64_t minibatch) {
    record_offset_ = offset;
    registered = minibatch;
    write_shard_record(record, description_, offset, minibatch, own_numel());
    link(own_index_, record, {});
}

void Shard::set_memory(const Allocation &host, const DeviceAllocation &device) {
    const Parts parts(description_, own_numel());
    ShardRecord &mine = record();
    host_region_ = host;
    mine.segment = host.segment;
    mine.stripes = host.offset - host.segment.offset;
    if (on_device()) {
        mine.stripes = to_page(mine.stripes);
    }
    mine.parameters = mine.stripes + to_line(parts.stripes);
    mine.accumulator = mine.parameters + to_line(parts.parameters);
    mine.cache = mine.accumulator + to_line(parts.sums);
    mine.cache_entries = entries_.count;
    mine.partial_sums = mine.cache + entries_.bytes;
    mine.partial_sum_count = partial_sums_.count;
    mine.region = device.region;
    mine.gpu_parameters = device.offset;
    mine.gpu_accumulator = device.offset + to_line(parts.parameters);
    mine.address = 0;
    mine.key = 0;
    std::byte *const base = host.start != nullptr ? host.start - (host.offset - host.segment.offset) : nullptr;
    link(own_index_, mine, bases_of(mine, base, device.start));
}

void Shard::link(uint64_t index, ShardRecord &record, const Bases &bases) {
    links_[index].bases = bases;
    links_[index].record.store(&record, std::memory_order_release);
}

RemoteSlice Shard::slice(uint64_t index) const {
    const ShardRecord &record = *linked(index);
    std::byte *const base = links_[index].bases.device;
    if (base == nullptr || record.slice_numel == 0) {
        return host_slice(index);
    }
    RemoteSlice slice = host_slice(index);
    slice.parameters = record.parameter_type != 0 ? base + record.gpu_parameters : nullptr;
    slice.accumulator = record.gradient_type != 0 ? base + record.gpu_accumulator : nullptr;
    slice.stripes = nullptr;
    slice.memory = MemoryKind::Gpu;
    return slice;
}

RemoteSlice Shard::host_slice(uint64_t index) const {
    const ShardRecord &record = *linked(index);
    std::byte *const base = links_[index].bases.host;
    const bool here = record.slice_numel > 0 && base != nullptr;
    const bool parameters = here && record.parameter_type != 0;
    const bool sums = here && record.gradient_type != 0;
    RemoteSlice slice{parameters ? base + record.parameters : nullptr,
                      sums ? base + record.accumulator : nullptr,
                      sums ? reinterpret_cast<Stripe *>(base + record.stripes) : nullptr,
                      record.slice_numel,
                      record.parameter_type,
                      record.gradient_type,
                      &record.published,
                      record.record,
                      record.address,
                      record.key};
    slice.summation = record.summation;
    slice.clamped = &linked(index)->clamped;
    return slice;
}

Shard::Bases Shard::bases_of(const ShardRecord &record, std::byte *host, std::byte *device) const {
    Bases bases{host, device, record.region, nullptr, 0};
    if (on_device() && host != nullptr) {
        bases.shadow = host + record.stripes;
        bases.shadow_bytes = to_page(Parts(description_, record.slice_numel).in_host());
    }
    return bases;
}

std::string Shard::difference(const ShardRecord &other, int other_rank, int rank) const {
    const auto differs = [&](const char *what, const auto &mine, const auto &theirs) {
        return formatted("rank {} and rank {} describe shard \"{}\" differently: rank {} says {} {}, rank {} says {}",
                         rank, other_rank, name(), rank, what, mine, other_rank, theirs);
    };
    const Description &d = description_;
    if (!stands(other)) {
        return formatted("rank {} registered shard \"{}\" in minibatch {}, rank {} in minibatch {}", rank, name(),
                         registered, other_rank, other.minibatch.load());
    }
    if (other.numel != d.numel) {
        return differs("numel", d.numel, other.numel);
    }
    if (other.memory != d.memory) {
        const auto text_of = [](int32_t memory) { return memory == ODC_GPU_MEMORY ? "GPU" : "host"; };
        return differs("memory", text_of(d.memory), text_of(other.memory));
    }
    if (other.parameter_type != d.parameter_type) {
        return differs("parameter_type", element_name(d.parameter_type), element_name(other.parameter_type));
    }
    if (other.gradient_type != d.gradient_type) {
        return differs("gradient_type", element_name(d.gradient_type), element_name(other.gradient_type));
    }
    if (other.summation != d.summation) {
        const auto text_of = [](int32_t summation) { return summation == ODC_SUM_EXACT ? "exact" : "default"; };
        return differs("sum", text_of(d.summation), text_of(other.summation));
    }
    if (other.first_exponent != d.first_exponent) {
        const auto text_of = [](int32_t exponent) { return formatted("2^{}", exponent); };
        return differs("largest", text_of(d.first_exponent), text_of(other.first_exponent));
    }
    if (other.rank_count != d.ranks.size() || !std::equal(d.ranks.begin(), d.ranks.end(), other.ranks())) {
        const auto text_of = [](const int32_t *ranks, uint64_t count) {
            return count == 0 ? "all" : list(ranks, count);
        };
        return differs("ranks", text_of(d.ranks.data(), d.ranks.size()), text_of(other.ranks(), other.rank_count));
    }
    if (other.slice_count != d.slices.size() || !std::equal(d.slices.begin(), d.slices.end(), other.slices())) {
        const auto text_of = [](const uint64_t *sizes, uint64_t count) {
            return count == 0 ? "equal" : list(sizes, count);
        };
        return differs("slices", text_of(d.slices.data(), d.slices.size()), text_of(other.slices(), other.slice_count));
    }
    return "";
}

}  // namespace odc
