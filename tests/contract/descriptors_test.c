/* SPDX-License-Identifier: Apache-2.0 */
/* A job's descriptors: a program started by exec inherits none, and no peer can resize the memory that it shares. */
#include "model.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST = 1024 };

static int is_open[MOST];

static void find_open(void) {
    for (int fd = 0; fd < MOST; ++fd) {
        is_open[fd] = fcntl(fd, F_GETFD) >= 0;
    }
}

static void check_descriptors(int rank, int size, const char *job, void *arg) {
    int memories = 0;
    (void)arg;
    find_open();
    odc_context *context = join(rank, size, job);
    tensor t = make_tensor(context, "layer", 5000000, ODC_F32, ODC_F32);
    use_once(context, &t, 1, 3);
    for (int fd = 0; fd < MOST; ++fd) {
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0 || is_open[fd]) {
            continue;
        }
        char path[64];
        char target[256] = {0};
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        CHECK(readlink(path, target, sizeof target - 1) > 0);
        CHECK((flags & FD_CLOEXEC) != 0);
        CHECK(strstr(target, "socket:") == NULL);
        if (strstr(target, "memfd:odc") != NULL) {
            ++memories;
            CHECK((fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) ==
                  (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
            CHECK(ftruncate(fd, 4096) != 0);
        }
    }
    CHECK_EQUAL(memories, size);
    CHECK_OK(odc_publish_all(context, NULL)); /* nobody leaves while another still looks */
    CHECK_OK(odc_minibatch_sync(context));
    odc_destroy(context);
    for (int fd = 0; fd < MOST; ++fd) {
        CHECK_EQUAL(fcntl(fd, F_GETFD) >= 0, is_open[fd]);
    }
}

static void descriptors_are_closed_on_exec_sealed_and_closed_in_the_end(void **state) {
    (void)state;
    needs_processes("it looks at all of a process's descriptors");
    run_processes(3, check_descriptors, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_are_closed_on_exec_sealed_and_closed_in_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
