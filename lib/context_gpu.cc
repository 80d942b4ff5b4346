// SPDX-License-Identifier: Apache-2.0
// The contract for shards in GPU memory: what the host waits for, and what it leaves to the caller's streams.
#include <algorithm>

#include "context.h"
#include "element.h"
#include "transport/stripes.h"

namespace odc {

namespace {

constexpr int64_t kSettleMs = 2'000;  // for what is on its way when a context ends

}  // namespace

// A GPU that has failed is everybody's affair at once: its rank can neither publish nor add any more.
template <class Body>
void Context::on_gpu(Body body) {
    Cuda &cuda = *job_.cuda();
    try {
        const CudaDevice::Scope scope(cuda.device());
        body(cuda);
    } catch (const Error &error) {
        if (error.status() == ODC_ERROR_DEVICE) {
            job_.fail_job(ODC_ERROR_DEVICE, say(job_.who(job_.rank()), ": ", error.what()));
        }
        throw;
    }
}

// ---- Shards ----

void Context::check_gpu_routes(const Description &description) {
    if (description.memory != ODC_GPU_MEMORY) {
        return;
    }
    if (job_.cuda() == nullptr) {
        fail(ODC_ERROR_UNSUPPORTED, "shard \"", description.name, "\" is to be in GPU memory, but rank ", job_.rank(),
             " has no GPU: name one by config.device or ODC_DEVICE, such as cuda:0");
    }
    const std::vector<int32_t> &ranks = description.ranks;
    for (int rank = 0; rank < job_.size(); ++rank) {
        const Verdict &verdict = job_.peer(rank).gpu_route.verdict;
        const bool listed = ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
        if (listed && verdict.transport.empty()) {
            fail(ODC_ERROR_UNSUPPORTED, "shard \"", description.name, "\" is to be in GPU memory, but from ",
                 job_.who(job_.rank()), " there is no path to that of ", job_.who(rank), ": ", verdict.why);
        }
    }
}

// One region for all of them.
std::vector<GpuAllocation> Context::allocate_on_gpu(const std::vector<std::unique_ptr<Shard>> &shards) {
    constexpr uint64_t kAlignment = 256;
    std::vector<GpuAllocation> parts;
    uint64_t bytes = 0;
    for (const auto &shard : shards) {
        parts.push_back({0, nullptr, bytes});
        bytes += (shard->gpu_bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    if (bytes == 0) {
        return parts;
    }
    on_gpu([&](Cuda &cuda) {
        const auto [region, start] = cuda.allocate(job_.rank(), bytes);
        for (size_t i = 0; i < shards.size(); ++i) {
            if (shards[i]->gpu_bytes() > 0) {
                parts[i].region = region;
                parts[i].start = start;
            }
        }
    });
    return parts;
}

// The use that allocating is.
void Context::drop(const std::vector<GpuAllocation> &parts) {
    for (const GpuAllocation &part : parts) {
        if (part.region != 0) {
            job_.cuda()->drop(job_.rank(), part.region);
            return;  // there is one region
        }
    }
}

// For ranks that reach it through host memory.
void Context::mirror_if_needed(Shard &shard) {
    for (uint64_t index = 0; shard.on_gpu() && index < shard.owners(); ++index) {
        if (!job_.peer(shard.owner(index)).gpu_route.is_direct()) {
            shard.mirror();
        }
    }
}

// With what its publishes need, and what goes through host memory.
void Context::equip(Shard &shard) {
    const Shard::Bases &mine = shard.bases(shard.own_index());
    on_gpu([&](Cuda &cuda) {
        if (shard.is_mirrored()) {
            cuda.open_porter(job_.rank());
        }
        if (shard.own_numel() == 0) {
            return;
        }
        cuda.use(job_.rank(), mine.region);
        try {
            shard.word = cuda.pin(shard.post().published);
            if (mine.mirror != nullptr) {
                cuda.pin_pages(mine.mirror, mine.mirror_bytes);
            }
            shard.mark = cuda.make_mark();
        } catch (...) {
            cuda.drop(job_.rank(), mine.region);
            throw;
        }
    });
}

void Context::strip(Shard &shard) {
    if (shard.mark == nullptr) {
        return;
    }
    Cuda *cuda = job_.cuda();
    const Shard::Bases &mine = shard.bases(shard.own_index());
    cuda->drop_mark(shard.mark);
    if (mine.mirror != nullptr) {
        cuda->unpin_pages(mine.mirror);
    }
    cuda->unpin(shard.post().published);
    cuda->drop(job_.rank(), mine.region);
}

// Hands their region to every rank that one of them lists.
void Context::offer(const std::vector<std::unique_ptr<Shard>> &shards) {
    std::set<int> ranks;
    uint64_t region = 0;
    for (const auto &shard : shards) {
        if (const uint64_t theirs = shard->bases(shard->own_index()).region; theirs != 0) {
            region = theirs;
            for (uint64_t index = 0; index < shard->owners(); ++index) {
                ranks.insert(shard->owner(index));
            }
        }
    }
    if (region != 0) {
        on_gpu([&](Cuda &cuda) { cuda.offer(job_.rank(), region, ranks); });
    }
}

// ---- A minibatch ----

void Context::open_on_gpu(Shard &shard, void *stream) {
    const RemoteSlice mine = shard.slice(shard.own_index());
    const RemoteSlice mirror = shard.host_slice(shard.own_index());
    on_gpu([&](Cuda &cuda) {
        const cuda::Stream on = cuda.device().checked_stream(stream, call_name(Call::Publish));
        if (shard.own_numel() > 0) {
            const uint64_t sums =
                mine.accumulator == nullptr ? 0 : mine.numel * element_size(accumulator_type(mine.gradient_type));
            cuda.open({mine.accumulator, sums, mine.parameters, mirror.parameters,
                       mine.numel * element_size(mine.parameter_type), shard.mark, shard.word, minibatch_ + 1},
                      on);
        }
    });
}

void Context::start_on_gpu(Operation &operation) {
    Shard &shard = *operation.shard;
    on_gpu([&](Cuda &cuda) {
        cuda.device().checked_stream(operation.stream, call_name(operation.call));
        if (shard.description().numel > 0) {
            cuda.device().check_buffer(operation.buffer,
                                       say(call_name(operation.call), ": the buffer for shard \"", shard.name(), "\""));
        }
        cuda.flush();
    });
    std::vector<uint64_t> ready;
    for (uint64_t i = 0; i < shard.owners(); ++i) {
        const uint64_t index = (shard.own_index() + i) % shard.owners();
        (is_published(shard, index) ? ready : operation.left).push_back(index);
    }
    if (operation.call == Call::Gather) {
        get_on_gpu(operation, ready);
    } else if (operation.left.empty()) {
        Job::Wait wait(job_, call_name(operation.call));
        add_on_gpu(operation, wait);
    } else {
        operation.left.push_back(shard.own_index());  // marks what is not added yet
    }
}

void Context::finish_on_gpu(Operation &operation, Job::Wait &wait) {
    Shard &shard = *operation.shard;
    if (operation.call == Call::Gather) {
        while (!operation.left.empty()) {
            const uint64_t index = operation.left.front();
            await_publish(shard, index, wait);
            get_on_gpu(operation, {index});
            operation.left.erase(operation.left.begin());
        }
    } else if (!operation.left.empty()) {
        for (const uint64_t index : operation.left) {
            await_publish(shard, index, wait);
        }
        add_on_gpu(operation, wait);
        operation.left.clear();
    }
}

void Context::get_on_gpu(Operation &operation, const std::vector<uint64_t> &indexes) {
    Shard &shard = *operation.shard;
    const size_t size = element_size(shard.description().parameter_type);
    std::vector<Cuda::Copy> copies;
    for (const uint64_t index : indexes) {
        const RemoteSlice from = shard.slices().numel(index) > 0 ? shard.slice(index) : RemoteSlice{};
        if (from.numel > 0) {
            copies.push_back({from.parameters, place(operation, index), from.numel * size,
                              !shard.is_staged(index) && job_.cuda()->is_other(job_.block(shard.owner(index)).gpu)});
        }
    }
    if (copies.empty()) {
        return;
    }
    on_gpu([&](Cuda &cuda) {
        auto *const stream = static_cast<cuda::Stream>(operation.stream);
        follow_own_mark(shard, cuda, stream);
        cuda.get(copies, stream);
        follow(operation, cuda);
    });
}

void Context::add_on_gpu(Operation &operation, Job::Wait &wait) {
    Shard &shard = *operation.shard;
    add_directly(operation);
    wait.begin_effects();
    for (uint64_t i = 1; i < shard.owners(); ++i) {
        const uint64_t index = (shard.own_index() + i) % shard.owners();
        if (shard.slices().numel(index) > 0 && shard.is_staged(index)) {
            add_by_porter(operation, index, wait);
        }
    }
    wait.end_effects();
}

void Context::add_directly(Operation &operation) {
    Shard &shard = *operation.shard;
    std::vector<Addend> addends;
    for (uint64_t i = 0; i < shard.owners(); ++i) {
        const uint64_t index = (shard.own_index() + i) % shard.owners();
        if (shard.slices().numel(index) > 0 && !shard.is_staged(index)) {
            const RemoteSlice to = shard.slice(index);
            addends.push_back({place(operation, index), to.accumulator, to.numel});
        }
    }
    if (addends.empty()) {
        return;
    }
    on_gpu([&](Cuda &cuda) {
        auto *const stream = static_cast<cuda::Stream>(operation.stream);
        follow_own_mark(shard, cuda, stream);
        cuda.add(shard.description().gradient_type, addends, stream);
        follow(operation, cuda);
    });
}

// As much as there is room for, again and again: the host waits while the GPU has not given up what it was handed.
void Context::add_by_porter(Operation &operation, uint64_t index, Job::Wait &wait) {
    const RemoteSlice to = operation.shard->host_slice(index);
    const uint64_t stripes = stripe_count(to.numel * element_size(accumulator_type(to.gradient_type)));
    Porter::Load load{to, place(operation, index), 0, minibatch_ + 1};
    wait.describe([&, this] {
        return say("there is no room to carry gradients of shard \"", operation.shard->name(), "\" to ",
                   job_.who(operation.shard->owner(index)), ": ", job_.cuda()->flights().under_way());
    });
    wait.until_seen(job_.rank(), [&] {
        on_gpu([&](Cuda &cuda) {
            const uint64_t carried = cuda.porter().carry(load, static_cast<cuda::Stream>(operation.stream));
            load.stripe += carried;
            if (carried == 0) {
                cuda.device().check_health();
            }
        });
        return load.stripe == stripes;
    });
}

// The own slice may have been opened on another stream.
void Context::follow_own_mark(const Shard &shard, const Cuda &cuda, cuda::Stream stream) {
    if (shard.mark != nullptr) {
        cuda.follow_mark(shard.mark, stream);
    }
}

// So that sync knows when it is done.
void Context::follow(const Operation &operation, Cuda &cuda) {
    const std::string words = say(call_name(operation.call), " of shard \"", operation.shard->name(), "\"");
    auto *const stream = static_cast<cuda::Stream>(operation.stream);
    if (cuda.flights().follow(stream, words)) {
        return;
    }
    Job::Wait wait(job_, call_name(operation.call));
    wait.describe(
        [&] { return say("too much is on its way on ", cuda.device().name(), ": ", cuda.flights().under_way()); });
    wait.until_seen(job_.rank(), [&] { return cuda.flights().follow(stream, words); });
}

// What this rank has enqueued is done, and its descriptors are with its peers: then it may arrive.
void Context::land() {
    Cuda *cuda = job_.cuda();
    if (cuda == nullptr) {
        return;
    }
    const auto is_open = [this](const auto &entry) {
        const Shard &shard = *entry.second;
        return shard.mark == nullptr || shard.post().published.load(std::memory_order_acquire) > minibatch_;
    };
    Job::Wait wait(job_, call_name(Call::Sync));
    wait.describe([&] {
        const std::string under_way = cuda->flights().under_way();
        return say(cuda->device().name(),
                   " has not done yet what was enqueued there: ", under_way.empty() ? "a publish" : under_way);
    });
    wait.until_seen(job_.rank(), [&] {
        if (cuda->is_idle() && std::all_of(shards_.begin(), shards_.end(), is_open)) {
            return true;
        }
        on_gpu([](Cuda &one) { one.device().check_health(); });
        return false;
    });
    wait.describe([] { return "other ranks have not taken the descriptors of this rank's GPU memory"; });
    wait.until_seen(job_.rank(), [&] { return cuda->flush(); });
}

// What other ranks added in host memory belongs to this rank's sums, too.
void Context::fold_mirrors() {
    Cuda *cuda = job_.cuda();
    if (cuda == nullptr) {
        return;
    }
    for (const auto &[name, shard] : shards_) {
        if (shard->is_mirrored() && shard->folded <= minibatch_) {
            fold(*shard);
            shard->folded = minibatch_ + 1;
        }
    }
    Job::Wait wait(job_, call_name(Call::Sync));
    wait.describe([&] { return say(cuda->device().name(), " has not done yet ", cuda->flights().under_way()); });
    wait.until_seen(job_.rank(), [&] {
        if (cuda->flights().all_done()) {
            return true;
        }
        on_gpu([](Cuda &one) { one.device().check_health(); });
        return false;
    });
}

void Context::fold(Shard &shard) {
    const RemoteSlice mirror = shard.host_slice(shard.own_index());
    if (mirror.accumulator == nullptr) {
        return;
    }
    const RemoteSlice mine = shard.slice(shard.own_index());
    const int32_t type = accumulator_type(mine.gradient_type);
    const uint64_t in_stripe = stripe_elements(mine.gradient_type);
    on_gpu([&](Cuda &cuda) {
        const std::byte *const from = as_seen_by(cuda.device(), mirror.accumulator);
        std::vector<Addend> addends;
        uint64_t end = 0;
        for (uint64_t first = 0; first < mine.numel; first += in_stripe) {
            if (mirror.stripes[first / in_stripe].filled > minibatch_) {
                const uint64_t at = first * element_size(type);
                const uint64_t numel = std::min(in_stripe, mine.numel - first);
                if (!addends.empty() && end == first) {
                    addends.back().numel += numel;
                } else {
                    addends.push_back({from + at, mine.accumulator + at, numel});
                }
                end = first + numel;
            }
        }
        if (!addends.empty()) {
            cuda.add(type, addends, cuda.device().own_stream());
            Operation adding{Call::ScatterAdd, &shard, nullptr, cuda.device().own_stream(), {}, {}};
            follow(adding, cuda);
        }
    });
}

// After a sync nothing is under way; after an error, or without a last sync, something may be, and what streams still
// use must not be unmapped.
void Context::leave_gpu() {
    if (job_.cuda() != nullptr && !job_.cuda()->settles(kSettleMs)) {
        job_.leak_cuda();
    }
}

}  // namespace odc
