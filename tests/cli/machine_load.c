/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into odc by replay_load_test.sh: /proc/stat says that other programs use ODC_TEST_OTHERS percent of the processors. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* In microseconds instead of hundredths of a second, so that odc's own processor time is nothing beside them. */
static FILE *stand_in(void) {
    struct timespec now;
    FILE *file = tmpfile(); /* the C++ library reads its descriptor */
    if (file != NULL && clock_gettime(CLOCK_MONOTONIC, &now) == 0) {
        long long all = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
        long long busy = all / 100 * atoi(getenv("ODC_TEST_OTHERS"));
        fprintf(file, "cpu %lld 0 0 %lld 0 0 0 0\n", busy, all - busy);
        fflush(file);
        rewind(file);
    }
    return file;
}

static FILE *open_file(const char *name, const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) = NULL;
    if (strcmp(path, "/proc/stat") == 0) {
        return stand_in();
    }
    *(void **)&real = dlsym(RTLD_NEXT, name);
    return real(path, mode);
}

#define SHOWN __attribute__((visibility("default")))

SHOWN FILE *fopen(const char *path, const char *mode) { return open_file("fopen", path, mode); }

SHOWN FILE *fopen64(const char *path, const char *mode) { return open_file("fopen64", path, mode); }
