// SPDX-License-Identifier: Apache-2.0
// Jobs on several hosts, simulated by config.host: the ranks of a host meet among themselves, and a failure of any rank between
// the two exchanges of peer infos ends odc_init everywhere with an error that names the rank. Linked statically, to replace the
// creation of the local rendezvous' socket, which happens between them.
#include <odc/odc.h>

#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "held_port.h"
#include "topology/host.h"

extern "C" {
#include <cmocka.h>
}

namespace {

constexpr int kRanks = 4;
constexpr int64_t kLongMs = 60'000;  // far beyond any delay of a busy machine: a wait this long has failed

enum class Trouble { kNone, kDies, kFails, kIsInterrupted };
Trouble trouble = Trouble::kNone;  // of this process, in its host's local rendezvous
std::atomic<bool> stop{false};

int interrupted(void *) { return stop ? 1 : 0; }

}  // namespace

extern "C" int socket(int domain, int type, int protocol) {
    static const auto next = reinterpret_cast<decltype(&socket)>(dlsym(RTLD_NEXT, "socket"));
    if (domain == AF_UNIX && trouble == Trouble::kDies) {
        _exit(0);
    }
    if (domain == AF_UNIX && trouble == Trouble::kFails) {
        errno = EMFILE;
        return -1;
    }
    stop = stop || (domain == AF_UNIX && trouble == Trouble::kIsInterrupted);
    return next(domain, type, protocol);
}

// The rank to be interrupted cannot reach its leader before its callback is asked.
extern "C" int connect(int fd, const sockaddr *address, socklen_t bytes) {
    static const auto next = reinterpret_cast<decltype(&connect)>(dlsym(RTLD_NEXT, "connect"));
    if (address->sa_family == AF_UNIX && stop) {
        errno = ECONNREFUSED;
        return -1;
    }
    return next(fd, address, bytes);
}

