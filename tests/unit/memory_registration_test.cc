// SPDX-License-Identifier: Apache-2.0
// Memory registered for peers' reads can be read by them and not written.
#include <sched.h>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "transport/fabric/provider/endpoint.h"

extern "C" {
#include <cmocka.h>
}

using namespace odc;

namespace {

constexpr size_t kBytes = 4096;
constexpr int64_t kTimeoutNs = 30'000'000'000;

void check(int64_t code) {
    if (code != 0) {
        throw Error(ODC_ERROR_SYSTEM, fabric_error_text("libfabric", code));
    }
}

// An endpoint that makes libfabric calls which the library does not make.
class RawEndpoint {
public:
    RawEndpoint() {
        const Info hints = hints_for("tcp;ofi_rxm", "lo");
        fi_info *found = nullptr;
        check(libfabric().getinfo(FI_VERSION(1, 17), "127.0.0.1", nullptr, FI_SOURCE, hints.get(), &found));
        info_.reset(found);
        check(libfabric().fabric(found->fabric_attr, &fabric_, nullptr));
        check(fi_domain(fabric_, found, &domain_, nullptr));
        fi_av_attr book{};
        check(fi_av_open(domain_, &book, &addresses_, nullptr));
        fi_cq_attr attributes{};
        attributes.format = FI_CQ_FORMAT_MSG;
        check(fi_cq_open(domain_, &attributes, &queue_, nullptr));
        check(fi_endpoint(domain_, found, &endpoint_, nullptr));
        check(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV));
        check(fi_ep_bind(endpoint_, &addresses_->fid, 0));
        check(fi_enable(endpoint_));
    }
    ~RawEndpoint() {
        for (fid *one : {&endpoint_->fid, &queue_->fid, &addresses_->fid, &domain_->fid, &fabric_->fid}) {
            fi_close(one);
        }
    }
    RawEndpoint(const RawEndpoint &) = delete;
    RawEndpoint &operator=(const RawEndpoint &) = delete;

    enum class What { Read, Write };
    // Moves `bytes` from or to the owner's registered memory. Returns false if that failed.
    bool move(What what, FabricEndpoint &owner, const MemoryRegion &exposed, std::vector<char> &bytes) {
        fi_addr_t peer = FI_ADDR_UNSPEC;
        assert_int_equal(fi_av_insert(addresses_, owner.name().data(), 1, &peer, 0, nullptr), 1);
        iovec part{bytes.data(), bytes.size()};
        fi_rma_iov there{exposed.address, bytes.size(), exposed.key};
        fi_context2 context{};
        fi_msg_rma message{&part, nullptr, 1, peer, &there, 1, &context, 0};
        ssize_t code = -FI_EAGAIN;
        for (const int64_t end = now_ns() + kTimeoutNs; code == -FI_EAGAIN; owner.poll()) {
            assert_true(now_ns() < end);
            fi_cq_read(queue_, nullptr, 0);
            code = what == What::Read ? fi_readmsg(endpoint_, &message, FI_COMPLETION)
                                      : fi_writemsg(endpoint_, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
        }
        return code == 0 && await(owner);
    }

private:
    bool await(FabricEndpoint &owner) {
        fi_cq_msg_entry entry{};
        ssize_t count = -FI_EAGAIN;
        for (const int64_t end = now_ns() + kTimeoutNs; count == -FI_EAGAIN; sched_yield()) {
            assert_true(now_ns() < end);
            owner.poll();
            count = fi_cq_read(queue_, &entry, 1);
        }
        fi_cq_err_entry error{};
        if (count == -FI_EAVAIL && fi_cq_readerr(queue_, &error, 0) == 1) {
            std::printf("refused: %s\n", libfabric().strerror(error.err));
        }
        return count == 1;
    }

    Info info_;
    fid_fabric *fabric_ = nullptr;
    fid_domain *domain_ = nullptr;
    fid_av *addresses_ = nullptr;
    fid_cq *queue_ = nullptr;
    fid_ep *endpoint_ = nullptr;
};

FabricNic loopback() { return {"tcp;ofi_rxm", "lo", 4, {127, 0, 0, 1}}; }

void what_is_exposed_to_peers_can_be_read_but_not_written(void **) {
    FabricEndpoint owner(loopback(), nullptr);
    std::vector<char> memory(kBytes, 'a');
    const MemoryRegion exposed = owner.register_memory(memory.data(), kBytes, MemoryKind::Host, Access::RemoteRead);
    std::vector<char> bytes(kBytes, 'b');
    RawEndpoint reader;
    assert_true(reader.move(RawEndpoint::What::Read, owner, exposed, bytes));
    assert_true(bytes == memory);
    bytes.assign(kBytes, 'c');
    RawEndpoint writer;
    assert_false(writer.move(RawEndpoint::What::Write, owner, exposed, bytes));
    assert_true(memory == std::vector<char>(kBytes, 'a'));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(what_is_exposed_to_peers_can_be_read_but_not_written),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
