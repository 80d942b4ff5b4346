// SPDX-License-Identifier: Apache-2.0
// Replaces dlvsym, by which libodc finds libfabric, in tests that are linked statically and supply functions of their own.
// Compiled without ThreadSanitizer (CMakeLists.txt), whose runtime calls it before it is initialized.
#include "replaced_symbols.h"

extern "C" void *dlvsym(void *library, const char *name, const char *version) {
    const auto next = next_of<decltype(dlvsym)>("dlvsym", nullptr);
    void *found = next(library, name, version);
    return library == RTLD_NEXT ? found : replaced_symbol(name, found);  // the next one for a sanitizer
}
