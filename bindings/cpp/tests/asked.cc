// SPDX-License-Identifier: Apache-2.0
// Uses the libodc of stub.c, which prints the arguments of its calls, and drops an operation that it cannot wait for. What a
// callback throws in a call that succeeds is forgotten; destructors do not call callbacks.
#include <odc/odc.hpp>

int main() {
    odc::Config config;
    config.rank = 1;
    config.size = 3;
    config.job = "a job";
    config.group = "a group";
    config.rendezvous = "a place";
    config.secret = "a secret";
    config.timeout = std::chrono::seconds(5);
    config.host = "a host";
    config.device = "a device";
    bool joined = false;
    config.interrupted = [&joined]() -> bool { return joined ? throw 1 : false; };
    odc::Context context = odc::Context::join(config);
    joined = true;
    auto shard = context.register_shard<odc::F16, double, odc::Memory::Gpu>({"layer", 10, {1, 2}, {4, 6}});
    context.register_shard<void, odc::Bf16>({"layer", 10});
    context.register_shard<std::byte, void>({"layer", 10});
    odc::F16 full[10];
    context.publish(odc::Stream{&context});
    const odc::Operation operation = shard.gather_start({full, 10}, odc::Stream{full});
}
