// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>
#include <odc/odc.h>

#include "benchmarks.h"

int main(int argc, char **argv) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
        return 2;
    }
    benchmark::AddCustomContext("libodc", odc_build());
    register_memory();
    register_planner();
    register_slices();
    register_control_messages();
    register_log();
    return benchmark::RunSpecifiedBenchmarks() > 0 ? 0 : 1;
}
