// SPDX-License-Identifier: Apache-2.0
// Meeting where the C API does not look: what a resolver says, an address that is half taken, several rounds, and a rank
// that goes away after the peer infos were exchanged and before memory is shared.
#include "base/program.h"
#include "base/tcp_socket.h"
#include "bootstrap/allgather.h"
#include "bootstrap/local/rendezvous.h"
#include "bootstrap/tcp_protocol.h"

#include <atomic>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

extern "C" {
#include <cmocka.h>
}

#include "held_port.h"

using namespace odc;

namespace {

constexpr int64_t kLongMs = 60'000;  // far from any delay of a busy machine: what waits this long has failed
const std::string kSecret = "the secret";

std::atomic<int> questions = 0;  // that the resolver was asked

int ask(const char *host, const char *port, const addrinfo *hints, addrinfo **list) {
    static const auto next = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
    return next(host, port, hints, list);
}

}  // namespace

// The resolver of this test: "twice.test" has one address, said twice (as glibc does when /etc/hosts does), "half.test" two.
extern "C" int getaddrinfo(const char *host, const char *port, const addrinfo *hints, addrinfo **list) {
    ++questions;
    const std::string name = host;
    if (name != "twice.test" && name != "half.test") {
        return ask(host, port, hints, list);
    }
    const int error = ask(name == "half.test" ? "127.0.0.2" : "127.0.0.1", port, hints, list);
    return error != 0 ? error : ask("127.0.0.1", port, hints, &(*list)->ai_next);
}

namespace {

PeerInfo peer_info_of(int rank) {
    PeerInfo info{};
    info[0] = static_cast<std::byte>(rank + 1);
    return info;
}

// What a rank ended with: "" or its error's words.
std::string words_of(const std::function<void()> &what) {
    try {
        what();
    } catch (const Error &error) {
        return error.what();
    }
    return "";
}

void check_words(const std::string &words, const char *first, const char *second) {
    if (words.find(first) == std::string::npos || words.find(second) == std::string::npos) {
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", words.c_str(), first, second);
    }
}

// Ranks as threads, each with its words.
std::vector<std::string> run_ranks(int size, const std::function<void(int rank)> &rank_fn) {
    std::vector<std::string> words(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] { words[static_cast<size_t>(rank)] = words_of([&] { rank_fn(rank); }); });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    return words;
}

void test_address_said_twice(void **) {
    const HeldPort place;
    std::string why;
    assert_int_equal(resolve({"", "twice.test", place.port}, &why).size(), 1);
    const auto words = run_ranks(2, [&](int rank) {
        const Deadline deadline(kLongMs, nullptr, nullptr);
        const auto exchange = exchange_tcp("twice.test:" + place.port, kSecret, rank, 2, deadline);
        if (exchange->all_gather(peer_info_of(rank)) != std::vector<PeerInfo>{peer_info_of(0), peer_info_of(1)}) {
            throw Error(ODC_ERROR_INTERNAL, "these are not the cards");
        }
    });
    assert_string_equal((words[0] + words[1]).c_str(), "");
}

// Another program listens at one of two addresses: rank 0 visits that one, and not itself at the other.
void test_address_half_taken(void **) {
    const HeldPort place;
    std::string why;
    const Fd taken = listen_at(resolve({"", "127.0.0.1", place.port}, &why).at(0));
    assert_true(taken.valid());
    std::atomic<bool> over = false;
    std::thread program([&] {
        std::vector<Fd> visitors;
        while (!over) {
            pollfd entry{taken.get(), POLLIN, 0};
            poll(&entry, 1, 10);
            Address from;
            Fd visitor = accept_from(taken.get(), &from);
            if (visitor.valid()) {
                const std::string talk(64, 'x');
                send(visitor.get(), talk.data(), talk.size(), MSG_NOSIGNAL);
                visitors.push_back(std::move(visitor));
            }
        }
    });
    const std::string words = words_of([&] {
        const Deadline deadline(kLongMs, nullptr, nullptr);
        exchange_tcp("half.test:" + place.port, kSecret, 0, 2, deadline)->all_gather(peer_info_of(0));
    });
    over = true;
    program.join();
    check_words(words, "127.0.0.1:", "is not rank 0 of a libodc job");
}

// A slow machine has more seconds, and so more questions; never more than one in each.
void test_resolver_is_asked_seldom(void **) {
    const HeldPort place;
    const int before = questions;
    const int64_t begin_ns = now_ns();
    const std::string words = words_of([&] {
        const Deadline deadline(1500, nullptr, nullptr);
        exchange_tcp("twice.test:" + place.port, kSecret, 1, 2, deadline)->all_gather(peer_info_of(1));
    });
    const int64_t seconds = (now_ns() - begin_ns) / 1'000'000'000;
    check_words(words, "missing: rank 0", "refused");
    assert_in_range(questions - before, 1, 1 + seconds);
}

