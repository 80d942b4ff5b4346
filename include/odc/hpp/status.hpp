// SPDX-License-Identifier: Apache-2.0
// How calls report failure: by throwing odc::Error, or in an odc::Status argument.
#ifndef ODC_HPP_STATUS_HPP
#define ODC_HPP_STATUS_HPP
#include <odc/odc.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include "span.hpp"

namespace odc {
inline namespace ODC_ABI {

// A job error sticks to the context and reaches all ranks with the same message; any other error has changed nothing.
inline bool is_job_error(int32_t status) noexcept { return status <= ODC_ERROR_PEER_LOST; }

// Thrown by a failed call; what() is the library's message.
class Error : public std::runtime_error {
public:
    Error(int32_t status, const std::string &message) : std::runtime_error(message), status_(status) {}
    int32_t status() const noexcept { return status_; }  // an odc_status, perhaps one of a newer library
    bool is_job_error() const noexcept { return odc::is_job_error(status_); }

private:
    int32_t status_;
};

// The result of the call that got it as an argument.
class Status {
public:
    bool ok() const noexcept { return code_ == ODC_OK; }
    int32_t code() const noexcept { return code_; }  // an odc_status, perhaps one of a newer library
    bool is_job_error() const noexcept { return odc::is_job_error(code_); }
    // The library's message; "" on success.
    const char *message() const noexcept {
        return ok() ? "" : message_ != nullptr ? message_.get() : odc_status_string(code_);
    }

    void set(int32_t code, const char *message, const char *reason = "") noexcept {
        std::unique_ptr<char[]> text;
        if (code != ODC_OK) {
            const size_t length = std::strlen(message), more = std::strlen(reason);
            text.reset(new (std::nothrow) char[length + more + 3]);
            if (text != nullptr) {
                std::memcpy(text.get(), message, length);
                std::memcpy(text.get() + length, ": ", 2);
                std::memcpy(text.get() + length + 2, reason, more);
                text[more == 0 ? length : length + 2 + more] = '\0';
            }
        }
        code_ = code;
        message_ = std::move(text);  // last, as `message` may point to the old one
    }

private:
    int32_t code_ = ODC_OK;
    std::unique_ptr<char[]> message_;  // NULL on success, or if there was no memory
};

namespace detail {

// A call's trailing parameters: none, or one Status.
template <class... S>
using Trailing = std::enable_if_t<sizeof...(S) == 0 || (sizeof...(S) == 1 && (std::is_same_v<S, Status> && ...))>;
template <class... S>
inline constexpr bool kQuiet = sizeof...(S) > 0;

#if defined(__cpp_exceptions)
inline constexpr bool kExceptions = true;

// Keeps an exception of a callback, which must not cross C, until the call that ran it has returned.
inline std::exception_ptr &kept() noexcept {
    thread_local std::exception_ptr thrown;
    return thrown;
}

template <class Body>
int call_back(Body body) {
    try {
        return body();
#if defined(__GLIBCXX__)
    } catch (const abi::__forced_unwind &) {  // pthread_exit, which cannot be deferred
        throw;
#endif
    } catch (...) {
        kept() = std::current_exception();
        return 1;
    }
}

// Runs the body of a callback that has nobody to report an exception to; drops the exception.
template <class Body>
void call_back_and_forget(Body body) {
    try {
        body();
#if defined(__GLIBCXX__)
    } catch (const abi::__forced_unwind &) {
        throw;
#endif
    } catch (...) {
    }
}

inline void report(int32_t code, const char *message) {
    const std::exception_ptr thrown = std::exchange(kept(), nullptr);
    if (code == ODC_OK) {
        return;
    }
    if (thrown != nullptr) {
        std::rethrow_exception(thrown);
    }
    throw Error(code, message);
}

inline void report(int32_t code, const char *message, Status &status) noexcept {
    const std::exception_ptr thrown = std::exchange(kept(), nullptr);
    status.set(code, message);
    if (code != ODC_OK && thrown != nullptr) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::exception &error) {
            status.set(code, message, error.what());
        } catch (...) {
        }
    }
}

// Runs a body that may throw. Not noexcept: pthread_exit in a callback passes through.
template <class Body>
auto guard(Body body, Status &status) -> decltype(body()) {
    try {
        return body();
#if defined(__GLIBCXX__)
    } catch (const abi::__forced_unwind &) {
        throw;
#endif
    } catch (const std::bad_alloc &) {
        status.set(ODC_ERROR_NO_MEMORY, "the process has no memory left for the arguments or the result of this call");
    } catch (const std::exception &error) {
        status.set(ODC_ERROR_INTERNAL, error.what());
    } catch (...) {
        status.set(ODC_ERROR_INTERNAL, "an argument of this call threw something that is not a std::exception");
    }
    return decltype(body())();
}
#else
inline constexpr bool kExceptions = false;

template <class Body>
int call_back(Body body) {
    return body();
}

template <class Body>
void call_back_and_forget(Body body) {
    body();
}

inline void report(int32_t, const char *) noexcept {}
inline void report(int32_t code, const char *message, Status &status) noexcept { status.set(code, message); }

template <class Body>
auto guard(Body body, Status &) -> decltype(body()) {
    return body();
}
#endif

template <class Body>
auto guard(Body body) -> decltype(body()) {
    return body();
}

// Reports the result of a call of the library; returns whether it succeeded.
template <class... S>
bool check(int32_t code, S &...status) noexcept(kQuiet<S...>) {
    static_assert(kExceptions || kQuiet<S...>, "without exceptions, hand the call an odc::Status");
    report(code, code == ODC_OK ? "" : odc_last_error(), status...);
    return code == ODC_OK;
}

// Reports an error that is found without calling the library; returns false.
template <class... S>
bool refuse(int32_t code, const char *message, S &...status) noexcept(kQuiet<S...>) {
    static_assert(kExceptions || kQuiet<S...>, "without exceptions, hand the call an odc::Status");
    report(code, message, status...);
    return false;
}
template <class... S>
bool refuse(int32_t code, const std::string &message, S &...status) noexcept(kQuiet<S...>) {
    return refuse(code, message.c_str(), status...);
}

// A struct of odc.h with struct_size set.
template <class Struct>
Struct sized() noexcept {
    Struct made{};
    made.struct_size = sizeof(Struct);
    return made;
}

// Sets `out` to NULL for "", which means the default.
template <class... S>
bool to_c(const std::string &text, const char *what, const char *&out, S &...status) {
    out = text.empty() ? nullptr : text.c_str();
    return text.find('\0') == std::string::npos ||
           refuse(ODC_ERROR_ARGUMENT, std::string(what) + " has a NUL byte in it, where C would end it", status...);
}

inline std::string text(const char *given) { return given == nullptr ? "" : given; }

}  // namespace detail

}  // namespace ODC_ABI
}  // namespace odc
#endif
