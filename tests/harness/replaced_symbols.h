/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ODC_TESTS_REPLACED_SYMBOLS_H
#define ODC_TESTS_REPLACED_SYMBOLS_H
#include <dlfcn.h>

/* Defined by the test: what libodc gets for this name, where `found` is the original. */
void *replaced_symbol(const char *name, void *found);

/* The function that a replacement of this name calls. With ThreadSanitizer its interceptor, where clang has linked that into
 * the program, and which calls the C library's: threads and memory unknown to it would look like races. */
template <class Function>
Function *next_of(const char *name, Function *sanitizers) {
    return sanitizers != nullptr ? sanitizers : reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

#endif
