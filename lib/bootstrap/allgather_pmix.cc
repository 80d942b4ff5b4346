// SPDX-License-Identifier: Apache-2.0
// The rendezvous through the launcher's PMIx server. The library is opened only here and now: most jobs do without it.
#include "base/dynamic_library.h"
#include "base/fork_gate.h"
#include "base/futex.h"
#include "base/settings.h"
#include "base/thread.h"
#include "bootstrap/allgather.h"

#ifdef ODC_HAVE_PMIX

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <pmix.h>
#include <unistd.h>

namespace odc {
namespace {

// The functions used here; the header's macros for values call others, so those are filled in by hand.
struct Pmix {
    decltype(&PMIx_Init) init;
    decltype(&PMIx_Finalize) finalize;
    decltype(&PMIx_Put) put;
    decltype(&PMIx_Commit) commit;
    decltype(&PMIx_Fence_nb) fence;
    decltype(&PMIx_Get) get;
    decltype(&PMIx_Error_string) error_string;
};

std::atomic<int> open_allgathers = 0;

constexpr int64_t kLeaveMs = 500;  // for the others to come to the fence of a rank that leaves

struct Loaded {
    Pmix pmix{};
    std::string why_not;

    Loaded() {
        DynamicLibrary library(libraries::kPmix);
        library.find(pmix.init, "PMIx_Init");
        library.find(pmix.finalize, "PMIx_Finalize");
        library.find(pmix.put, "PMIx_Put");
        library.find(pmix.commit, "PMIx_Commit");
        library.find(pmix.fence, "PMIx_Fence_nb");
        library.find(pmix.get, "PMIx_Get");
        library.find(pmix.error_string, "PMIx_Error_string");
        why_not = library.why_not();
    }
};

const Loaded &loaded() { return made_once<Loaded>(Locks::Pmix); }

void check(const Pmix &pmix, pmix_status_t status, const std::string &call) {
    if (status != PMIX_SUCCESS) {
        fail(ODC_ERROR_RENDEZVOUS, "odc_init could not meet through PMIx: {}: {}", call, pmix.error_string(status));
    }
}

void finalize_session();

// This process's connection to the server, made once and kept until the process ends: a rank that finalizes disturbs
// the others' next fence.
class Session {
public:
    Session() : pid_(getpid()) {
        check(pmix_, init(), "PMIx_Init");
        std::atexit(finalize_session);
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    // Launchers report who leaves without it as crashed, which is right for a process that exits while another of its
    // threads is in odc_init: finalizing then, mpirun waits forever. A forked child leaves the connection to its parent.
    void finalize() const {
        if (getpid() == pid_ && open_allgathers == 0) {
            pmix_.finalize(nullptr, 0);
        }
    }
    const Pmix &pmix() const { return pmix_; }
    const pmix_proc_t &self() const { return self_; }

private:
    pmix_status_t init() {
        const BlockSignals block;  // for PMIx's thread, too
        return pmix_.init(&self_, nullptr, 0);
    }

    const Pmix &pmix_ = loaded().pmix;
    pid_t pid_;
    pmix_proc_t self_{};
};

pmix_info_t info_of(const char *key) {
    pmix_info_t info{};
    std::strncpy(info.key, key, PMIX_MAX_KEYLEN);
    return info;
}

pmix_info_t seconds_of(const Deadline &deadline) {
    pmix_info_t info = info_of(PMIX_TIMEOUT);
    info.value.type = PMIX_INT;
    info.value.data.integer = static_cast<int>(std::clamp<int64_t>(deadline.remaining_ms() / 1000 + 1, 1, 1 << 30));
    return info;
}

// Shared with PMIx's thread, which may still answer after this call has given up.
struct Fence {
    std::atomic<uint32_t> done = 0;
    pmix_status_t status = PMIX_SUCCESS;
    pmix_info_t infos[2];
};

extern "C" void fence_done(pmix_status_t status, void *arg) {
    const std::unique_ptr<std::shared_ptr<Fence>> fence(static_cast<std::shared_ptr<Fence> *>(arg));
    (*fence)->status = status;
    (*fence)->done.store(1, std::memory_order_release);
    futex_wake((*fence)->done);
}

// Not PMIx_Fence, which neither asks `interrupted` nor keeps the deadline where the server knows no PMIX_TIMEOUT.
std::shared_ptr<Fence> begin_fence(const Pmix &pmix, const Deadline &deadline) {
    const auto fence = std::make_shared<Fence>();
    fence->infos[0] = info_of(PMIX_COLLECT_DATA);
    fence->infos[0].value.type = PMIX_BOOL;
    fence->infos[0].value.data.flag = true;
    fence->infos[1] = seconds_of(deadline);
    auto shared = std::make_unique<std::shared_ptr<Fence>>(fence);
    const pmix_status_t begun = pmix.fence(nullptr, 0, fence->infos, 2, fence_done, shared.get());
    if (begun == PMIX_OPERATION_SUCCEEDED) {  // without a call of fence_done
        fence->done = 1;
        return fence;
    }
    check(pmix, begun, "PMIx_Fence_nb");
    static_cast<void>(shared.release());  // fence_done's now
    return fence;
}

void wait_for_all(const Pmix &pmix, Fence &fence, int rank, const Deadline &deadline) {
    const auto missing = [&] {
        return formatted(
            "odc_init of rank {} waited {:.3g} s at the launcher's PMIx fence; missing: at least one rank "
            "(PMIx does not say which)",
            rank, deadline.waited_s());
    };
    while (fence.done.load(std::memory_order_acquire) == 0) {
        deadline.check(ODC_ERROR_RENDEZVOUS, missing);
        deadline.check_interrupted("odc_init");
        futex_wait(fence.done, 0, deadline.slice_ms());
    }
    check(pmix, fence.status, "PMIx_Fence_nb");
}

PeerInfo get_info(const Pmix &pmix, const pmix_proc_t &of, const char *key, const Deadline &deadline) {
    const pmix_info_t timeout = seconds_of(deadline);
    pmix_value_t *value = nullptr;
    check(pmix, pmix.get(&of, key, &timeout, 1, &value), formatted("PMIx_Get of what rank {} published", of.rank));
    const std::unique_ptr<pmix_value_t, decltype(&std::free)> owner(value, std::free);
    if (value->type != PMIX_BYTE_OBJECT) {
        fail(ODC_ERROR_RENDEZVOUS, "PMIx returned no bytes for rank {}; meet by ODC_RENDEZVOUS and ODC_SECRET instead",
             of.rank);
    }
    const std::unique_ptr<char, decltype(&std::free)> bytes(value->data.bo.bytes, std::free);
    PeerInfo info;
    if (value->data.bo.size != info.size()) {
        fail(ODC_ERROR_RENDEZVOUS,
             "rank {} describes itself in {} bytes, this rank in {}; give all ranks the same libodc", of.rank,
             value->data.bo.size, info.size());
    }
    std::memcpy(info.data(), bytes.get(), info.size());
    return info;
}

// Values that PMIx once has it may serve for ever, so each round of each rendezvous has its own key.
unsigned next_rendezvous() {
    static std::atomic<unsigned> rendezvous = 0;
    return rendezvous++;
}

const Session &session() { return made_once<Session>(Locks::Pmix); }

void finalize_session() { session().finalize(); }

class PmixAllgather : public Allgather {
public:
    PmixAllgather(int rank, int size, const Deadline &deadline)
        : rank_(rank), size_(size), deadline_(deadline), rendezvous_(next_rendezvous()) {
        ++open_allgathers;
    }
    ~PmixAllgather() override { --open_allgathers; }
    PmixAllgather(const PmixAllgather &) = delete;
    PmixAllgather &operator=(const PmixAllgather &) = delete;

