// SPDX-License-Identifier: Apache-2.0
// Attacks on, and violations of, the TCP rendezvous protocol: another protocol version, a proof replayed from another session,
// a rank 0 that does not know the secret or changes what it sent.
#include "bootstrap/tcp_protocol.h"
#include "base/tcp_socket.h"
#include "bootstrap/allgather.h"
#include "bootstrap/tcp_server.h"

#include <array>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

extern "C" {
#include <cmocka.h>
}

using namespace odc;

namespace {

const std::string kSecret = "the secret";
const PeerInfo kPeerInfo{};

struct NicAddress {
    Fd listener;
    std::string text;
};

// Listens on a free port of this host.
NicAddress free_port() {
    std::string why;
    Address address = resolve({"", "127.0.0.1", "1"}, &why).at(0);
    reinterpret_cast<sockaddr_in *>(&address.storage)->sin_port = 0;
    NicAddress port{listen_at(address), ""};
    assert_true(port.listener.valid());
    assert_true(getsockname(port.listener.get(), reinterpret_cast<sockaddr *>(&address.storage), &address.bytes) == 0);
    port.text = address.host_port();
    return port;
}

void await(int fd, short event) {
    pollfd entry{fd, event, 0};
    assert_true(poll(&entry, 1, 10000) == 1);
}

template <class Message>
Message hear(int fd) {
    Message message{};
    auto *at = reinterpret_cast<char *>(&message);
    for (size_t got = 0; got < sizeof(message);) {
        await(fd, POLLIN);
        const ssize_t now = recv(fd, at + got, sizeof(message) - got, 0);
        assert_true(now > 0);
        got += static_cast<size_t>(now);
    }
    return message;
}

template <class Message>
void tell(int fd, const Message &message) {
    assert_true(send(fd, &message, sizeof(message), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(message)));
}

bool closes(int fd) {
    char byte = 0;
    await(fd, POLLIN);
    return recv(fd, &byte, 1, 0) <= 0;
}

Entry entry_of(const Mac &session, uint32_t round) { return {entry_mac(session, round, kPeerInfo), kPeerInfo}; }

struct Outcome {
    odc_status status = ODC_OK;
    std::string error;
};

Outcome outcome_of(const std::function<void()> &what) {
    try {
        what();
    } catch (const Error &error) {
        return {error.status(), error.what()};
    }
    return {};
}

// Rank 0 of 2 and its outcome, while `client` talks to it.
Outcome receive(int64_t timeout_ms, const std::function<void(int fd)> &client) {
    NicAddress port = free_port();
    port.listener = Fd();
    const HostPort endpoint = parse_endpoint(port.text);
    const Deadline deadline(timeout_ms, nullptr, nullptr);
    RendezvousServer server(endpoint, kSecret, "host", 2, deadline);
    assert_true(server.open().empty());
    std::string why;
    const Fd fd = connect_to(resolve(endpoint, &why).at(0));
    await(fd.get(), POLLOUT);
    Outcome outcome;
    std::thread host([&] { outcome = outcome_of([&] { server.all_gather(kPeerInfo); }); });
    client(fd.get());
    host.join();
    return outcome;
}

void visit_as_rank_1(const NicAddress &port) {
    const Deadline deadline(10000, nullptr, nullptr);
    make_allgather_tcp(port.text, kSecret, "host", 1, 2, deadline)->all_gather(kPeerInfo);
}

// Rank 1 of 2 and its outcome, while `answer` plays rank 0.
Outcome join_as_rank_1(const std::function<void(int fd)> &answer) {
    const NicAddress port = free_port();
    Outcome outcome;
    std::thread rank([&] { outcome = outcome_of([&] { visit_as_rank_1(port); }); });
    await(port.listener.get(), POLLIN);
    Address from;
    {
        const Fd fd = accept_from(port.listener.get(), &from);
        answer(fd.get());
        rank.join();
    }
    return outcome;
}

void check_text(const Outcome &outcome, odc_status status, const char *first, const char *second) {
    if (outcome.status != status || outcome.error.find(first) == std::string::npos ||
        outcome.error.find(second) == std::string::npos) {
        fail_msg("ended with %d, without \"%s\" or \"%s\": %s", outcome.status, first, second, outcome.error.c_str());
    }
}

void test_other_version(void **) {
    std::string told;
    const Outcome outcome = receive(10000, [&](int fd) {
        Hello hello = hello_of("host", 1, 2, 10000);
        hello.version = 99;
        tell(fd, hello);
        const auto challenge = hear<Challenge>(fd);
        tell(fd, Proof{proof_mac(kSecret, hello, challenge)});
        const auto reply = hear<Reply>(fd);
        assert_true(reply.kind == ReplyKind::kFailed);
        for (uint32_t i = 0; i < reply.bytes; ++i) {
            told += hear<char>(fd);
        }
        assert_true(same_mac(reply.mac, reply_mac(session_key(kSecret, hello, challenge), 1, reply.kind, told)));
    });
    check_text(outcome, ODC_ERROR_RENDEZVOUS, "version 99", "rank 1 (pid");
    assert_true(told == outcome.error);
}

// All that a rank proves is under its MAC, and a proof is not valid in another session.
void test_proof_of_something_else(void **) {
    for (int variant = 0; variant < 4; ++variant) {
        const Outcome outcome = receive(600, [&](int fd) {
            Hello said = hello_of("host", 1, 2, 600);
            tell(fd, said);
            auto challenge = hear<Challenge>(fd);
            if (variant == 0) {
                said.rank = 0;
            }
            if (variant == 1) {
                said.size = 3;
            }
            if (variant == 2) {
                said.nonce = random_nonce();
            }
            if (variant == 3) {
                challenge.nonce = random_nonce();
            }
            tell(fd, Proof{proof_mac(kSecret, said, challenge)});
            const auto reply = hear<Reply>(fd);
            assert_true(reply.kind == ReplyKind::kRefused);
            assert_true(closes(fd));
        });
        check_text(outcome, ODC_ERROR_RENDEZVOUS, "missing: rank 1", "wrong secret");
    }
}

// Rank 0 never sends anything that would serve as a rank's proof.
void test_messages_of_rank_0_are_not_a_proof(void **) {
    const Hello hello = hello_of("host", 1, 2, 1000);
    const Challenge challenge{kRendezvousMagic, random_nonce()};
    assert_true(!same_mac(proof_mac(kSecret, hello, challenge), session_key(kSecret, hello, challenge)));
}

void test_rank_0_without_the_secret(void **) {
    for (const ReplyKind kind : {ReplyKind::kWelcome, ReplyKind::kInfos, ReplyKind::kFailed}) {
        const Outcome outcome = join_as_rank_1([&](int fd) {
            const auto hello = hear<Hello>(fd);
            const Challenge challenge{kRendezvousMagic, random_nonce()};
            tell(fd, challenge);
            hear<Proof>(fd);
            hear<Entry>(fd);
            tell(fd,
                 Reply{kRendezvousMagic, kind, 0, reply_mac(session_key("a guess", hello, challenge), 1, kind, "")});
        });
        check_text(outcome, ODC_ERROR_RENDEZVOUS, "rank 0 at 127.0.0.1:", "does not know the secret");
    }
}

void test_modified_peer_infos(void **) {
    const Outcome outcome = join_as_rank_1([&](int fd) {
        const auto hello = hear<Hello>(fd);
        const Challenge challenge{kRendezvousMagic, random_nonce()};
        tell(fd, challenge);
        hear<Proof>(fd);
        hear<Entry>(fd);
        const Mac session = session_key(kSecret, hello, challenge);
        tell(fd, Reply{kRendezvousMagic, ReplyKind::kWelcome, 0, reply_mac(session, 1, ReplyKind::kWelcome, "")});
        std::string infos(2 * sizeof(PeerInfo), 'a');
        const auto bytes = static_cast<uint32_t>(infos.size());
        tell(fd, Reply{kRendezvousMagic, ReplyKind::kInfos, bytes, reply_mac(session, 1, ReplyKind::kInfos, infos)});
        infos[300] = 'b';
        assert_true(send(fd, infos.data(), infos.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(infos.size()));
    });
    check_text(outcome, ODC_ERROR_RENDEZVOUS, "rank 0 at 127.0.0.1:", "does not know the secret");
}

// A length that would make a rank allocate any amount of memory.
void test_endless_reply(void **) {
    const Outcome outcome = join_as_rank_1([&](int fd) {
        hear<Hello>(fd);
        tell(fd, Challenge{kRendezvousMagic, random_nonce()});
        hear<Proof>(fd);
        hear<Entry>(fd);
        tell(fd, Reply{kRendezvousMagic, ReplyKind::kFailed, UINT32_MAX, {}});
    });
    check_text(outcome, ODC_ERROR_RENDEZVOUS, "127.0.0.1:", "not rank 0");
}

// A rank that loses its connection before the welcome connects again.
void test_second_try(void **) {
    const NicAddress port = free_port();
    Outcome outcome{ODC_ERROR_INTERNAL, ""};
    std::thread rank([&] { outcome = outcome_of([&] { visit_as_rank_1(port); }); });
    for (int time = 0; time < 2; ++time) {
        await(port.listener.get(), POLLIN);
        Address from;
        const Fd fd = accept_from(port.listener.get(), &from);
        const auto hello = hear<Hello>(fd.get());
        if (time == 0) {
            continue;
        }
        const Challenge challenge{kRendezvousMagic, random_nonce()};
        tell(fd.get(), challenge);
        hear<Proof>(fd.get());
        hear<Entry>(fd.get());
        const Mac session = session_key(kSecret, hello, challenge);
        tell(fd.get(), Reply{kRendezvousMagic, ReplyKind::kWelcome, 0, reply_mac(session, 1, ReplyKind::kWelcome, "")});
        const std::string infos(2 * sizeof(PeerInfo), 'a');
        const auto bytes = static_cast<uint32_t>(infos.size());
        tell(fd.get(),
             Reply{kRendezvousMagic, ReplyKind::kInfos, bytes, reply_mac(session, 1, ReplyKind::kInfos, infos)});
        assert_true(send(fd.get(), infos.data(), infos.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(infos.size()));
        tell(fd.get(), Reply{kRendezvousMagic, ReplyKind::kMet, 0, reply_mac(session, 1, ReplyKind::kMet, "")});
    }
    rank.join();
    if (outcome.status != ODC_OK) {
        fail_msg("%s", outcome.error.c_str());
    }
}

// Rank 0 of 2 and its outcome when rank 1, which has joined, sends something other than its second peer info.
Outcome receive_again(const std::function<void(int fd, const Mac &session)> &speak) {
    NicAddress port = free_port();
    port.listener = Fd();
    const HostPort endpoint = parse_endpoint(port.text);
    const Deadline deadline(10000, nullptr, nullptr);
    RendezvousServer server(endpoint, kSecret, "host", 2, deadline);
    assert_true(server.open().empty());
    std::string why;
    const Fd fd = connect_to(resolve(endpoint, &why).at(0));
    await(fd.get(), POLLOUT);
    Outcome outcome;
    std::thread host([&] {
        outcome = outcome_of([&] {
            server.all_gather(kPeerInfo);
            server.all_gather(kPeerInfo);
        });
    });
    const Hello hello = hello_of("host", 1, 2, 10000);
    tell(fd.get(), hello);
    const auto challenge = hear<Challenge>(fd.get());
    const Mac session = session_key(kSecret, hello, challenge);
    tell(fd.get(), Proof{proof_mac(kSecret, hello, challenge)});
    tell(fd.get(), entry_of(session, 1));
    hear<Reply>(fd.get());
    hear<Reply>(fd.get());
    hear<std::array<PeerInfo, 2>>(fd.get());
    hear<Reply>(fd.get());
    speak(fd.get(), session);
    shutdown(fd.get(), SHUT_WR);
    host.join();
    return outcome;
}

// An entry of another round or session, a modified one, one and a half.
void test_invalid_second_peer_info(void **) {
    for (int variant = 0; variant < 4; ++variant) {
        const Outcome outcome = receive_again([&](int fd, const Mac &session) {
            Entry entry = entry_of(session, variant == 0 ? 1 : 2);
            if (variant == 1) {
                entry = entry_of(Mac{}, 2);
            }
            if (variant == 2) {
                entry.info[1000] = std::byte{1};
            }
            if (variant < 3) {
                return tell(fd, entry);
            }
            std::array<char, sizeof(entry) + 9> long_entry{};
            std::memcpy(long_entry.data(), &entry, sizeof(entry));
            tell(fd, long_entry);
        });
        check_text(outcome, ODC_ERROR_RENDEZVOUS, "rank 1 (pid", "round 2 of odc_init is not its entry");
    }
    const Outcome outcome = receive_again([](int fd, const Mac &session) {
        tell(fd, entry_of(session, 2));
        hear<Reply>(fd);
        hear<std::array<PeerInfo, 2>>(fd);
        hear<Reply>(fd);
    });
    check_text(outcome, ODC_OK, "", "");
}

void test_garbage_as_second_peer_info(void **) {
    const auto seed = static_cast<unsigned>(time(nullptr));
    std::printf("%s: seed %u\n", __func__, seed);
    std::mt19937 random(seed);
    for (int time = 0; time < 40; ++time) {
        std::string garbage(random() % (2 * sizeof(Entry)), '\0');
        for (char &c : garbage) {
            c = static_cast<char>(random());
        }
        const Outcome outcome = receive_again(
            [&](int fd, const Mac &) { assert_true(send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL) >= 0); });
        check_text(
            outcome, ODC_ERROR_RENDEZVOUS, "rank 1 (pid",
            garbage.size() < sizeof(Entry) ? "died, gave up or replaced" : "round 2 of odc_init is not its entry");
    }
}

// In round 2 rank 0 repeats its message of round 1, or sends garbage.
void test_invalid_second_peer_infos(void **) {
    for (const bool repeats : {true, false}) {
        const NicAddress port = free_port();
        Outcome outcome;
        std::thread rank([&] {
            outcome = outcome_of([&] {
                const Deadline deadline(10000, nullptr, nullptr);
                const auto exchange = make_allgather_tcp(port.text, kSecret, "host", 1, 2, deadline);
                exchange->all_gather(kPeerInfo);
                exchange->all_gather(kPeerInfo);
            });
        });
        await(port.listener.get(), POLLIN);
        Address from;
        const Fd fd = accept_from(port.listener.get(), &from);
        const auto hello = hear<Hello>(fd.get());
        const Challenge challenge{kRendezvousMagic, random_nonce()};
        tell(fd.get(), challenge);
        hear<Proof>(fd.get());
        hear<Entry>(fd.get());
        const Mac session = session_key(kSecret, hello, challenge);
        const std::array<PeerInfo, 2> infos{};
        const auto send_infos = [&] {
            const std::string_view bytes = bytes_of(infos);
            const auto count = static_cast<uint32_t>(bytes.size());
            tell(fd.get(),
                 Reply{kRendezvousMagic, ReplyKind::kInfos, count, reply_mac(session, 1, ReplyKind::kInfos, bytes)});
            tell(fd.get(), infos);
            tell(fd.get(), Reply{kRendezvousMagic, ReplyKind::kMet, 0, reply_mac(session, 1, ReplyKind::kMet, "")});
        };
        tell(fd.get(), Reply{kRendezvousMagic, ReplyKind::kWelcome, 0, reply_mac(session, 1, ReplyKind::kWelcome, "")});
        send_infos();
        const auto entry = hear<Entry>(fd.get());
        assert_true(same_mac(entry.mac, entry_mac(session, 2, entry.info)));
        if (repeats) {
            send_infos();
        } else {
            tell(fd.get(), std::array<char, 200>{"no reply"});
        }
        rank.join();
        check_text(outcome, ODC_ERROR_RENDEZVOUS, "127.0.0.1:", repeats ? "does not know the secret" : "not rank 0");
    }
}

struct Resetting {
    const Fd *stays;
    Fd *leaves;
    bool done;
};

// As soon as one rank has the peer infos, the other resets its connection.
int reset_after_infos(void *arg) {
    auto *what = static_cast<Resetting *>(arg);
    int ready = 0;
    ioctl(what->stays->get(), FIONREAD, &ready);
    if (!what->done && static_cast<size_t>(ready) > sizeof(Reply)) {
        const linger at_once{1, 0};
        setsockopt(what->leaves->get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        *what->leaves = Fd();
        what->done = true;
        poll(nullptr, 0, 20);  // so that rank 0 probably looks only after the reset
    }
    return 0;
}

// Rank 0 of 3 and its outcome when rank 1 leaves while the peer infos are distributed; what rank 2 receives then.
Outcome reset_while_handing_out(std::string *told) {
    NicAddress port = free_port();
    port.listener = Fd();
    const HostPort endpoint = parse_endpoint(port.text);
    Fd ranks[2];
    Resetting what{&ranks[1], &ranks[0], false};
    const Deadline deadline(10000, reset_after_infos, &what);
    RendezvousServer server(endpoint, kSecret, "host", 3, deadline);
    assert_true(server.open().empty());
    std::string why;
    for (Fd &rank : ranks) {
        rank = connect_to(resolve(endpoint, &why).at(0));
        await(rank.get(), POLLOUT);
    }
    Outcome outcome;
    std::thread host([&] { outcome = outcome_of([&] { server.all_gather(kPeerInfo); }); });
    for (int rank = 1; rank <= 2; ++rank) {
        const int fd = ranks[rank - 1].get();
        const Hello hello = hello_of("host", rank, 3, 10000);
        tell(fd, hello);
        const auto challenge = hear<Challenge>(fd);
        tell(fd, Proof{proof_mac(kSecret, hello, challenge)});
        tell(fd, entry_of(session_key(kSecret, hello, challenge), 1));
    }
    host.join();
    for (char c = 0; recv(ranks[1].get(), &c, 1, 0) == 1;) {
        *told += c;
    }
    return outcome;
}

void test_reset_while_peer_infos_are_distributed(void **) {
    Outcome outcome;
    std::string told;
    for (int tries = 0; tries < 20 && outcome.status == ODC_OK; ++tries) {  // the reset may come too late
        told.clear();
        outcome = reset_while_handing_out(&told);
    }
    check_text(outcome, ODC_ERROR_RENDEZVOUS, "rank 1 (pid", "died, gave up or replaced");
    assert_true(told.find(outcome.error) != std::string::npos);
}

}  // namespace

int main() {
    if (sodium_init() < 0) {
        return 1;
    }
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_proof_of_something_else),
        cmocka_unit_test(test_messages_of_rank_0_are_not_a_proof),
        cmocka_unit_test(test_rank_0_without_the_secret),
        cmocka_unit_test(test_modified_peer_infos),
        cmocka_unit_test(test_endless_reply),
        cmocka_unit_test(test_second_try),
        cmocka_unit_test(test_reset_while_peer_infos_are_distributed),
        cmocka_unit_test(test_invalid_second_peer_info),
        cmocka_unit_test(test_garbage_as_second_peer_info),
        cmocka_unit_test(test_invalid_second_peer_infos),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
