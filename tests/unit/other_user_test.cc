// SPDX-License-Identifier: Apache-2.0
// A rank of another user who knows a job's name is refused, on either side. Needs root, to become another user; linked
// statically to replace geteuid(), which is part of the name.
#include <odc/odc.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
#include <cmocka.h>
uid_t geteuid() { return 0; }
}

namespace {

constexpr uid_t kNobody = 65534;

odc_status join(const char *job, int32_t rank, int64_t timeout_ms) {
    odc_config config{};
    config.struct_size = sizeof(config);
    config.rank = rank;
    config.size = 2;
    config.job = job;
    config.timeout_ms = timeout_ms;
    odc_context *context = nullptr;
    const odc_status status = odc_init(&config, &context);
    odc_destroy(context);
    return status;
}

// This process is `rank`, another user's process is the other one. Returns the error text of this one.
const char *meet_nobody(int32_t rank, int64_t timeout_ms) {
    char job[64];
    std::snprintf(job, sizeof(job), "other-user-%d-%d", getpid(), rank);
    const pid_t child = fork();
    if (child == 0) {
        _exit(setuid(kNobody) != 0 || join(job, 1 - rank, 20000) == ODC_OK);
    }
    assert_int_equal(join(job, rank, timeout_ms), ODC_ERROR_RENDEZVOUS);
    kill(child, SIGKILL);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return odc_last_error();
}

void needs_root() {
    if (getuid() != 0) {
        std::puts("skipped: only root can become another user");
        skip();
    }
}

void another_user_is_turned_away(void **) {
    needs_root();
    const char *sentence = meet_nobody(0, 2000);
    for (int64_t longer = 4000; longer < 40000 && std::strstr(sentence, "turned away") == nullptr; longer *= 2) {
        sentence = meet_nobody(0, longer);  // a busy machine delayed the other rank
    }
    std::puts(sentence);
    assert_non_null(std::strstr(sentence, "missing: rank 1"));
    assert_non_null(std::strstr(sentence, "turned away"));
}

void another_users_job_is_not_joined(void **) {
    needs_root();
    const char *sentence = meet_nobody(1, 20000);
    std::puts(sentence);
    assert_non_null(std::strstr(sentence, "belongs to user 65534"));
}

// Another user holds the name of rank 0's socket. Returns, in that user's process, whether rank 0 sent it anything.
bool receives_nothing(int listener, int told) {
    char byte = 1;
    pollfd entry{listener, POLLIN, 0};
    if (setuid(kNobody) != 0 || write(told, &byte, 1) != 1 || poll(&entry, 1, 20000) != 1) {
        return false;
    }
    const int peer = accept(listener, nullptr, nullptr);
    entry.fd = peer;
    alignas(cmsghdr) char control[256];
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    return peer >= 0 && poll(&entry, 1, 20000) == 1 && recvmsg(peer, &message, 0) <= 0 && message.msg_controllen == 0;
}

void a_socket_that_another_user_holds_is_sent_nothing(void **) {
    needs_root();
    char job[64];
    std::snprintf(job, sizeof(job), "other-user-%d-squat", getpid());
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        const int length = std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "odc-0-%s", job);
        const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
        // The kernel reports the credentials of the process that called listen().
        const bool bound = bind(listener, reinterpret_cast<sockaddr *>(&address), bytes) == 0 && setuid(kNobody) == 0 &&
                           listen(listener, 8) == 0;
        _exit(!bound || !receives_nothing(listener, ends[1]));
    }
    char byte = 0;
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(join(job, 0, 20000), ODC_ERROR_RENDEZVOUS);
    std::puts(odc_last_error());
    assert_non_null(std::strstr(odc_last_error(), "belongs to user 65534"));
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(ends[0]);
    close(ends[1]);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(another_user_is_turned_away),
        cmocka_unit_test(another_users_job_is_not_joined),
        cmocka_unit_test(a_socket_that_another_user_holds_is_sent_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
