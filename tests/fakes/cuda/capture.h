// SPDX-License-Identifier: Apache-2.0
// Stream captures. Only their restrictions are implemented; the captured work is dropped.
#pragma once

#include "streams.h"

namespace fake_cuda {

// Called before a call that is forbidden during captures, unless the thread's mode allows it.
Result check_unsafe_call();
// Called before work is enqueued in a stream.
Result check_capture(StreamHandle &stream);
// Called before a stream is queried.
Result check_query(StreamHandle &stream);

Result begin_capture(std::shared_ptr<StreamHandle> stream);
Result end_capture(StreamHandle &stream);

}  // namespace fake_cuda
