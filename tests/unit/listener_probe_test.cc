// SPDX-License-Identifier: Apache-2.0
// A probe of a listener ends by a reset: whoever reads from the connection gets an error and no end of file.
#include "transport/fabric/listener_probe.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {
#include <cmocka.h>
}

namespace {

using Answer = odc::ListenerProbe::Answer;

odc::Fd listening(std::vector<std::byte> &name) {
    odc::Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    assert_int_equal(bind(listener.get(), reinterpret_cast<sockaddr *>(&address), bytes), 0);
    assert_int_equal(listen(listener.get(), 1), 0);
    assert_int_equal(getsockname(listener.get(), reinterpret_cast<sockaddr *>(&address), &bytes), 0);
    name.resize(bytes);
    std::memcpy(name.data(), &address, bytes);
    return listener;
}

Answer ask(odc::ListenerProbe &probe) {
    Answer answer = probe.poll();
    for (int tries = 0; answer == Answer::Pending && tries < 30000; ++tries) {
        ::poll(nullptr, 0, 1);
        answer = probe.poll();
    }
    return answer;
}

void an_open_port_is_told_and_its_connection_reset(void **) {
    std::vector<std::byte> name;
    const odc::Fd listener = listening(name);
    {
        odc::ListenerProbe probe(name);
        assert_true(ask(probe) == Answer::Open);
    }
    const odc::Fd accepted(accept(listener.get(), nullptr, nullptr));
    assert_true(accepted.valid());
    char byte;
    assert_int_equal(recv(accepted.get(), &byte, 1, 0), -1);
    assert_int_equal(errno, ECONNRESET);
}

void a_closed_port_refuses(void **) {
    std::vector<std::byte> name;
    listening(name);
    odc::ListenerProbe probe(name);
    assert_true(ask(probe) == Answer::Refused);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(an_open_port_is_told_and_its_connection_reset),
        cmocka_unit_test(a_closed_port_refuses),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
