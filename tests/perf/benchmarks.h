// SPDX-License-Identifier: Apache-2.0
// Each function registers the benchmarks of its file with Google Benchmark.
#pragma once

void register_memory();
void register_planner();
void register_slices();
void register_control_messages();
void register_log();
