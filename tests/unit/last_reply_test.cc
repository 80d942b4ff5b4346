// SPDX-License-Identifier: Apache-2.0
// A leader replies and closes; a rank reads the reply though the kernel tells it of the end first, as Linux may. Replaces recvmsg().
#include "bootstrap/local/message.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <string>

namespace {
bool tells_the_end = false;
}

extern "C" {
#include <cmocka.h>
ssize_t recvmsg(int fd, msghdr *message, int flags) {
    if (tells_the_end) {
        tells_the_end = false;
        return 0;
    }
    return syscall(SYS_recvmsg, fd, message, flags);
}
}

namespace {

using odc::Received;

Received receive(int socket, std::string *why) {
    odc::ReplyKind kind{};
    odc::ReceivedPeers peers;
    return odc::receive_reply(socket, &kind, why, &peers);
}

void a_reply_is_read_after_the_end(void **) {
    const odc::Deadline deadline(1000, nullptr, nullptr);
    int ends[2];
    std::string why;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), 0);
    assert_true(receive(ends[0], &why) == Received::Nothing);
    assert_true(odc::send_failure(ends[1], "a reply", deadline));
    close(ends[1]);
    tells_the_end = true;
    assert_true(receive(ends[0], &why) == Received::Message);
    assert_string_equal(why.c_str(), "a reply");
    assert_true(receive(ends[0], &why) == Received::Closed);
    close(ends[0]);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {cmocka_unit_test(a_reply_is_read_after_the_end)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