    std::vector<PeerInfo> all_gather(const PeerInfo &mine) override {
        const std::string key = hand_in(mine);
        const Pmix &pmix = session().pmix();
        wait_for_all(pmix, *begin_fence(pmix, deadline_), rank_, deadline_);
        std::vector<PeerInfo> infos;
        for (int of = 0; of < size_; ++of) {
            pmix_proc_t proc = session().self();
            proc.rank = static_cast<pmix_rank_t>(of);
            infos.push_back(get_info(pmix, proc, key.c_str(), deadline_));
        }
        return infos;
    }

    // The fence delivers the peer info once the others enter it. Waits for them briefly, in case this process exits now.
    void leave(const PeerInfo &join_error) override {
        hand_in(join_error);
        const Deadline brief(kLeaveMs, nullptr, nullptr);
        wait_for_all(session().pmix(), *begin_fence(session().pmix(), deadline_), rank_, brief);
    }

private:
    // Returns the key of this round's peer infos.
    std::string hand_in(const PeerInfo &mine) {
        const std::string key = formatted("odc.info.{}.{}", rendezvous_, ++round_);
        const pmix_proc_t &self = session().self();
        if (self.rank != static_cast<pmix_rank_t>(rank_)) {
            fail(ODC_ERROR_RENDEZVOUS,
                 "this process is rank {} of the job but rank {} for PMIx; give ODC_RENDEZVOUS and ODC_SECRET instead",
                 rank_, self.rank);
        }
        const Pmix &pmix = session().pmix();
        PeerInfo copy = mine;
        pmix_value_t value{};
        value.type = PMIX_BYTE_OBJECT;
        value.data.bo = {reinterpret_cast<char *>(copy.data()), copy.size()};
        check(pmix, pmix.put(PMIX_GLOBAL, key.c_str(), &value), "PMIx_Put");
        check(pmix, pmix.commit(), "PMIx_Commit");
        return key;
    }

    int rank_;
    int size_;
    const Deadline &deadline_;
    unsigned rendezvous_;
    int round_ = 0;
};

}  // namespace

const char *why_not_pmix() {
    if (environment("PMIX_NAMESPACE").empty()) {
        return "no PMIx server started this process (PMIX_NAMESPACE is unset)";
    }
    return loaded().why_not.empty() ? nullptr : loaded().why_not.c_str();
}

std::unique_ptr<Allgather> make_allgather_pmix(int rank, int size, const Deadline &deadline) {
    return std::make_unique<PmixAllgather>(rank, size, deadline);
}

}  // namespace odc

#else

namespace odc {

const char *why_not_pmix() { return "this libodc was built without PMIx"; }

std::unique_ptr<Allgather> make_allgather_pmix(int, int, const Deadline &) {
    throw Error(ODC_ERROR_UNSUPPORTED, why_not_pmix());
}

}  // namespace odc

#endif
