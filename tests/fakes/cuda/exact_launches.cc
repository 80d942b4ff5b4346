// SPDX-License-Identifier: Apache-2.0
#include "exact_launches.h"

#include <shared_mutex>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "transport/cuda/kernels/exact.h"

namespace fake_cuda {

namespace {

using odc::ExactAddend;
using odc::ExactAddends;
using odc::ExactTotals;
using odc::ExactWave;

struct ExactLaunch {
    std::string kernel;
    Device device;
    unsigned grid_x;
    unsigned block_x;
    size_t from_bytes;  // of an element

    void run(const void *parameter) const {
        void *parameters[] = {const_cast<void *>(parameter)};
        run_kernel(kernel.c_str(), grid_x, block_x, parameters);
    }
};

ExactLaunch exact_launch_of(const FunctionHandle &function, unsigned grid_x, unsigned block_x) {
    const size_t from = function.name.ends_with("_sums") ? 8 : function.name.ends_with("_f32") ? 4 : 2;
    return {function.name, function.context.device, grid_x, block_x, from};
}

// Where this library's threads access a range that lies in one mapping; none: it does not.
Piece in_one(const void *address, size_t bytes, Device device, Access need) {
    const auto found = pieces(reinterpret_cast<Address>(address), bytes, device, need, Pageable::Refused);
    return found.size() == 1 ? found[0] : Piece{nullptr, 0, nullptr};
}

// From a sum to the bits behind the totals that an addend may set.
Piece sums_and_totals(const void *sum, const ExactTotals *totals, Device device) {
    const auto begin = reinterpret_cast<Address>(sum);
    const auto end = reinterpret_cast<Address>(totals);
    if (begin % sizeof(long long) != 0 || end < begin) {
        return {nullptr, 0, nullptr};
    }
    return in_one(sum, end - begin + odc::exact_totals_bytes((end - begin) / sizeof(long long)), device,
                  Access::ReadWrite);
}

// The same addend at addresses of this library's; `numel` is 0 if it is lost.
bool translate(const ExactLaunch &launch, ExactAddend &addend) {
    const auto distance = reinterpret_cast<Address>(addend.totals) - reinterpret_cast<Address>(addend.to);
    const Piece from = in_one(addend.from, addend.numel * launch.from_bytes, launch.device, Access::Read);
    const Piece to = sums_and_totals(addend.to, addend.totals, launch.device);
    if (from.at == nullptr || to.at == nullptr || addend.numel * sizeof(long long) > distance) {
        return false;
    }
    const bool lost = to.physical != nullptr && to.device() != launch.device && wire() == Wire::Lossy;
    addend.from = from.at;
    addend.to = to.at;
    addend.totals = reinterpret_cast<ExactTotals *>(to.at + distance);
    addend.numel = lost ? 0 : addend.numel;
    return true;
}

Result run_exact_part(const ExactLaunch &launch, ExactAddends additions) {
    const std::shared_lock lock(memories().mutex);
    ExactAddends translated = additions;
    translated.count = translated.first = 0;
    for (unsigned n = 0; n < additions.count; ++n) {
        ExactAddend one = additions.addends[(additions.first + n) % additions.count];
        if (one.numel == 0) {
            continue;
        }
        if (!translate(launch, one)) {
            return Result::IllegalAddress;
        }
        translated.addends[translated.count++] = one;
    }
    launch.run(&translated);
    return Result::Success;
}

// Each addend cut in two, all first parts first.
Result add_exactly(const ExactLaunch &launch, const ExactAddends &additions, Pace &pace) {
    ExactAddends parts[2] = {additions, additions};
    for (unsigned n = 0; n < additions.count; ++n) {
        const ExactAddend &one = additions.addends[n];
        const size_t cut = pace.cut(one.numel);
        ExactAddend &first = parts[0].addends[n];
        ExactAddend &second = parts[1].addends[n];
        first.numel = cut;
        first.additions = cut > 0 ? one.additions : 0;
        second.from = static_cast<const char *>(one.from) + cut * launch.from_bytes;
        second.to = static_cast<long long *>(one.to) + cut;
        second.numel -= cut;
        second.additions -= first.additions;
    }
    if (const Result result = run_exact_part(launch, parts[0]); result != Result::Success) {
        return result;
    }
    pace.pause();
    return run_exact_part(launch, parts[1]);
}

Result convert_exactly(const ExactLaunch &launch, ExactWave wave) {
    const std::shared_lock lock(memories().mutex);
    const auto distance = reinterpret_cast<Address>(wave.totals) - reinterpret_cast<Address>(wave.sums);
    const Piece sums = sums_and_totals(wave.sums, wave.totals, launch.device);
    if (sums.at == nullptr || wave.end * sizeof(long long) > distance) {
        return Result::IllegalAddress;
    }
    wave.sums = reinterpret_cast<long long *>(sums.at);
    wave.totals = reinterpret_cast<ExactTotals *>(sums.at + distance);
    launch.run(&wave);
    return Result::Success;
}

}  // namespace

bool is_exact(const std::string &kernel) { return kernel.starts_with("odc_exact_"); }

Work exact_work(const FunctionHandle &function, unsigned grid_x, unsigned block_x, void **parameters) {
    const ExactLaunch launch = exact_launch_of(function, grid_x, block_x);
    if (function.name == "odc_exact_to_f32") {
        const auto wave = *static_cast<const ExactWave *>(parameters[0]);
        const bool first = wave.begin == 0 && wave.end <= odc::kConvertEach * block_x;
        if (wave.begin > wave.end || (!first && wave.end > 2 * wave.begin)) {
            return {};
        }
        return [launch, wave](Pace &) { return convert_exactly(launch, wave); };
    }
    const auto additions = std::make_shared<ExactAddends>(*static_cast<const ExactAddends *>(parameters[0]));
    if (additions->count > odc::kMostExactParts || (additions->count > 0 && additions->first >= additions->count)) {
        return {};
    }
    return [launch, additions](Pace &pace) { return add_exactly(launch, *additions, pace); };
}

}  // namespace fake_cuda
