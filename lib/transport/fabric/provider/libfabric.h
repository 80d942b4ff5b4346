// SPDX-License-Identifier: Apache-2.0
// libfabric, loaded at run time, so that machines without it run jobs of one host. Uses API 1.17, the oldest that is still
// widely shipped.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <memory>
#include <string>

namespace odc {

// Endpoint options of libfabric 1.18 that the headers of 1.17 lack.
constexpr int kOptCudaApiPermitted = 10;  // bool

struct Libfabric {
    decltype(&::fi_getinfo) getinfo = nullptr;  // through call_getinfo
    decltype(&::fi_freeinfo) freeinfo = nullptr;
    decltype(&::fi_dupinfo) dupinfo = nullptr;
    decltype(&::fi_fabric) fabric = nullptr;
    decltype(&::fi_version) version = nullptr;
    decltype(&::fi_strerror) strerror = nullptr;
};

// Empty, or "libfabric is 1.17, 1.18 or later is needed".
std::string why_too_old(uint32_t version, uint32_t needed);

// Throws ODC_ERROR_UNSUPPORTED, such as "libfabric.so.1 not found", if it cannot be used.
const Libfabric &libfabric();

// Calls fi_getinfo with these hints. Throws ODC_ERROR_UNSUPPORTED once another thread has called exit(), as fi_getinfo uses
// what libfabric's destructors free.
int call_getinfo(const fi_info *hints, fi_info **found);

struct FreeInfo {
    void operator()(fi_info *info) const { libfabric().freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

// Every object of libfabric has a member `fid`.
struct CloseFid {
    template <class Object>
    void operator()(Object *object) const {
        fi_close(&object->fid);
    }
};
template <class Object>
using Opened = std::unique_ptr<Object, CloseFid>;

// What this library needs of a provider: reliable datagrams and RMA. No message order, as packets are numbered.
Info hints_for(const std::string &provider, const std::string &domain);
// False for efa-direct: a fabric with efa's provider and domain names that not every rank may have.
bool is_common(const fi_info &info);
// "fi_mr_reg: Cannot allocate memory"; `code` as libfabric returns it, negative or not.
std::string fabric_error_text(const char *call, int64_t code);

}  // namespace odc
