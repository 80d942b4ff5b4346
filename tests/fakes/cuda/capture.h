// SPDX-License-Identifier: Apache-2.0
// Captures of streams into graphs. Only what they forbid is here: nothing is kept of what they record.
#pragma once

#include "streams.h"

namespace fake_cuda {

// Before a call that may not be made while streams are captured, unless the thread's mode allows it.
Result check_unsafe_call();
// Before something is enqueued in a stream.
Result check_capture(StreamHandle &stream);
// Before it is asked whether a stream is done.
Result check_query(StreamHandle &stream);

Result begin_capture(std::shared_ptr<StreamHandle> stream);
Result end_capture(StreamHandle &stream);

}  // namespace fake_cuda