namespace {

struct Outcome {
    int32_t status;
    char text[1024];
};

std::string route_to(const odc_context *context, int rank) {
    odc_route route{};
    route.struct_size = sizeof(route);
    odc_get_route(context, rank, ODC_HOST_MEMORY, &route);
    return std::string(route.transport) + ": " + route.why;
}

// Runs ranks as processes and returns the outcome of odc_init and, after a reduction, their routes. `hosts`: by rank; NULL:
// none.
std::vector<Outcome> run_ranks(const char *const *hosts, const std::function<void(int rank)> &prepare) {
    const HeldPort at;
    const std::string address = "127.0.0.1:" + at.port;
    constexpr size_t kBytes = kRanks * sizeof(Outcome);
    auto *all =
        static_cast<Outcome *>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    assert_true(all != MAP_FAILED);
    std::vector<pid_t> children;
    for (int rank = 0; rank < kRanks; ++rank) {
        children.push_back(fork());
        if (children.back() == 0) {
            prepare(rank);
            odc_config config{};
            config.struct_size = sizeof(config);
            config.rank = rank;
            config.size = kRanks;
            config.rendezvous = address.c_str();
            config.secret = "the secret";
            config.timeout_ms = kLongMs;
            config.interrupted = interrupted;
            config.host = hosts[rank];
            odc_context *context = nullptr;
            double one = 1;
            Outcome &mine = all[rank];
            mine.status = odc_init(&config, &context);
            mine.status = mine.status == ODC_OK ? odc_all_reduce(context, &one, 1, ODC_SUM) : mine.status;
            if (mine.status == ODC_OK) {
                const std::string next = route_to(context, (rank + 1) % kRanks);
                const std::string local_peer = route_to(context, (rank + 2) % kRanks);
                std::snprintf(mine.text, sizeof(mine.text), "to the next %s; to the one after %s", next.c_str(),
                              local_peer.c_str());
            } else {
                std::snprintf(mine.text, sizeof(mine.text), "%s", odc_last_error());
            }
            odc_destroy(context);
            _exit(mine.status == ODC_OK && one != kRanks);
        }
    }
    for (const pid_t child : children) {
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    const std::vector<Outcome> outcomes(all, all + kRanks);
    munmap(all, kBytes);
    return outcomes;
}

void check(const Outcome &outcome, odc_status status, const std::string &first, const std::string &second) {
    const std::string text = outcome.text;
    if (outcome.status != status || text.find(first) == std::string::npos || text.find(second) == std::string::npos) {
        fail_msg("ended with %d, without \"%s\" or \"%s\": %s", outcome.status, first.c_str(), second.c_str(),
                 outcome.text);
    }
}

void no_trouble(int) {}

void test_one_host_by_name(void **) {
    const char *hosts[kRanks] = {"node 1", "node 1", "node 1", "node 1"};
    for (const Outcome &outcome : run_ranks(hosts, no_trouble)) {
        check(outcome, ODC_OK, "", "");
    }
}

void test_one_host_by_setting(void **) {
    const char *hosts[kRanks] = {nullptr, "node 1", "", nullptr};  // config overrides the environment; "" means not set
    setenv("ODC_HOST_ID", "node 1", 1);
    for (const Outcome &outcome : run_ranks(hosts, no_trouble)) {
        check(outcome, ODC_OK, "", "");
    }
    unsetenv("ODC_HOST_ID");
}

void test_two_hosts(void **) {
    const char *hosts[kRanks] = {"node 1", "node 2", "node 1", "node 2"};
    setenv("ODC_INTERFACE", "lo", 1);
    setenv("ODC_PROVIDER", "tcp;ofi_rxm", 1);  // newer libfabrics have better ones
    for (const Outcome &outcome : run_ranks(hosts, no_trouble)) {
        check(outcome, ODC_OK, "to the next fabric: tcp;ofi_rxm from lo to lo", "to the one after shm: the same host");
    }
    unsetenv("ODC_INTERFACE");
    unsetenv("ODC_PROVIDER");
}

// No value of config.host is equal to "not set", not even this machine's own identity.
void test_this_machine_and_a_name(void **) {
    const std::string name = odc::host_identity();
    const char *hosts[kRanks] = {nullptr, name.c_str(), nullptr, name.c_str()};
    setenv("ODC_INTERFACE", "lo", 1);
    for (const Outcome &outcome : run_ranks(hosts, no_trouble)) {
        check(outcome, ODC_OK, "to the next fabric:", "to the one after shm:");
    }
    unsetenv("ODC_INTERFACE");
}

void test_too_long(void **) {
    const std::string name(64, 'x');
    const char *hosts[kRanks] = {name.c_str(), name.c_str(), name.c_str(), name.c_str()};
    for (const Outcome &outcome : run_ranks(hosts, no_trouble)) {
        check(outcome, ODC_ERROR_ARGUMENT, "config.host has 64 bytes", "at most 63");
    }
}

// Ranks 0 and 1 are one host, 2 and 3 another; 0 and 2 are the leaders.
void test_trouble_between_the_exchanges(void **) {
    const char *hosts[kRanks] = {"node 1", "node 1", "node 2", "node 2"};
    for (const Trouble what : {Trouble::kDies, Trouble::kFails, Trouble::kIsInterrupted}) {
        for (int victim = 0; victim < kRanks; ++victim) {
            const auto outcomes = run_ranks(hosts, [&](int rank) { trouble = rank == victim ? what : Trouble::kNone; });
            for (int rank = 0; rank < kRanks; ++rank) {
                const Outcome &outcome = outcomes[static_cast<size_t>(rank)];
                if (rank != victim) {
                    assert_null(std::strstr(outcome.text, "waited"));
                    check(outcome, ODC_ERROR_RENDEZVOUS, "rank " + std::to_string(victim), "");
                } else if (what == Trouble::kFails) {
                    check(outcome, ODC_ERROR_SYSTEM, "socket for odc_init", "");
                } else if (what == Trouble::kIsInterrupted) {
                    check(outcome, ODC_ERROR_INTERRUPTED, "interrupted", "");
                }
            }
        }
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_one_host_by_name), cmocka_unit_test(test_one_host_by_setting),
        cmocka_unit_test(test_two_hosts),        cmocka_unit_test(test_this_machine_and_a_name),
        cmocka_unit_test(test_too_long),         cmocka_unit_test(test_trouble_between_the_exchanges),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
