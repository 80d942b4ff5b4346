// SPDX-License-Identifier: Apache-2.0
// Shards in GPU memory, on the fake CUDA driver (tests/fakes/cuda), with which it is linked; for `odc run -n 2`.
#include <fake_cuda.h>

#include "testing.h"

namespace {

template <class T>
std::vector<T> read(odc::GpuSpan<T> from) {
    std::vector<T> values(from.size());
    REQUIRE(fake_cuda_read(values.data(), reinterpret_cast<uintptr_t>(from.data()), values.size() * sizeof(T)) == 0);
    return values;
}

template <class T>
void write(odc::GpuSpan<T> to, const std::vector<T> &values) {
    REQUIRE(fake_cuda_write(reinterpret_cast<uintptr_t>(to.data()), values.data(), values.size() * sizeof(T)) == 0);
}

template <class T>
odc::GpuSpan<T> allocate(size_t numel) {
    return {reinterpret_cast<T *>(fake_cuda_alloc(0, numel * sizeof(T))), numel};
}

void gathers_and_sums_on_streams_are_as_on_the_host() {
    odc::Config config;
    config.device = "cuda:0";
    odc::Context context = odc::Context::join(config);
    auto shard = context.register_shard<float, odc::Bf16, odc::Memory::Gpu>({"layer", 1001});
    auto beside = context.register_shard<float, float>({"beside", 10});
    const std::string transport = context.route_to_gpu(1 - context.rank()).transport;
    REQUIRE(transport == "shm" || transport == "cuda");
    const auto full = allocate<float>(1001);
    const auto gradients = allocate<odc::Bf16>(1001);
    const odc::Stream stream{fake_cuda_stream_create(0, 1)};
    write(gradients, std::vector<odc::Bf16>(1001, odc::Bf16(1)));
    for (int minibatch = 0; minibatch < 4; ++minibatch) {
        std::vector<float> wanted(1001);
        for (size_t i = 0; i < wanted.size(); ++i) {
            wanted[i] = static_cast<float>(i) + static_cast<float>(minibatch);
        }
        const auto slice = shard.slice();
        const float *mine = wanted.data() + slice.offset;
        write(slice.parameters, std::vector<float>(mine, mine + slice.parameters.size()));
        if (minibatch % 2 == 0) {
            shard.publish(stream);
        }
        context.publish(stream);
        shard.gather(full, stream);
        shard.scatter_add(gradients, stream);
        odc::Operation gather = shard.gather_start(full, stream);
        odc::Operation addition = shard.scatter_add_start(gradients, stream);
        gather.wait();
        addition.wait();
        REQUIRE_THROWS(ODC_ERROR_ARGUMENT, shard.gather({full.data(), 1000}, stream), "1000", "1001");
        REQUIRE(fake_cuda_stream_wait(stream.handle) == 0);
        REQUIRE(read(full) == wanted);
        beside.scatter_add(std::vector<float>(10, 1));
        context.sync();
        REQUIRE(read(shard.slice().gradients) == std::vector<float>(slice.gradients.size(), 4));
    }
    shard.release();
}

}  // namespace

int main(int argc, char **argv) {
    return run_tests("gpu_test", {TEST(gathers_and_sums_on_streams_are_as_on_the_host)}, argc, argv);
}
