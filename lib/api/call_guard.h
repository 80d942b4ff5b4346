// SPDX-License-Identifier: Apache-2.0
// What every call of odc.h goes through: exceptions become a status and a text of the calling thread.
#pragma once

#include <odc/odc.h>
#include <pthread.h>

#include <string>

namespace odc {

// The strings that calls return to a thread, valid until its next call.
struct ThreadStrings {
    std::string error;
    std::string why_not;
    std::string topology;
    std::string topology_xml;
};
ThreadStrings &strings_of_thread();  // throws std::bad_alloc

// The text of the thread's last failed call; "" before that.
const char *last_error();

// No exception crosses the C boundary, and none loses its message.
odc_status status_of(void (*call)(void *body), void *body);

// No call is a cancellation point: a cancelled thread ends after its call. Not noexcept: with asynchronous cancelability the
// thread ends where its cancel state is restored.
template <class Body>
odc_status guard(Body body) {
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    const odc_status status = status_of([](void *called) { (*static_cast<Body *>(called))(); }, &body);
    pthread_setcancelstate(before, nullptr);
    return status;
}

}  // namespace odc
