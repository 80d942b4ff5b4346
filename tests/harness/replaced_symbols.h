/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ODC_TESTS_REPLACED_SYMBOLS_H
#define ODC_TESTS_REPLACED_SYMBOLS_H
#include <dlfcn.h>

/* A test's: what libodc gets for this name, where `found` is what it asked for. */
void *replaced_symbol(const char *name, void *found);

/* The function that a test's own of this name calls. ThreadSanitizer's where clang has linked that into the program, whose
 * next one is the C library's: threads and memory that it is not told of look like races. */
template <class Function>
Function *next_of(const char *name, Function *sanitizers) {
    return sanitizers != nullptr ? sanitizers : reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

#endif
