// SPDX-License-Identifier: Apache-2.0
// Counts the work that this process has enqueued, for fake_cuda_enqueued.
#pragma once

#include <mutex>

#include "fake_cuda.h"

namespace fake_cuda {

struct Enqueued {
    std::mutex mutex;
    fake_cuda_work work{};
};

Enqueued &enqueued();

}  // namespace fake_cuda