// Whoever goes away after the peer infos were exchanged is missed at once, not at the deadline.
void test_gone_after_the_cards(void **) {
    for (int gone = 0; gone < 3; ++gone) {
        const HeldPort place;
        const std::string name = "exchange-test-" + std::to_string(getpid()) + "-" + std::to_string(gone);
        const auto words = run_ranks(3, [&](int rank) {
            const Deadline deadline(kLongMs, nullptr, nullptr);
            const auto exchange = exchange_tcp("127.0.0.1:" + place.port, kSecret, rank, 3, deadline);
            exchange->all_gather(peer_info_of(rank));
            if (rank != gone) {
                const Fd memory(memfd_create("test", MFD_CLOEXEC));
                const Program program;
                meet({name, {0, 1, 2}, rank, 3, exchange->liveness_fds(), {}}, {memory.get(), program.fd(), -1},
                     deadline);
            }
        });
        for (size_t rank = 0; rank < words.size(); ++rank) {
            if (rank == static_cast<size_t>(gone)) {
                assert_string_equal(words[rank].c_str(), "");
            } else if (rank == 0) {
                check_words(words[rank], ("rank " + std::to_string(gone)).c_str(), "died, gave up or replaced");
            } else {
                check_words(words[rank], "rank ", "died, gave up or replaced");  // rank 0's words, or that it has gone
            }
        }
    }
}

PeerInfo card_of_round(int rank, int round) {
    PeerInfo info = peer_info_of(rank);
    info.back() = static_cast<std::byte>(round);
    return info;
}

void test_rounds(void **) {
    constexpr int kSize = 5;
    constexpr int kRounds = 4;
    const HeldPort place;
    const auto words = run_ranks(kSize, [&](int rank) {
        const Deadline deadline(kLongMs, nullptr, nullptr);
        const auto exchange = exchange_tcp("127.0.0.1:" + place.port, kSecret, rank, kSize, deadline);
        for (int round = 1; round <= kRounds; ++round) {
            std::vector<PeerInfo> expected;
            for (int of = 0; of < kSize; ++of) {
                expected.push_back(card_of_round(of, round));
            }
            if (exchange->all_gather(card_of_round(rank, round)) != expected) {
                throw Error(ODC_ERROR_INTERNAL, say("these are not the cards of round ", round));
            }
        }
    });
    for (const std::string &one : words) {
        assert_string_equal(one.c_str(), "");
    }
}

// One rank does not come to the second round: it goes, says why and goes, or says why and stays. Those that wait beside the exchange see it at their
// liveness descriptor, and read the same in the round.
void test_no_second_round(void **) {
    constexpr int kSize = 4;
    const PeerInfo join_error = join_error_of(Error(ODC_ERROR_SYSTEM, "no more files"));
    for (int variant = 0; variant < 3 * kSize; ++variant) {
        const int gone = variant % kSize;
        const bool says_why = variant >= kSize;
        const bool stays = variant >= 2 * kSize;
        const HeldPort place;
        const auto words = run_ranks(kSize, [&](int rank) {
            const Deadline deadline(kLongMs, nullptr, nullptr);
            const auto exchange = exchange_tcp("127.0.0.1:" + place.port, kSecret, rank, kSize, deadline);
            exchange->all_gather(peer_info_of(rank));
            if (rank == gone && stays) {
                exchange->all_gather(join_error);
            }
            if (rank == gone) {
                return says_why ? exchange->leave(join_error) : void();
            }
            if (rank == 3) {
                pollfd entry{exchange->liveness_fds()[0], POLLIN, 0};
                if (poll(&entry, 1, 30'000) != 1) {
                    throw Error(ODC_ERROR_INTERNAL, "nothing came at the tie");
                }
            }
            exchange->all_gather(peer_info_of(rank));
        });
        for (int rank = 0; rank < kSize; ++rank) {
            if (rank != gone) {
                check_words(words[static_cast<size_t>(rank)], ("rank " + std::to_string(gone)).c_str(),
                            says_why ? "cannot join: no more files" : "died, gave up or replaced");
            }
        }
    }
}

// Of a rank that only met with a failure and the one that failed, the words of the latter are everybody's.
void test_telling_regret(void **) {
    const PeerInfo met = join_error_of(Error(ODC_ERROR_RENDEZVOUS, "rank 2 gave up"));
    const PeerInfo failed = join_error_of(Error(ODC_ERROR_INTERRUPTED, "interrupted"));
    check_words(words_of([&] {
                    check_join_errors({peer_info_of(0), met, failed});
                }),
                "rank 2 cannot join", "interrupted");
    check_words(words_of([&] {
                    check_join_errors({peer_info_of(0), met, peer_info_of(2)});
                }),
                "rank 1 cannot join", "rank 2 gave up");
    assert_string_equal(words_of([&] { check_join_errors({peer_info_of(0), PeerInfo{}}); }).c_str(), "");
}

}  // namespace

int main() {
    if (sodium_init() < 0) {
        return 1;
    }
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_address_said_twice),
        cmocka_unit_test(test_address_half_taken),
        cmocka_unit_test(test_resolver_is_asked_seldom),
        cmocka_unit_test(test_gone_after_the_cards),
        cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_no_second_round),
        cmocka_unit_test(test_telling_regret),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
