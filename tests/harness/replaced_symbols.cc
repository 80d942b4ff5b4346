// SPDX-License-Identifier: Apache-2.0
// dlvsym, by which libodc finds libfabric, for tests that are linked statically and give it functions of their own. Compiled
// without ThreadSanitizer (CMakeLists.txt), whose runtime calls it before it can look on.
#include "replaced_symbols.h"

extern "C" void *dlvsym(void *library, const char *name, const char *version) {
    const auto next = next_of<decltype(dlvsym)>("dlvsym", nullptr);
    void *found = next(library, name, version);
    return library == RTLD_NEXT ? found : replaced_symbol(name, found);  // a sanitizer asks for the next one
}
