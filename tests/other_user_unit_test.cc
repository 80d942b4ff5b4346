// SPDX-License-Identifier: Apache-2.0
// Another user who finds out a job's name is not let in, on either side. Only root can be two users; linked statically,
// so that geteuid(), from which the name is made, can be replaced.
#include <odc/odc.h>
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

// This process is `rank`, another user is the other one. Returns what this one reads.
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
        sentence = meet_nobody(0, longer);  // a busy machine kept the other from coming
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

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(another_user_is_turned_away),
        cmocka_unit_test(another_users_job_is_not_joined),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
