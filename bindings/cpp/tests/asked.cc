// SPDX-License-Identifier: Apache-2.0
// Asks the libodc of stub.c, which tells what it is handed, and drops an operation that it cannot wait for.
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
    config.interrupted = [] { return false; };
    odc::Context context = odc::Context::join(config);
    auto shard = context.register_shard<odc::F16, double, odc::Memory::Gpu>({"layer", 10, {1, 2}, {4, 6}});
    context.register_shard<void, odc::Bf16>({"layer", 10});
    context.register_shard<std::byte, void>({"layer", 10});
    odc::F16 full[10];
    context.publish(odc::Stream{&context});
    const odc::Operation operation = shard.gather_start({full, 10}, odc::Stream{full});
}
