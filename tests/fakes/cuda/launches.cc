// SPDX-License-Identifier: Apache-2.0
// Kernels in streams.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "enqueued.h"
#include "exact_launches.h"
#include "functions.h"
#include "handles.h"
#include "kernels.h"
#include "memory.h"
#include "modules.h"
#include "streams.h"
#include "transport/cuda/kernels/add.h"

namespace fake_cuda {

namespace {

using odc::Addend;
using odc::Addends;
using odc::kMostAddends;

struct Launch {
    std::string kernel;
    Device device;
    unsigned grid_x;
    unsigned block_x;
    size_t from_bytes;  // of an element
    size_t to_bytes;
    bool vectors;  // see FunctionHandle
};

Launch launch_of(const FunctionHandle &function, unsigned grid_x, unsigned block_x) {
    const size_t to = function.name.ends_with("_f64") ? 8 : 4;
    const size_t from = function.name.ends_with("_f32") || function.name.ends_with("_f64") ? to : 2;
    return {function.name, function.context.device, grid_x, block_x, from, to, function.vectors};
}

// Addends that are contiguous on both sides, at addresses that this library's threads can access.
class Translation {
public:
    explicit Translation(const Launch &launch) : launch_(launch) {}

    Result add(const Addend &addend) {
        const size_t bytes = addend.numel * launch_.from_bytes;
        if (addend.numel == 0) {
            return Result::Success;
        }
        if (reinterpret_cast<Address>(addend.to) % launch_.to_bytes != 0) {
            return kMisalignedAddress;
        }
        const auto sources = find(addend.from, bytes, Access::Read);
        const auto targets = find(addend.to, addend.numel * launch_.to_bytes, Access::ReadWrite);
        if (sources.empty() || targets.empty()) {
            return Result::IllegalAddress;
        }
        const char *from = in_one(sources, bytes);
        for (const Piece &target : targets) {
            const size_t numel = target.bytes / launch_.to_bytes;
            const bool far = target.physical != nullptr && target.device() != launch_.device;
            if (far && launch_.vectors && !has_vector_atomics()) {
                return kContained;
            }
            (far && wire() == Wire::Lossy ? lossy_ : addends_).push_back({from, target.at, numel});
            from += numel * launch_.from_bytes;
        }
        return Result::Success;
    }

    void run() const {
        std::for_each(lossy_.begin(), lossy_.end(), [this](const Addend &one) { lose(one); });
        for (size_t begin = 0; begin < addends_.size(); begin += kMostAddends) {
            Addends additions{};
            additions.count = static_cast<unsigned>(std::min<size_t>(kMostAddends, addends_.size() - begin));
            std::copy_n(addends_.begin() + static_cast<ptrdiff_t>(begin), additions.count, additions.addends);
            void *parameters[] = {&additions};
            run_kernel(launch_.kernel.c_str(), launch_.grid_x, launch_.block_x, parameters);
        }
    }

private:
    std::vector<Piece> find(const void *address, size_t bytes, Access need) const {
        return pieces(reinterpret_cast<Address>(address), bytes, launch_.device, need, Pageable::Refused);
    }
    // An element may span two mappings.
    const char *in_one(const std::vector<Piece> &sources, size_t bytes) {
        if (sources.size() == 1) {
            return sources[0].at;
        }
        auto &copy = copies_.emplace_back();
        copy.reserve(bytes);
        for (const Piece &piece : sources) {
            copy.insert(copy.end(), piece.at, piece.at + piece.bytes);
        }
        return copy.data();
    }

    const Launch &launch_;
    // Reads and later writes: additions in between are lost.
    void lose(const Addend &addend) const {
        auto *const target = static_cast<char *>(addend.to);
        std::vector<char> sums(addend.numel * launch_.to_bytes);
        copy_words(sums.data(), target, sums.size());
        Addends additions{};
        additions.addends[additions.count++] = {addend.from, sums.data(), addend.numel};
        void *parameters[] = {&additions};
        run_kernel(launch_.kernel.c_str(), launch_.grid_x, launch_.block_x, parameters);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        copy_words(target, sums.data(), sums.size());
    }
    static void copy_words(char *to, char *from, size_t bytes) {
        for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
            auto *const source = reinterpret_cast<uint32_t *>(from + i);
            const uint32_t word = std::atomic_ref<uint32_t>(*source).load(std::memory_order_relaxed);
            std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t *>(to + i)).store(word, std::memory_order_relaxed);
        }
    }

