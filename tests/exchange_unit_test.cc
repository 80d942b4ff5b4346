// SPDX-License-Identifier: Apache-2.0
// Meeting where the C API does not look: what a resolver says, an address that is half taken, and a rank that goes away
// after the cards were exchanged and before memory is shared.
#include "exchange.h"
#include "handshake.h"
#include "meeting.h"
#include "tcp.h"

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
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

extern "C" {
#include <cmocka.h>
}

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

struct Place {
    Fd holder;  // bound, not listening: no other process is given the port, and rank 0 can still listen there
    std::string port;
};

Place hold_port() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    const int on = 1;
    Place place{Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), ""};
    setsockopt(place.holder.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    auto *any = reinterpret_cast<sockaddr *>(&address);
    assert_int_equal(bind(place.holder.get(), any, bytes), 0);
    assert_int_equal(getsockname(place.holder.get(), any, &bytes), 0);
    place.port = std::to_string(ntohs(address.sin_port));
    return place;
}

Card card_of(int rank) {
    Card card{};
    card[0] = static_cast<std::byte>(rank + 1);
    return card;
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
    const Place place = hold_port();
    std::string why;
    assert_int_equal(resolve({"", "twice.test", place.port}, &why).size(), 1);
    const auto words = run_ranks(2, [&](int rank) {
        const Patience patience(kLongMs, nullptr, nullptr);
        const auto exchange = exchange_tcp("twice.test:" + place.port, kSecret, rank, 2, patience);
        if (exchange->all_gather(card_of(rank)) != std::vector<Card>{card_of(0), card_of(1)}) {
            throw Error(ODC_ERROR_INTERNAL, "these are not the cards");
        }
    });
    assert_string_equal((words[0] + words[1]).c_str(), "");
}

// Another program listens at one of two addresses: rank 0 visits that one, and not itself at the other.
void test_address_half_taken(void **) {
    const Place place = hold_port();
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
        const Patience patience(kLongMs, nullptr, nullptr);
        exchange_tcp("half.test:" + place.port, kSecret, 0, 2, patience)->all_gather(card_of(0));
    });
    over = true;
    program.join();
    check_words(words, "127.0.0.1:", "is not rank 0 of a libodc job");
}

// A slow machine has more seconds, and so more questions; never more than one in each.
void test_resolver_is_asked_seldom(void **) {
    const Place place = hold_port();
    const int before = questions;
    const int64_t begin_ns = now_ns();
    const std::string words = words_of([&] {
        const Patience patience(1500, nullptr, nullptr);
        exchange_tcp("twice.test:" + place.port, kSecret, 1, 2, patience)->all_gather(card_of(1));
    });
    const int64_t seconds = (now_ns() - begin_ns) / 1'000'000'000;
    check_words(words, "missing: rank 0", "refused");
    assert_in_range(questions - before, 1, 1 + seconds);
}

// Whoever goes away after the cards were exchanged is missed at once, not at the deadline.
void test_gone_after_the_cards(void **) {
    for (int gone = 0; gone < 3; ++gone) {
        const Place place = hold_port();
        const std::string name = "exchange-test-" + std::to_string(getpid()) + "-" + std::to_string(gone);
        const auto words = run_ranks(3, [&](int rank) {
            const Patience patience(kLongMs, nullptr, nullptr);
            const auto exchange = exchange_tcp("127.0.0.1:" + place.port, kSecret, rank, 3, patience);
            exchange->all_gather(card_of(rank));
            if (rank != gone) {
                const Fd memory(memfd_create("test", MFD_CLOEXEC));
                meet({name, {0, 1, 2}, rank, 3, exchange->ties()}, memory.get(), patience);
            }
        });
        for (size_t rank = 0; rank < words.size(); ++rank) {
            if (rank == static_cast<size_t>(gone)) {
                assert_string_equal(words[rank].c_str(), "");
            } else if (rank == 0) {
                check_words(words[rank], ("rank " + std::to_string(gone)).c_str(), "died or gave up");
            } else {
                check_words(words[rank], "rank ", "died or gave up");  // rank 0's words, or that it has gone
            }
        }
    }
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
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
