// SPDX-License-Identifier: Apache-2.0
// What ranks on two hosts report when the provider or the system refuses what rank 1 needs in odc_init. The test is linked
// statically and makes the calls fail. Ranks are threads.
#include <odc/odc.h>

#include <pthread.h>
#include <rdma/fabric.h>
#include <signal.h>

#include <cerrno>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "replaced_symbols.h"
#include "thread_job.h"

namespace {

constexpr int kRanks = 2;

enum class Refused { Nothing, Fabric, Thread };
thread_local Refused refused = Refused::Nothing;
decltype(&fi_fabric) real_fabric = nullptr;

int open_fabric(fi_fabric_attr *attributes, fid_fabric **fabric, void *context) {
    return refused == Refused::Fabric ? -FI_EACCES : real_fabric(attributes, fabric, context);
}

}  // namespace

void *replaced_symbol(const char *name, void *found) {
    if (std::strcmp(name, "fi_fabric") == 0) {
        real_fabric = reinterpret_cast<decltype(real_fabric)>(found);
        return reinterpret_cast<void *>(&open_fabric);
    }
    return found;
}

// Called by the C++ library.
extern "C" [[gnu::weak]] decltype(pthread_create) __interceptor_pthread_create;
extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                             void *(*body)(void *), void *arg) {
    static const auto next = next_of("pthread_create", &__interceptor_pthread_create);
    return refused == Refused::Thread ? EAGAIN : next(thread, attributes, body, arg);
}

namespace {

struct Member : ThreadJob::Member {
    odc_status status;  // of odc_init and, where that succeeds, of a sync
    std::string text;
    bool keeps_signals;
};

bool usual_signal_is_heard() {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    return sigismember(&blocked, SIGUSR1) == 0;
}

void run_rank(Member &member, Refused what) {
    odc_context *context = nullptr;
    refused = member.rank == 1 ? what : Refused::Nothing;
    member.status = member.join(&context);
    refused = Refused::Nothing;
    if (member.status == ODC_OK) {
        member.status = odc_minibatch_sync(context);
    }
    member.text = odc_last_error();
    member.keeps_signals = usual_signal_is_heard();
    odc_destroy(context);
}

std::vector<Member> run_job(Refused what) {
    ThreadJob job(kRanks);
    std::vector<Member> members;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
        members.push_back({{&job, rank}, ODC_OK, "", false});
    }
    for (Member &member : members) {
        ranks.emplace_back([&member, what] { run_rank(member, what); });
    }
    for (std::thread &rank : ranks) {
        rank.join();
    }
    return members;
}

void expect_text(const Member &member, odc_status status, const char *text) {
    if (member.status != status || member.text.find(text) == std::string::npos) {
        print_error("rank %d: status %d: %s\n", member.rank, member.status, member.text.c_str());
    }
    assert_int_equal(member.status, status);
    assert_non_null(std::strstr(member.text.c_str(), text));
    assert_true(member.keeps_signals);
}

void works_otherwise() {
    for (const Member &member : run_job(Refused::Nothing)) {
        expect_text(member, ODC_OK, "");
    }
}

void an_endpoint_that_cannot_be_opened_ends_odc_init_on_all_ranks(void **) {
    const std::vector<Member> members = run_job(Refused::Fabric);
    const char *text = "provider tcp;ofi_rxm on lo: fi_fabric: Permission denied";
    expect_text(members[1], ODC_ERROR_SYSTEM, text);
    expect_text(members[0], ODC_ERROR_RENDEZVOUS, text);
    expect_text(members[0], ODC_ERROR_RENDEZVOUS, "odc_init: rank 1 cannot join: ");
    works_otherwise();
}

void a_library_thread_that_cannot_be_started_ends_odc_init(void **) {
    const std::vector<Member> members = run_job(Refused::Thread);
    expect_text(members[1], ODC_ERROR_SYSTEM, "odc_init: the progress thread cannot be started (Resource temporarily");
    expect_text(members[1], ODC_ERROR_SYSTEM, "ulimit -u");
    expect_text(members[0], ODC_ERROR_RENDEZVOUS,
                "odc_init: rank 1 cannot join: odc_init: the progress thread cannot be");
    works_otherwise();
}

}  // namespace

int main() {
    setenv("ODC_INTERFACE", "lo", 1);
    setenv("ODC_PROVIDER", "tcp;ofi_rxm", 1);
    const CMUnitTest tests[] = {
        cmocka_unit_test(an_endpoint_that_cannot_be_opened_ends_odc_init_on_all_ranks),
        cmocka_unit_test(a_library_thread_that_cannot_be_started_ends_odc_init),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
