/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the C library's functions by which libfabric's tcp provider sends, because the test is linked first. */
#include "stalling_link.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RETRY_US = 1000 }; /* libfabric polls for room, which the socket itself has */

static stalling_link *_Atomic limited; /* NULL: nothing is */

void limit_link(stalling_link *shared, int64_t bytes) {
    atomic_store(&shared->left, bytes);
    atomic_store(&limited, shared);
}

void restore_link(stalling_link *shared) { atomic_store(&shared->left, INT64_MAX); }

static int goes_to_other_hosts(int fd) {
    int domain = 0;
    socklen_t bytes = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_INET;
}

static int has_stalled(int fd) {
    stalling_link *taken = atomic_load(&limited);
    if (taken == NULL || atomic_load(&taken->left) > 0 || !goes_to_other_hosts(fd)) {
        return 0;
    }
    atomic_store(&taken->stalled, 1);
    usleep(RETRY_US);
    errno = EAGAIN;
    return 1;
}

static ssize_t count(int fd, ssize_t bytes) {
    stalling_link *taken = atomic_load(&limited);
    if (taken != NULL && bytes > 0 && atomic_load(&taken->left) < INT64_MAX && goes_to_other_hosts(fd)) {
        atomic_fetch_sub(&taken->left, bytes);
    }
    return bytes;
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    ssize_t (*next)(int, const struct msghdr *, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "sendmsg");
    return has_stalled(fd) ? -1 : count(fd, next(fd, message, flags));
}

__attribute__((visibility("default"))) ssize_t send(int fd, const void *from, size_t bytes, int flags) {
    ssize_t (*next)(int, const void *, size_t, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "send");
    return has_stalled(fd) ? -1 : count(fd, next(fd, from, bytes, flags));
}
