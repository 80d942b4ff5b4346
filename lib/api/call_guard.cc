// SPDX-License-Identifier: Apache-2.0
#include "api/call_guard.h"

#include <cxxabi.h>

#include <new>

#include "base/error.h"
#include "base/fork_gate.h"

namespace odc {

namespace {

thread_local ThreadStrings *thread_strings = nullptr;
thread_local const char *error_text = "";  // thread_strings->error, or a literal if there is no memory for it

void delete_strings(void *strings) {
    delete static_cast<ThreadStrings *>(strings);
    thread_strings = nullptr;
    error_text = "";
}

// By a pthread key instead of a thread_local object: exit() destroys its thread's thread_local objects before it runs the
// atexit() handlers, which may call libodc; a key's destructor runs only when a thread ends. If there is no key left (a process
// has 1024), the strings leak.
struct StringsKey {
    StringsKey() { pthread_key_create(&key, delete_strings); }
    pthread_key_t key = ~pthread_key_t{0};
};

}  // namespace

ThreadStrings &strings_of_thread() {
    if (thread_strings == nullptr) {
        thread_strings = new ThreadStrings;
        pthread_setspecific(made_once<StringsKey>(Locks::Libodc).key, thread_strings);
    }
    return *thread_strings;
}

const char *last_error() { return error_text; }

namespace {

odc_status keep_error(odc_status status, const char *text) noexcept {
    try {
        std::string &error = strings_of_thread().error;
        error = text;
        error_text = error.c_str();
    } catch (const std::exception &) {
        error_text = "the process has no memory left, not even for the text of this error";
    }
    return status;
}

}  // namespace

// no_sanitize: what pthread_exit throws is caught by a
// reference without an object; GCC ignores the attribute on templates, hence `body`.
__attribute__((no_sanitize("null"))) odc_status status_of(void (*call)(void *body), void *body) {
    try {
        call(body);
        return ODC_OK;
    } catch (const Error &error) {
        return keep_error(error.status(), error.what());
    } catch (const std::bad_alloc &) {
        return keep_error(ODC_ERROR_NO_MEMORY, kNoMemoryText);
    } catch (const std::exception &error) {
        return keep_error(ODC_ERROR_INTERNAL, error.what());
    } catch (const abi::__forced_unwind &) {  // pthread_exit in a callback, which cannot be stopped
        throw;
    } catch (...) {
        return keep_error(ODC_ERROR_INTERNAL, "a callback threw something that is not a std::exception");
    }
}

}  // namespace odc