    std::vector<Addend> lossy_;
    std::vector<Addend> addends_;
    std::vector<std::vector<char>> copies_;
};

Result run_part(const Launch &launch, const std::vector<Addend> &addends) {
    const std::shared_lock lock(memories().mutex);
    Translation translation(launch);
    for (const Addend &addend : addends) {
        if (const Result result = translation.add(addend); result != Result::Success) {
            return result;
        }
    }
    translation.run();
    return Result::Success;
}

// The nth addend in the kernel's order.
const Addend &nth(const Addends &additions, unsigned n) {
    return additions.addends[(additions.first + n) % additions.count];
}

// The addends in the kernel's order, each cut in two, all first parts first.
Result run(const Launch &launch, const Addends &additions, Pace &pace) {
    std::vector<Addend> parts[2];
    for (unsigned n = 0; n < additions.count; ++n) {
        const Addend &addend = nth(additions, n);
        const size_t cut = pace.cut(addend.numel);
        parts[0].push_back({addend.from, addend.to, cut});
        parts[1].push_back({static_cast<const char *>(addend.from) + cut * launch.from_bytes,
                            static_cast<char *>(addend.to) + cut * launch.to_bytes, addend.numel - cut});
    }
    const Result result = run_part(launch, parts[0]);
    if (result != Result::Success) {
        return result;
    }
    pace.pause();
    return run_part(launch, parts[1]);
}

// The work of a kernel of so many threads; each of a plain one's adds four elements.
Addends additions_of(const std::string &kernel, unsigned long long threads, void **parameters) {
    if (!is_plain(kernel.c_str())) {
        return *static_cast<const Addends *>(parameters[0]);
    }
    Addends one{};
    one.addends[one.count++] = {*static_cast<const void *const *>(parameters[1]),
                                *static_cast<void *const *>(parameters[0]),
                                std::min(*static_cast<const unsigned long long *>(parameters[2]), 4 * threads)};
    return one;
}

void note(unsigned blocks, const Addends &additions) {
    const std::lock_guard lock(enqueued().mutex);
    fake_cuda_work &work = enqueued().work;
    work.most_blocks = std::max(work.most_blocks, blocks);
    work.addends = additions.count;
    for (unsigned n = 0; n < std::min<size_t>(additions.count, std::size(work.from)); ++n) {
        work.from[n] = reinterpret_cast<Address>(nth(additions, n).from);
    }
}

void note_loading(FunctionHandle &function) {
    if (!function.loaded.exchange(true)) {
        const std::lock_guard lock(enqueued().mutex);
        ++enqueued().work.lazy_loads;
    }
}

}  // namespace

// The parameters are copied before the call returns.
Result cuLaunchKernel(Function handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned /*shared_bytes*/, Stream stream_handle,
                      void **parameters, void **extra) {
    const auto function = handles<FunctionHandle>().find(handle);
    std::shared_ptr<StreamHandle> stream;
    if (const Result result = find_stream(stream_handle, stream); result != Result::Success) {
        return result;
    }
    // Unlike copies, a kernel needs the current context's stream.
    if (function == nullptr || &function->context != &stream->context || current_context() != &stream->context) {
        return Result::InvalidHandle;
    }
    note_loading(*function);
    const auto threads = static_cast<unsigned long long>(block_x) * block_y * block_z;
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || threads == 0 || threads > 1024 || block_x != threads ||
        parameters == nullptr || parameters[0] == nullptr || extra != nullptr) {
        return Result::InvalidValue;
    }
    if (is_exact(function->name)) {
        Work work = exact_work(*function, grid_x, block_x, parameters);
        return work ? submit(*stream, std::move(work)) : Result::InvalidValue;
    }
    const auto additions = std::make_shared<Addends>(additions_of(function->name, threads * grid_x, parameters));
    if (additions->count > kMostAddends || (additions->count > 0 && additions->first >= additions->count)) {
        return Result::InvalidValue;  // a check of this library only: a GPU would read out of bounds
    }
    note(grid_x, *additions);
    return submit(*stream, [launch = launch_of(*function, grid_x, block_x), additions](Pace &pace) {
        return run(launch, *additions, pace);
    });
}

}  // namespace fake_cuda
