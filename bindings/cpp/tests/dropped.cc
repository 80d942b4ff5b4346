// SPDX-License-Identifier: Apache-2.0
// Drops an operation that the libodc of stub.c cannot wait for.
#include <odc/odc.hpp>

int main() {
    odc::Context context = odc::Context::join();
    auto shard = context.register_shard<float, float>({"layer", 10});
    std::vector<float> full(10);
    const odc::Operation operation = shard.gather_start(full);
}
