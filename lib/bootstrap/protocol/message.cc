// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/protocol/message.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/layout_version.h"

#include <algorithm>

#include <unistd.h>

namespace odc {

Hello hello_of_rank(int rank, int size, int64_t remaining_ms) {
    Hello hello{};
    hello.magic = kRendezvousMagic;
    hello.version = layout_version();
    hello.rank = rank;
    hello.size = size;
    hello.pid = getpid();
    hello.remaining_ms = remaining_ms;
    return hello;
}

bool begins_hello(std::string_view bytes) {
    const std::string_view magic = bytes_of(kRendezvousMagic);
    return bytes.size() <= sizeof(Hello) && bytes.substr(0, magic.size()) == magic.substr(0, bytes.size());
}

void check_hello(const Hello &hello, const Hello &server) {
    if (hello.version != server.version) {
        fail(ODC_ERROR_RENDEZVOUS,
             "{} uses version {} of libodc's shared layout, {} version {}; give all ranks the same libodc", who(hello),
             hello.version, who(server), server.version);
    }
    if (hello.size != server.size) {
        fail(ODC_ERROR_RENDEZVOUS, "{} says that the job has {} ranks, {} says {}; start all with one size", who(hello),
             hello.size, who(server), server.size);
    }
}

bool is_reply(const Reply &reply, size_t most_payload) {
    return reply.magic == kRendezvousMagic && reply.bytes <= std::max(kMaxSentence, most_payload);
}

std::string who(const Hello &hello) {
    std::string host;
    for (const char c : hello.host) {
        if (c == '\0') {
            break;
        }
        host += c > ' ' && c <= '~' ? c : '?';
    }
    return formatted("rank {} (pid {}{}{})", hello.rank, hello.pid, host.empty() ? "" : " on ", host);
}

}  // namespace odc
