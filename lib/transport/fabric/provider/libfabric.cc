// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/provider/libfabric.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/dynamic_library.h"
#include "base/error.h"
#include "base/fork_gate.h"
#include "base/thread.h"

namespace odc {

namespace {

// Blocks signals on this thread, and restores all signal dispositions at the end, before it unblocks them.
class PreserveSignals {
public:
    PreserveSignals() {
        for (int number = 1; number < NSIG; ++number) {
            known_[static_cast<size_t>(number)] = sigaction(number, nullptr, &at(number)) == 0;
        }
    }
    ~PreserveSignals() {
        for (int number = 1; number < NSIG; ++number) {
            struct sigaction now = {};
            if (known_[static_cast<size_t>(number)] && sigaction(number, nullptr, &now) == 0 &&
                now.sa_sigaction != at(number).sa_sigaction) {
                sigaction(number, &at(number), nullptr);
            }
        }
    }
    PreserveSignals(const PreserveSignals &) = delete;
    PreserveSignals &operator=(const PreserveSignals &) = delete;

private:
    struct sigaction &at(int number) {
        return before_[static_cast<size_t>(number)];
    }

    const BlockSignals block_;
    std::array<struct sigaction, NSIG> before_ = {};
    std::array<bool, NSIG> known_ = {};
};

// Dependencies of libfabric may install signal handlers when they are loaded: libinfinipath does for SIGINT, SIGTERM, SIGSEGV
// and others, and calls exit() in its handler, which can hang.
DynamicLibrary load() {
    const PreserveSignals preserve;
    return DynamicLibrary(libraries::kFabric);
}

// The thread that has called exit(), whose handlers may still call libfabric. exit() waits for threads in fi_getinfo, which
// takes 0.3 s: libfabric's destructor frees what they use.
constinit std::atomic<pid_t> exiting = 0;
constexpr int kMostMs = 5000;  // that it waits

class Asking {
public:
    Asking() {
        if (const pid_t thread = exiting.load(); thread != 0 && thread != gettid()) {
            fail(ODC_ERROR_UNSUPPORTED, "the process is ending, and libfabric with it");
        }
    }

private:
    const ForkSection here_{Locks::Libfabric};
};

// Runs before libfabric's destructors and those of what it depends on, because it is registered after they are loaded; and,
// registered with libodc, also where exit() begins before that.
void await_asking() {
    if (exiting.exchange(gettid()) == 0) {
        for (int ms = 0; ms < kMostMs && others_in_section(Locks::Libfabric); ++ms) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
}

__attribute__((constructor)) void register_handlers() {
    std::atexit(await_asking);
    pthread_atfork(nullptr, nullptr, [] { exiting.store(0); });
}

struct Loaded {
    Libfabric functions;
    std::string why_not;

    // By symbol version: these versions of a newer libfabric use the structs of the headers that this is compiled with.
    Loaded() {
        const Asking here;
        DynamicLibrary library = load();
        library.find(functions.getinfo, "fi_getinfo", "FABRIC_1.3");
        library.find(functions.freeinfo, "fi_freeinfo", "FABRIC_1.3");
        library.find(functions.dupinfo, "fi_dupinfo", "FABRIC_1.3");
        library.find(functions.fabric, "fi_fabric", "FABRIC_1.1");
        library.find(functions.version, "fi_version", "FABRIC_1.0");
        library.find(functions.strerror, "fi_strerror", "FABRIC_1.0");
        why_not = library.why_not();
        if (!why_not.empty()) {
            return;
        }
        why_not = why_too_old(functions.version(), FI_VERSION(1, 17));
        std::atexit(await_asking);
    }
};

char *copy_of(const std::string &text) { return text.empty() ? nullptr : strdup(text.c_str()); }

}  // namespace

std::string why_too_old(uint32_t version, uint32_t needed) {
    return FI_VERSION_LT(version, needed) ? formatted("libfabric is {}.{}, {}.{} or later is needed", FI_MAJOR(version),
                                                      FI_MINOR(version), FI_MAJOR(needed), FI_MINOR(needed))
                                          : "";
}

const Libfabric &libfabric() {
    check_fork(Locks::Libfabric);
    const auto &loaded = made_once<Loaded>(Locks::Libfabric);
    if (!loaded.why_not.empty()) {
        throw Error(ODC_ERROR_UNSUPPORTED, loaded.why_not);
    }
    return loaded.functions;
}

int call_getinfo(const fi_info *hints, fi_info **found) {
    const Libfabric &functions = libfabric();
    const Asking here;
    return functions.getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, found);
}

Info hints_for(const std::string &provider, const std::string &domain) {
    Info hints(libfabric().dupinfo(nullptr));
    if (!hints) {
        throw std::bad_alloc();
    }
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->fabric_attr->prov_name = copy_of(provider);
    hints->domain_attr->name = copy_of(domain);
    return hints;
}

bool is_common(const fi_info &info) {
    return info.fabric_attr->name == nullptr || std::strcmp(info.fabric_attr->name, "efa-direct") != 0;
}

std::string fabric_error_text(const char *call, int64_t code) {
    return formatted("{}: {}", call, libfabric().strerror(static_cast<int>(code < 0 ? -code : code)));
}

}  // namespace odc
